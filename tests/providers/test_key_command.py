"""Keys printed by a command, with real commands."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from nousd.errors import ProviderError
from nousd.providers.setup import key_command
from nousd.providers.setup.key_command import OUTPUT_BYTES_MAX, SECONDS_MAX, key_from
from tests.harness.daemon import WAIT_SECONDS

SLEEPS = ("/bin/sh", "-c", "sleep 1000 > held & echo sk-hush; wait")


async def printed(script: str, folder: Path) -> str:
    with trio.fail_after(WAIT_SECONDS):
        return await key_from(("/bin/sh", "-c", script), folder)


async def test_the_key_is_the_stripped_standard_output(
    tmp_path: Path,
) -> None:
    assert await printed("echo; echo ' sk-one '; echo told aside >&2", tmp_path) == "sk-one"


async def test_a_key_command_runs_in_its_folder_without_input_and_shell(
    tmp_path: Path,
) -> None:
    assert await printed("cat; pwd", tmp_path) == str(tmp_path)
    with trio.fail_after(WAIT_SECONDS):
        assert await key_from(("echo", "$HOME;", "`id`"), tmp_path) == "$HOME; `id`"


async def test_a_key_command_does_not_get_keys_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another")
    monkeypatch.setenv("OTHER_VARIABLE", "kept")
    assert await printed("echo $OPENAI_API_KEY-$OTHER_VARIABLE", tmp_path) == "-kept"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo sk-hush; echo sk-hush >&2; exit 3", "api_key_command failed with exit code 3"),
        ("echo sk-hush; kill -TERM $$", "api_key_command failed with signal 15"),
        ("echo ''", "api_key_command printed nothing"),
        ("echo sk-hush; echo sk-hush", "api_key_command printed what is no key"),
        ("printf 'sk-hush\\377'", "api_key_command printed what is no key"),
        (
            f"head -c {OUTPUT_BYTES_MAX + 1} /dev/zero | tr '\\0' h",
            f"api_key_command printed more than {OUTPUT_BYTES_MAX} bytes",
        ),
    ],
)
async def test_an_invalid_key_is_an_error_that_does_not_repeat_it(
    tmp_path: Path, script: str, said: str
) -> None:
    with pytest.raises(ProviderError) as caught:
        await printed(script, tmp_path)
    assert str(caught.value).startswith(said)
    assert "hush" not in str(caught.value)
    assert not caught.value.retryable


async def test_a_key_of_maximum_length_is_accepted(tmp_path: Path) -> None:
    key = await printed(f"head -c {OUTPUT_BYTES_MAX} /dev/zero | tr '\\0' h", tmp_path)
    assert len(key) == OUTPUT_BYTES_MAX


@pytest.mark.parametrize("program", ["/none/such", "no-such-program-anywhere", "nul\0byte"])
async def test_a_command_that_cannot_be_run_is_an_error(tmp_path: Path, program: str) -> None:
    with pytest.raises(ProviderError, match=r"^api_key_command cannot be run: "):
        await key_from((program,), tmp_path)


class Started:
    """Records the processes started from now on; ``known`` is set after a start."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.processes: list[trio.Process] = []
        self.known = trio.Event()
        self._start = key_command._start_process
        monkeypatch.setattr(key_command, "_start_process", self._start_and_note)

    async def _start_and_note(self, command: Sequence[str], folder: Path) -> trio.Process:
        self.processes.append(await self._start(command, folder))
        self.known.set()
        return self.processes[-1]


async def test_a_key_command_that_times_out_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    started, opened = Started(monkeypatch), trio.Event()
    os.mkfifo(tmp_path / "held")

    def read_to_the_end() -> None:
        # Ends when the last process that holds the pipe open has ended.
        with (tmp_path / "held").open("rb") as held:
            trio.from_thread.run_sync(opened.set)
            assert select.select([held], [], [], WAIT_SECONDS)[0], "it is still held"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            partial(trio.to_thread.run_sync, read_to_the_end, abandon_on_cancel=True)
        )

        @nursery.start_soon
        async def let_time_pass() -> None:
            await started.known.wait()
            await opened.wait()
            mock_clock.jump(SECONDS_MAX)

        with pytest.raises(ProviderError, match=r"took more than 10 seconds"):
            await key_from(SLEEPS, tmp_path)


async def test_a_key_command_that_cannot_be_killed_is_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_group: int, _number: int) -> None:
        raise PermissionError

    started = Started(monkeypatch)
    monkeypatch.setattr(key_command, "SECONDS_MAX", 0.1)
    monkeypatch.setattr(key_command, "_KILL_WAIT_SECONDS", 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", refuse)
        with pytest.raises(ProviderError, match=r"took more than 0.1 seconds"):
            await printed("exec sleep 1000", tmp_path)
    [process] = started.processes
    assert process.returncode is None
    process.kill()
    await process.wait()


async def test_background_processes_of_a_key_command_are_not_waited_for(tmp_path: Path) -> None:
    try:
        with trio.fail_after(WAIT_SECONDS):
            assert await printed("sleep 1000 & echo $! > left; echo sk-one", tmp_path) == "sk-one"
    finally:
        os.kill(int((tmp_path / "left").read_text()), 9)


async def test_a_cancelled_key_command_is_killed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "started")
    code = "import os,time; open('started', 'w').write(str(os.getpid())); time.sleep(1000)"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(key_from, (sys.executable, "-c", code), tmp_path)
        with trio.fail_after(WAIT_SECONDS):
            started = await trio.to_thread.run_sync((tmp_path / "started").read_text)
        nursery.cancel_scope.cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(int(started), 0)
