"""Unauthorized clients are refused, and an authorized one can harm only itself."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from nousd.daemon.transport import feed
from nousd.wire.commands import COMMANDS
from nousd.wire.limits import CONNECTIONS_MAX, NAME_CHARS_MAX
from tests.daemon.process_harness import REPOSITORY, Place, running
from tests.daemon.scripted import ScriptedProvider
from tests.harness.daemon import WAIT_SECONDS, Client, Daemon, memory_daemon, socket_daemon

OTHER_UID = 65_534

TALK_AS_ANOTHER_USER = f"""
import os, socket, sys
os.setuid({OTHER_UID})
for path in sys.argv[1:]:
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout({WAIT_SECONDS})
    peer.connect(path)
    try:
        peer.sendall(b'{{"id":"x","type":"ping"}}\\n')
        print(peer.recv(100))
    except (ConnectionResetError, BrokenPipeError):
        print(b"")
"""


@pytest.fixture
async def daemon(short_folder: Path) -> AsyncIterator[Daemon]:
    model = ScriptedProvider()
    async with socket_daemon(short_folder, provider=model) as daemon:
        yield daemon


# --- access ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("as_root")
async def test_both_sockets_close_connections_of_other_users_without_an_answer(
    short_folder: Path,
) -> None:
    place = Place(short_folder)
    async with running(place):
        sockets = [str(place.socket), f"{place.socket}.events"]
        for path in (short_folder, place.socket.parent):
            path.chmod(0o755)  # disable the two other guards
        for socket in sockets:
            await trio.Path(socket).chmod(0o666)
        peer = await trio.run_process(
            [sys.executable, "-c", TALK_AS_ANOTHER_USER, *sockets], capture_stdout=True
        )
        assert peer.stdout.split() == [b"b''", b"b''"]
        assert (await (await place.connect()).request("ping"))["message"] == "pong"


def plant_link(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")


def plant_foreign_folder(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    folder.mkdir(mode=0o700)
    os.chown(folder, OTHER_UID, -1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (plant_link, "is a symbolic link"),
        (plant_foreign_folder, "belongs to another user (uid 65534)"),
    ],
)
async def test_a_planted_runtime_folder_is_refused(
    plant: Any, words: str, short_folder: Path
) -> None:
    place = Place(short_folder)
    runtime = short_folder / "runtime"
    runtime.mkdir(mode=0o700)
    plant(runtime / "nousd")
    command = [sys.executable, "-m", "nousd", "serve"]
    command += ["--state-dir", str(place.state), "--workdir", str(place.work)]
    with trio.fail_after(WAIT_SECONDS):
        ended = await trio.run_process(
            command,
            env=place.environment(XDG_RUNTIME_DIR=str(runtime)),
            cwd=REPOSITORY,
            capture_stderr=True,
            check=False,
        )
    assert ended.returncode == 2
    assert words in ended.stderr.decode()
    assert list((runtime / "nousd").iterdir()) == []


# --- ids are data ----------------------------------------------------------------------------

STRANGE_IDS = ["../outside", "a/b", "/etc/passwd", "\0", "a\0b", "..", ".", "%2e%2e", "' OR 1=1"]
LONG_ID = "x" * 10_240
SAMPLES: dict[str, Any] = {
    "text": "hello",
    "tools": [],
    "mode": "all",
    "leaf_id": "leaf",
    "name": "name",
    "input_id": "in",
    "model": "m",
    "run_id": "run",
    "wait": False,
    "level": "low",
    "runtime": "native",
    "tool": "ls",
    "rule": "ls",
    "workspace": "/home/me/project",
    "ttl_seconds": 60,
}
OWN_SAMPLES: dict[str, dict[str, Any]] = {
    "set_permission_mode": {"mode": "auto"},
    "add_mcp": {"command": ["true"]},
}
"""Command -> fields that it needs besides the samples, or that mean something else in it."""


TAKES_SESSION = [
    name
    for name, struct in COMMANDS.items()
    if "session_id" in {field.name for field in msgspec.structs.fields(struct)}
]


def payload_of(name: str, session_id: str) -> dict[str, Any]:
    """Return a payload with the fields that the command requires and the session."""
    fields = msgspec.structs.fields(COMMANDS[name])
    needed = {
        field.name: SAMPLES[field.name]
        for field in fields
        if field.name in SAMPLES and (field.required or field.name == "wait")
    }
    return {**needed, **OWN_SAMPLES.get(name, {}), "session_id": session_id}


def files_below(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.mark.slow(keep=13)
@pytest.mark.parametrize("name", TAKES_SESSION)
async def test_a_session_id_is_never_used_as_a_path(name: str, tmp_path: Path) -> None:
    workdir = tmp_path / "deep" / "work"
    workdir.mkdir(parents=True)
    async with memory_daemon(workdir=workdir, provider=ScriptedProvider()) as daemon:
        client = await daemon.connect()
        before = files_below(tmp_path)
        for session_id in STRANGE_IDS:
            request = await client.ask(name, **payload_of(name, session_id))
            answer = await client.answer(request)
            if name == "get_events":
                assert answer["payload"]["events"] == []
            else:
                assert (answer["ok"], answer["error"]["code"]) == (False, "session_not_found")
        error = await client.refusal(name, **payload_of(name, LONG_ID))
        assert (error["code"], error["message"]) == (
            "invalid_payload",
            f"session_id is too long: at most {NAME_CHARS_MAX}",
        )
        await client.answer(await client.ask(name, **payload_of(name, "")))
        assert await client.request("ping") == {"message": "pong"}
        assert files_below(tmp_path) == before


@pytest.mark.parametrize("field", ["session_id", "run_id"])
async def test_a_subscription_filter_accepts_strange_ids_and_refuses_long_ones(
    field: str, daemon: Daemon
) -> None:
    events = await daemon.watch()
    for value in STRANGE_IDS:
        await events.subscribe(**{field: value, "after": "evt-0", "types": "all"})
    await events.send({"id": "s", "type": "subscribe", "payload": {field: LONG_ID}})
    answer = await events.receive()
    assert answer["error"]["message"] == f"{field} is too long: at most {NAME_CHARS_MAX}"


# --- crowds, stalls and floods ---------------------------------------------------------------


@pytest.mark.slow
async def test_clients_stalled_within_a_line_fill_only_the_command_socket_until_they_leave(
    short_folder: Path,
) -> None:
    place = Place(short_folder)
    async with running(place):
        stalled = [await place.connect() for _ in range(CONNECTIONS_MAX)]
        for client in stalled:
            await client.send(b'{"v":"1","id":"x","type":"pi')
        late = await place.connect()
        answer = await late.receive()
        assert answer["error"]["message"] == "too_many_connections"
        events = await place.watch(types=["session_created"])
        await stalled[0].send(b'ng"}\n')
        assert (await stalled[0].receive())["type"] == "pong"
        await stalled[1].aclose()
        with trio.fail_after(WAIT_SECONDS):
            client = await until_served(place)
        await client.request("new_session", name="one")
        assert (await events.next())["payload"]["name"] == "one"


async def until_served(place: Place) -> Client:
    """Connect until the daemon serves; it frees a connection a moment after its client left."""
    while True:
        client = await place.connect()
        with suppress(trio.BrokenResourceError):  # refused, and closed before it could ask
            request = await client.ask("ping")
            if (await client.receive())["id"] == request:
                return client


def open_sockets() -> int:
    """Return the number of open sockets; files do not count, because the log opens some for reads."""
    with os.scandir("/dev/fd") as found:
        return sum(_is_socket(int(entry.name)) for entry in found)


def _is_socket(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:
        return False  # closed meanwhile


@asynccontextmanager
async def nothing_left_open(client: Client) -> AsyncIterator[None]:
    """Assert that sockets opened in the block are closed once the daemon has noticed."""
    await settle(client)
    before = open_sockets()
    yield
    with trio.fail_after(WAIT_SECONDS):
        await settle(client)
        while open_sockets() != before:
            await settle(client)


LINE = b'{"v":"1","id":"x","type":"get_state","payload":{}}\n'


async def test_a_client_that_disconnects_at_any_point_leaves_no_open_socket(
    daemon: Daemon, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "_HANG_UP_POLL_SECONDS", 0)
    client = await daemon.connect()
    await client.request("ping")
    paths = [short_folder / "nous.sock", short_folder / "nous.sock.events"]
    async with nothing_left_open(client):
        for path in paths:
            for cut in range(0, len(LINE) + 1, 3):
                for half_closes in (True, False):
                    stream = await trio.open_unix_socket(path)
                    await stream.send_all(LINE + LINE[:cut])
                    if half_closes:
                        await stream.send_eof()
                    # Closed with answers unread: the daemon's writes meet a reset.
                    await stream.aclose()
        for _ in range(200):
            for path in paths:
                await (await trio.open_unix_socket(path)).aclose()
    assert await client.request("ping") == {"message": "pong"}


async def settle(client: Client) -> None:
    """Wait until the daemon has handled all connects and disconnects."""
    for _ in range(3):
        await client.request("ping")
        await wait_all_tasks_blocked()


FLOODS = {
    "one line without an end": b"x" * 1_000_000,
    "lines too long": (b"x" * 20_000 + b"\n") * 200,
    "line feeds": b"\n" * 1_000_000,
    "subscriptions": b'{"id":"s","type":"subscribe","payload":{"types":["error"]}}\n' * 20_000,
    "bad subscriptions": b'{"id":"s","type":"subscribe","payload":{"after":"x"}}\n' * 20_000,
    "no JSON": b'{"id":"s","type":"subscribe","payload":{"types":\n' * 20_000,
}


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
async def test_a_flood_on_the_event_socket_does_not_affect_other_clients(
    flood: bytes, daemon: Daemon
) -> None:
    flooder = await daemon.listen()
    events = await daemon.watch(types=["session_created"])
    client = await daemon.connect()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(flooder.stream.send_all, flood)  # and nothing is ever read
        for number in range(20):
            await client.request("new_session", name=f"n{number}")
            assert (await events.next())["payload"]["name"] == f"n{number}"
        nursery.cancel_scope.cancel()
