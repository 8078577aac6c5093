"""No process started by a command outlives the call, or the daemon."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from nousd.errors import StoreFull
from nousd.tools.interface import WaitStarted
from nousd.tools.process.first_process import OPEN_FILES_DEFAULT
from nousd.tools.process.supervisor import ProcessEnd, run_supervised
from tests.harness.daemon import WAIT_SECONDS
from tests.tools.bench import FAMILY, REPOSITORY, Lifeline, another_daemon, supervising

ENV = {"PATH": os.environ["PATH"]}


async def run(script: str, cwd: Path, output: list[bytes], **options: float) -> ProcessEnd:
    with trio.fail_after(WAIT_SECONDS):
        return await run_supervised(
            ["/bin/sh", "-c", script],
            cwd=cwd,
            env=ENV,
            on_output=output.append,
            timeout_seconds=options.get("timeout", WAIT_SECONDS),
            grace_seconds=options.get("grace", 0.5),
        )


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 255", 255), ("kill -TERM $$", 143)]
)
async def test_the_exit_code_is_reported_as_by_a_shell(
    script: str, code: int, tmp_path: Path
) -> None:
    assert await run(script, tmp_path, []) == ProcessEnd(code=code)


async def test_a_missing_program_has_exit_code_127(tmp_path: Path) -> None:
    output: list[bytes] = []
    ended = await run_supervised(
        ["/no/such/program"], cwd=tmp_path, env=ENV, on_output=output.append, timeout_seconds=15
    )
    assert ended == ProcessEnd(code=127)
    assert b"".join(output) == b"/no/such/program: No such file or directory\n"


class Start:
    """The start of a call on its way to the disk; ``wait`` is a ``WaitStarted``."""

    def __init__(self) -> None:
        self.awaited = trio.Event()
        self.settled = trio.Event()

    async def wait(self) -> None:
        self.awaited.set()
        await self.settled.wait()


async def test_a_program_begins_once_its_start_is_durable_and_not_before(tmp_path: Path) -> None:
    start = Start()
    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_after, start.wait, tmp_path)
            await start.awaited.wait()
            # A whole command comes and goes meanwhile.
            assert await run("echo ran > other", tmp_path, []) == ProcessEnd()
            assert not (tmp_path / "effect").exists()
            start.settled.set()
    assert (tmp_path / "effect").exists()


async def test_a_program_whose_start_cannot_be_logged_never_begins(tmp_path: Path) -> None:
    async def wait_started() -> None:
        raise StoreFull("the disk is full")

    with trio.fail_after(WAIT_SECONDS), pytest.raises(StoreFull):
        await run_after(wait_started, tmp_path)
    assert not (tmp_path / "effect").exists()


async def test_a_program_that_is_cancelled_before_its_start_is_durable_never_begins(
    tmp_path: Path,
) -> None:
    start = Start()
    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_after, start.wait, tmp_path)
            await start.awaited.wait()
            nursery.cancel_scope.cancel()
    assert not (tmp_path / "effect").exists()


async def run_after(wait_started: WaitStarted, folder: Path) -> None:
    await run_supervised(
        ["/bin/sh", "-c", "echo ran > effect"],
        cwd=folder,
        env=ENV,
        on_output=lambda _: None,
        timeout_seconds=15,
        wait_started=wait_started,
    )


async def test_nothing_starts_after_the_daemon_is_gone(tmp_path: Path) -> None:
    daemon, control = socket.socketpair()
    daemon.close()
    with control, trio.fail_after(WAIT_SECONDS):
        await trio.run_process(
            supervising(control, "echo ran > effect", tmp_path),
            cwd=REPOSITORY,
            pass_fds=[control.fileno()],
        )
    assert not (tmp_path / "effect").exists()


async def test_a_command_has_exactly_the_given_environment(tmp_path: Path) -> None:
    output: list[bytes] = []
    ended = await run_supervised(
        [sys.executable, "-I", "-S", "-c", "import os; print(sorted(os.environb.items()))"],
        cwd=tmp_path,
        env={"A": "b=c", "LC_CTYPE": "C.UTF-8", "BYTES": "\udcff", "EMPTY": ""},
        on_output=output.append,
        timeout_seconds=15,
    )
    assert ended.code == 0
    expected = [(b"A", b"b=c"), (b"BYTES", b"\xff"), (b"EMPTY", b""), (b"LC_CTYPE", b"C.UTF-8")]
    assert b"".join(output) == repr(expected).encode() + b"\n"


async def test_a_command_dies_of_a_broken_pipe_as_in_a_terminal(tmp_path: Path) -> None:
    output: list[bytes] = []
    await run("yes | head -n 1; trap", tmp_path, output)
    assert b"".join(output) == b"y\n"


async def test_a_command_has_the_usual_limit_of_open_files_whatever_the_daemon_has(
    tmp_path: Path,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard <= OPEN_FILES_DEFAULT:
        pytest.skip(f"at most {hard} files may be opened here")
    output: list[bytes] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES_DEFAULT + 1, hard))
    try:
        await run("ulimit -Sn", tmp_path, output)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert b"".join(output) == b"%d\n" % OPEN_FILES_DEFAULT


async def test_no_descriptor_of_the_daemon_reaches_the_command(tmp_path: Path) -> None:
    output: list[bytes] = []
    await run("ls /proc/self/fd", tmp_path, output)
    # 3 is the directory that ls itself reads.
    assert b"".join(output).split() == [b"0", b"1", b"2", b"3"]


async def test_a_timeout_ends_the_command_and_keeps_its_last_output(
    tmp_path: Path, line: Lifeline, mock_clock: MockClock
) -> None:
    output: list[bytes] = []
    script = (
        f"exec 9>'{line.path}'; trap 'echo bye; exit 7' TERM; echo ready >&9; sleep 1000 & wait"
    )
    ended = await line.time_out(
        lambda: run(script, tmp_path, output, timeout=5), mock_clock, seconds=5
    )
    assert ended == ProcessEnd(code=7, timed_out=True)
    assert b"".join(output) == b"bye\n"
    assert line.is_gone()


async def test_a_command_that_ignores_sigterm_is_killed_after_the_grace_period(
    tmp_path: Path, line: Lifeline, mock_clock: MockClock
) -> None:
    script = f"exec 9>'{line.path}'; trap '' TERM; echo ready >&9; while :; do sleep 1000; done"
    ended = await line.time_out(
        lambda: run(script, tmp_path, [], timeout=5, grace=0.05), mock_clock, seconds=5
    )
    assert ended == ProcessEnd(code=128 + signal.SIGKILL, timed_out=True)
    assert line.is_gone()


DAEMON = """
import sys, trio
from pathlib import Path
from nousd.tools.process.supervisor import run_supervised
trio.run(lambda: run_supervised(
    ["/bin/sh", "-c", sys.argv[1]], cwd=Path("/"), env={"PATH": sys.argv[2]},
    on_output=lambda chunk: None, timeout_seconds=60, grace_seconds=0.05,
))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.slow(keep=1)
async def test_commands_and_all_their_descendants_die_with_the_daemon(
    number: int, line: Lifeline
) -> None:
    async with another_daemon(DAEMON, FAMILY.format(fifo=line.path)) as daemon:
        await line.wait_ready(3)
        daemon.send_signal(number)
        await line.wait_gone()


ABANDONED = """
exec 9>'{fifo}'
read -r _ _ _ guard _ < /proc/$PPID/stat
read -r _ _ _ daemon _ < /proc/$guard/stat
kill -STOP "$daemon"
kill -KILL $PPID
exec sleep 1000
"""


async def test_a_command_dies_with_its_supervisor_while_the_daemon_is_stopped(
    line: Lifeline,
) -> None:
    async with another_daemon(DAEMON, ABANDONED.format(fifo=line.path)) as daemon:
        await line.wait_gone()
        assert daemon.returncode is None


async def test_a_supervisor_that_receives_sigterm_ends_its_command(
    tmp_path: Path, line: Lifeline
) -> None:
    script = f"exec 9>'{line.path}'; kill -TERM $PPID; while :; do sleep 1000; done"
    assert await run(script, tmp_path, []) == ProcessEnd(code=128 + signal.SIGTERM)
    await line.wait_gone()


async def test_cancelling_before_the_start_starts_nothing(tmp_path: Path) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await run("touch started", tmp_path, [])
    assert scope.cancelled_caught
    assert not (tmp_path / "started").exists()
