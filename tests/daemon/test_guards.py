"""Guards of a daemon: one per socket and state folder, and files that only its user can access."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import trio

from tests.daemon.process_harness import Place, running
from tests.harness.daemon import of_type


@pytest.fixture
def place(short_folder: Path) -> Place:
    return Place(short_folder)


async def test_a_second_daemon_on_the_same_socket_or_state_is_refused_and_the_first_keeps_working(
    place: Place, short_folder: Path
) -> None:
    async with running(place) as process:
        client, events = await place.connect(), await place.watch()
        other_state = short_folder / "other"
        other_state.mkdir(mode=0o700)
        code, words = await place.refusal(state_dir=other_state)
        assert (code, words.count("\n")) == (2, 1)
        code, words = await place.refusal(socket=short_folder / "run" / "other.sock")
        assert (code, words.count("\n")) == (2, 1)
        assert not (short_folder / "run" / "other.sock").exists()
        result = await client.request("prompt", text="still there?")
        assert result["status"] == "completed"
        assert (await events.run())[-1]["type"] == "agent_end"
        assert (await (await place.connect()).request("ping"))["message"] == "pong"
        assert await process.stop() == 0


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("suffix", ["", ".events"])
async def test_a_file_at_a_socket_path_is_refused_and_left_unchanged(
    suffix: str, place: Place
) -> None:
    precious = trio.Path(f"{place.socket}{suffix}")
    await precious.write_text("precious")
    code, words = await place.refusal()
    assert code == 2
    assert "is not a socket" in words
    assert await precious.read_text() == "precious"


async def test_tools_cannot_write_the_daemons_own_files_inside_the_workspace(
    place: Place, short_folder: Path
) -> None:
    config = short_folder / "settings.toml"
    config.write_text('[providers.gemini]\napi_key_command = ["./print-key"]')
    http = short_folder / "http.sock"
    flags = {
        "--workdir": short_folder,
        "--config": config,
        "--http": f"unix:{http}",
        "--provider": "mock",
    }
    place.options = tuple(str(word) for flag in flags.items() for word in flag)
    async with running(place):
        inside = (
            "http.sock.lock",
            "run/nous.sock.lock",
            "run/new.txt",
            "state/new.txt",
            "nousd/config.toml",
            "settings.toml",
            "print-key",
        )
        calls = [{"path": path, "content": "mine"} for path in inside]
        client, events = await place.connect(), await place.watch()
        text = " ".join(f"[[tool write {json.dumps(call)}]]" for call in calls)
        assert (await client.request("prompt", text=text))["status"] == "completed"
        ends = of_type(await events.run(), "tool_execution_end")
        assert [end["is_error"] for end in ends] == [
            True,
            True,
            False,
            True,
            True,
            True,
            True,
        ]
    assert not (short_folder / "print-key").exists()
    assert not (short_folder / "nousd" / "config.toml").exists()
    assert "mine" not in (short_folder / "run" / "nous.sock.lock").read_text()


@pytest.mark.slow
async def test_what_was_opened_to_others_is_closed_by_the_next_start_which_says_so(
    place: Place,
) -> None:
    async with running(place) as process:
        assert await process.stop() == 0
    database = place.state / "nousd.db"
    opened = {place.state: 0o777, place.socket.parent: 0o777, database: 0o666}
    for path, mode in opened.items():
        path.chmod(mode)
    log = place.folder / "log"
    place.options = ("--log-file", str(log))
    async with running(place) as process:
        said = log.read_text()
        assert await process.stop() == 0
    for path, mode in opened.items():
        now = stat.S_IMODE(path.stat().st_mode)
        assert now == (0o600 if path == database else 0o755)
        assert f"{path} had the mode {mode:04o}, and has {now:04o} now" in said


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777], ids="{:04o}".format)
async def test_sockets_and_state_files_are_private_under_any_umask(
    umask: int, place: Place
) -> None:
    place.umask = umask
    async with running(place):
        client = await place.connect()
        await client.request("prompt", text="a secret")
        sockets = [place.socket, Path(f"{place.socket}.events")]
        for path in (*sockets, *place.state.iterdir()):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
