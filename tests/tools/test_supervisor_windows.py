"""The moments at which something of a command could be left, or come into being too late; each is made
to last, by stopping or killing a process right there.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from nousd.tools.process import supervisor
from nousd.tools.process._supervisor_main import KILLING_SECONDS_MAX, _descendants
from nousd.tools.process.supervisor import ENDING_SECONDS_MAX, GRACE_SECONDS
from nousd.tools.sandbox.interface import Request, SandboxedProcess
from tests.tools.bench import FAMILY, REPOSITORY, Lifeline
from tests.tools.sandbox_bench import SandboxBench

LONG_SECONDS = 40.0
"""A grace period that no test waits for."""

SOON_SECONDS = 20
"""What happens without the grace period has happened by then, on any machine."""

ENV = {"PATH": os.environ["PATH"]}

# Waits for the first signal between the fork and the program.
LATE = """
import signal, sys
from nousd.tools.process import _supervisor_main as supervisor
become = supervisor._become
def late(*args):
    signal.pause()
    become(*args)
supervisor._become = late
supervisor.main(sys.argv[1:])
"""

# Takes a TERM for the moment to begin the command, as late as that.
PREPARING = """
import signal, subprocess
signal.signal(signal.SIGTERM, lambda *_: subprocess.run(["/bin/sh", "-c", "echo > effect; sleep 1000"]))
print("prepares", flush=True)
while True:
    signal.pause()
"""


async def gone(*processes: int) -> None:
    """Return when none of the processes exists any more."""
    with trio.fail_after(SOON_SECONDS):
        while any(is_alive(process) for process in processes):  # noqa: ASYNC110
            await trio.sleep(0.01)


def is_alive(process: int) -> bool:
    return state(process) not in ("", "Z", "X")


def state(process: int) -> str:
    """Return the letter for the state of a process; nothing: there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@asynccontextmanager
async def commanded(
    held: SandboxedProcess, cwd: Path, grace_seconds: float = GRACE_SECONDS
) -> AsyncIterator[tuple[int, int]]:
    """Start a command; provide its guard and its supervisor."""
    async with supervisor._supervised(held.argv, cwd, held.env, grace_seconds, held) as command:
        guard = command._process.pid
        with trio.fail_after(SOON_SECONDS):
            while not (found := children(guard)):  # noqa: ASYNC110
                await trio.sleep(0.01)
        yield guard, found[0]


def children(parent: int) -> list[int]:
    return [process.id for process in _descendants(parent) if process.parent == parent]


def unconfined(script: str) -> SandboxedProcess:
    return SandboxedProcess(argv=["/bin/sh", "-c", script], env=ENV)


async def test_a_command_whose_daemon_dies_between_its_fork_and_its_program_never_begins(
    tmp_path: Path,
) -> None:
    daemon, control = socket.socketpair()
    environment = os.memfd_create("environment")
    arguments = (control.fileno(), round(LONG_SECONDS * 1000), environment, "0,0,0,0")
    with control, daemon:
        process = await trio.lowlevel.open_process(
            [
                *(sys.executable, "-c", LATE, *map(str, arguments)),
                *("/bin/sh", "-c", f"echo > {tmp_path}/effect; sleep 1000"),
            ],
            cwd=REPOSITORY,
            pass_fds=[control.fileno(), environment],
        )
        os.close(environment)
        try:
            with trio.fail_after(SOON_SECONDS):
                told = trio.socket.from_stdlib_socket(daemon.dup())
                assert (await told.recv(64)).startswith(b"started")
                told.close()
                daemon.close()
                await process.wait()
        finally:
            process.terminate()
            with trio.CancelScope(shield=True):
                await process.wait()
    assert not (tmp_path / "effect").exists()


async def test_a_command_that_a_sandbox_still_prepares_never_begins_after_the_end(
    tmp_path: Path,
) -> None:
    argv = ["/bin/sh", "-c", f"{sys.executable} -c '{PREPARING}'; exit 0"]
    held = SandboxedProcess(argv=argv, env=ENV, is_holder=True)
    async with commanded(held, tmp_path, LONG_SECONDS) as (guard, found):
        with trio.fail_after(SOON_SECONDS):
            while not any(is_waiting_for_signals(each.id) for each in _descendants(found)):  # noqa: ASYNC110
                await trio.sleep(0.01)
        below = [each.id for each in _descendants(guard)]
        with trio.fail_after(SOON_SECONDS):
            await end(guard, *below)
    assert not (tmp_path / "effect").exists()


def is_waiting_for_signals(process: int) -> bool:
    """Return whether the process has a handler for SIGTERM and sleeps."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    name = status.partition("Name:")[2].split()[0]
    return name.startswith("python") and bool(caught >> (signal.SIGTERM - 1) & 1)


async def end(guard: int, *processes: int) -> None:
    """Ask for the end of the command, and return when all of it has ended."""
    os.kill(guard, signal.SIGTERM)
    await gone(*processes)


async def test_bubblewrap_that_has_not_begun_the_command_when_the_end_comes_never_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = SandboxBench(tmp_path, "bubblewrap")
    sandbox = bench.find()
    assert sandbox is not None
    argv = ["/bin/sh", "-c", "echo > src/effect; sleep 1000"]
    (bench.work / "src").mkdir()
    with sandbox.hold(Request(argv=argv, env=ENV, workdir=bench.work)) as held:
        stopping = ["/bin/sh", "-c", 'kill -STOP $$; exec "$@"', "sh", *held.argv]
        process = SandboxedProcess(
            argv=stopping,
            env=held.env,
            descriptors=held.descriptors,
            limits=held.limits,
            is_holder=held.is_holder,
        )
        async with commanded(process, bench.work, LONG_SECONDS) as (guard, found):
            with trio.fail_after(SOON_SECONDS):
                while [state(each) for each in children(found)] != ["T"]:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            await end(guard, guard, found, *children(found))
    assert not (bench.work / "src/effect").exists()


@pytest.mark.parametrize("killed", ["supervisor", "guard"])
async def test_a_command_dies_with_its_supervisor_whatever_group_it_moved_to(
    killed: str, tmp_path: Path, line: Lifeline
) -> None:
    held = unconfined(FAMILY.format(fifo=line.path))
    async with commanded(held, tmp_path) as (guard, found):
        await line.wait_ready(3)
        os.kill(found if killed == "supervisor" else guard, signal.SIGKILL)
        await line.wait_gone()


@pytest.mark.parametrize("killed", ["supervisor", "guard"])
@pytest.mark.slow(keep=2)
async def test_a_sandboxed_command_dies_with_its_supervisor_whatever_group_it_moved_to(
    killed: str, sandbox_bench: SandboxBench, sandbox_line: Lifeline
) -> None:
    sandbox = sandbox_bench.find()
    assert sandbox is not None
    argv = ["/bin/sh", "-c", FAMILY.format(fifo=sandbox_line.path)]
    request = Request(argv=argv, env=ENV, workdir=sandbox_bench.work)
    with sandbox.hold(request) as held:
        async with commanded(held, sandbox_bench.work) as (guard, found):
            await sandbox_line.wait_ready(3)
            os.kill(found if killed == "supervisor" else guard, signal.SIGKILL)
            await sandbox_line.wait_gone()


@pytest.mark.slow
async def test_a_command_ends_within_the_bound_though_its_supervisor_is_stopped(
    tmp_path: Path, line: Lifeline
) -> None:
    held = unconfined(FAMILY.format(fifo=line.path))
    assert GRACE_SECONDS + 2 * KILLING_SECONDS_MAX < ENDING_SECONDS_MAX
    async with commanded(held, tmp_path, 0.05) as (_, found):
        await line.wait_ready(3)
        os.kill(found, signal.SIGSTOP)
    await line.wait_gone()


HANDING_ON = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
line = os.open(sys.argv[1], os.O_WRONLY)
os.write(line, b"ready\\n")
if os.fork():
    signal.pause()
while not os.fork():
    os.setsid()
"""


async def test_a_chain_of_processes_that_each_leave_the_group_at_once_is_caught(
    tmp_path: Path, line: Lifeline
) -> None:
    argv = [sys.executable, "-I", "-S", "-c", HANDING_ON, str(line.path)]
    async with commanded(SandboxedProcess(argv=argv, env=ENV), tmp_path, 0.05):
        await line.wait_ready(1)
    await line.wait_gone()
