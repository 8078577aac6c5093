"""The moments at which something of a command could be left, or come into being too late; each is made
to last, by stopping or killing a process right there.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from nousd.tools.process import fork_server as forking
from nousd.tools.process import supervisor
from nousd.tools.process.fork_server import Forked, ForkServer, fork_server
from nousd.tools.process.process_table import descendants
from nousd.tools.process.supervisor import (
    ENDING_SECONDS_MAX,
    GRACE_SECONDS,
    ProcessEnd,
    run_supervised,
)
from nousd.tools.process.supervisor_process import KILLING_SECONDS_MAX
from nousd.tools.sandbox.interface import Request, SandboxedProcess
from tests.harness.daemon import WAIT_SECONDS
from tests.tools.bench import FAMILY, REPOSITORY, Lifeline, another_daemon, supervising
from tests.tools.sandbox_bench import SandboxBench
from tests.tools.test_supervisor import DAEMON

LONG_SECONDS = 40.0
"""A grace period that no test waits for."""

SOON_SECONDS = 20
"""What happens without the grace period has happened by then, on any machine."""

PTRACE_DETACH = 17
PTRACE_SEIZE = 0x4206
PTRACE_O_TRACEEXIT = 0x40

ENV = {"PATH": os.environ["PATH"]}

# Waits for the first signal between the fork and the program.
LATE = """
import signal
become = first_process.become_program
def late(*args):
    signal.sigwait({signal.SIGTERM})
    return become(*args)
first_process.become_program = late
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
    """Start a command; provide the fork server and its supervisor."""
    program = supervisor._Program(held.argv, cwd, held.env, grace_seconds, held)
    null = os.open(os.devnull, os.O_RDWR)
    try:
        async with supervisor._supervise(program, [null] * 3, lambda: None) as command:
            server = fork_server().pid
            assert server is not None
            assert command.process is not None
            yield server, command.process.pid
    finally:
        os.close(null)


def children(parent: int) -> list[int]:
    return [process.id for process in descendants(parent) if process.parent == parent]


async def number_in(file: Path) -> int:
    """Return the number that a command writes into a file, once it is there."""
    while not (said := said_in(file)).endswith("\n"):  # noqa: ASYNC110
        await trio.sleep(0.01)
    return int(said)


def said_in(file: Path) -> str:
    return file.read_text() if file.exists() else ""


@contextmanager
def held_at_its_end(process: int) -> Iterator[None]:
    """Have a process that ends stop, for the length of the block, with nothing left that it could do."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.ptrace(PTRACE_SEIZE, process, None, ctypes.c_long(PTRACE_O_TRACEEXIT)) == 0
    try:
        yield
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        libc.ptrace(PTRACE_DETACH, process, None, None)


def unconfined(script: str) -> SandboxedProcess:
    return SandboxedProcess(argv=["/bin/sh", "-c", script], env=ENV)


async def test_a_command_whose_daemon_dies_between_its_fork_and_its_program_never_begins(
    tmp_path: Path,
) -> None:
    daemon, control = socket.socketpair()
    script = f"echo > {tmp_path}/effect; sleep 1000"
    with control, daemon:
        process = await trio.lowlevel.open_process(
            supervising(control, script, tmp_path, grace_seconds=LONG_SECONDS, changes=LATE),
            cwd=REPOSITORY,
            pass_fds=[control.fileno()],
        )
        daemon.send(supervisor.BEGIN)
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


@pytest.mark.parametrize("end", ["the daemon dies", "it is told to stop"])
async def test_a_command_that_has_no_leave_yet_never_begins_after_the_end(
    tmp_path: Path, end: str
) -> None:
    daemon, control = socket.socketpair()
    with control, daemon:
        process = await trio.lowlevel.open_process(
            supervising(control, "echo > effect", tmp_path),
            cwd=REPOSITORY,
            pass_fds=[control.fileno()],
        )
        control.close()
        with trio.fail_after(SOON_SECONDS):
            while not is_waiting_for_signals(process.pid):  # noqa: ASYNC110
                await trio.sleep(0.01)
            if end == "the daemon dies":
                daemon.close()
            else:
                process.terminate()
                with trio.socket.from_stdlib_socket(daemon.dup()) as told:
                    assert await told.recv(64) == b"exited -15\n"
            assert await process.wait() == 0
    assert not (tmp_path / "effect").exists()


async def test_a_command_that_has_no_leave_yet_never_begins_after_its_supervisor_was_killed(
    tmp_path: Path,
) -> None:
    daemon, control = socket.socketpair()
    with control, daemon:
        process = await trio.lowlevel.open_process(
            supervising(control, "echo > effect", tmp_path),
            cwd=REPOSITORY,
            pass_fds=[control.fileno()],
        )
        with trio.fail_after(SOON_SECONDS):
            while not (waiting := children(process.pid)):  # noqa: ASYNC110
                await trio.sleep(0.01)
            process.kill()
            await process.wait()
            await gone(*waiting)
    assert not (tmp_path / "effect").exists()


async def test_a_first_process_that_was_killed_before_its_leave_is_told_as_no_start(
    tmp_path: Path,
) -> None:
    daemon, control = socket.socketpair()
    with control, daemon:
        process = await trio.lowlevel.open_process(
            supervising(control, "echo > effect", tmp_path),
            cwd=REPOSITORY,
            pass_fds=[control.fileno()],
        )
        control.close()
        with trio.fail_after(SOON_SECONDS):
            while not (waiting := children(process.pid)):  # noqa: ASYNC110
                await trio.sleep(0.01)
            os.kill(waiting[0], signal.SIGKILL)
            await gone(*waiting)
            daemon.send(supervisor.BEGIN)
            with trio.socket.from_stdlib_socket(daemon.dup()) as told:
                assert await told.recv(64) == b""
            assert await process.wait() == 0
    assert not (tmp_path / "effect").exists()


async def test_a_command_that_a_sandbox_still_prepares_never_begins_after_the_end(
    tmp_path: Path,
) -> None:
    argv = ["/bin/sh", "-c", f"{sys.executable} -c '{PREPARING}'; exit 0"]
    held = SandboxedProcess(argv=argv, env=ENV, is_holder=True)
    async with commanded(held, tmp_path, LONG_SECONDS) as (_, found):
        with trio.fail_after(SOON_SECONDS):
            while not any(is_waiting_for_signals(each.id) for each in descendants(found)):  # noqa: ASYNC110
                await trio.sleep(0.01)
        below = [each.id for each in descendants(found)]
        with trio.fail_after(SOON_SECONDS):
            await end(found, *below)
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


async def end(found: int, *processes: int) -> None:
    """Ask a supervisor for the end of the command, and return when all of it has ended."""
    os.kill(found, signal.SIGTERM)
    await gone(found, *processes)


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
        async with commanded(process, bench.work, LONG_SECONDS) as (_, found):
            with trio.fail_after(SOON_SECONDS):
                while [state(each) for each in children(found)] != ["T"]:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            await end(found, *children(found))
    assert not (bench.work / "src/effect").exists()


async def test_a_command_dies_with_its_supervisor_whatever_group_it_moved_to(
    tmp_path: Path, line: Lifeline
) -> None:
    held = unconfined(FAMILY.format(fifo=line.path))
    async with commanded(held, tmp_path) as (_, found):
        await line.wait_ready(3)
        os.kill(found, signal.SIGKILL)
        await line.wait_gone()


@pytest.mark.slow(keep=1)
async def test_a_sandboxed_command_dies_with_its_supervisor_whatever_group_it_moved_to(
    sandbox_bench: SandboxBench, sandbox_line: Lifeline
) -> None:
    sandbox = sandbox_bench.find()
    assert sandbox is not None
    argv = ["/bin/sh", "-c", FAMILY.format(fifo=sandbox_line.path)]
    request = Request(argv=argv, env=ENV, workdir=sandbox_bench.work)
    with sandbox.hold(request) as held:
        async with commanded(held, sandbox_bench.work) as (_, found):
            await sandbox_line.wait_ready(3)
            os.kill(found, signal.SIGKILL)
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


# Leaves two generations of processes behind, as bubblewrap does when the command has left some.
HOLDING = """
import os, signal, sys
line = os.open(sys.argv[1], os.O_WRONLY)
if not os.fork():
    if not os.fork():
        os.write(line, b"ready\\n")
    signal.pause()
os.read(os.open(sys.argv[2], os.O_RDONLY), 1)
"""


async def test_what_a_holder_leaves_is_gone_when_its_end_is_told(
    tmp_path: Path, line: Lifeline
) -> None:
    go_on = tmp_path / "go on"
    os.mkfifo(go_on)
    argv = [sys.executable, "-I", "-S", "-c", HOLDING, str(line.path), str(go_on)]
    held = SandboxedProcess(argv=argv, env=ENV, is_holder=True)
    async with commanded(held, tmp_path, LONG_SECONDS) as (_, found):
        await line.wait_ready(1)
        (holder,) = children(found)
        go_on.write_bytes(b"x")
        await gone(holder)
    await line.wait_gone()


PATIENT = "supervisor.HOLDER_SECONDS = supervisor.KILLING_SECONDS_MAX = 1000"


async def test_an_end_is_told_while_the_first_process_of_a_namespace_still_dies(
    tmp_path: Path,
) -> None:
    go_on = tmp_path / "go on"
    os.mkfifo(go_on)
    script = 'sleep 1000 & echo $! >first; read go <"go on"'
    daemon, control = socket.socketpair()
    with control, daemon:
        process = await trio.lowlevel.open_process(
            supervising(control, script, tmp_path, is_holder=True, changes=PATIENT),
            cwd=REPOSITORY,
            pass_fds=[control.fileno()],
        )
        control.close()
        daemon.send(supervisor.BEGIN)
        told = trio.socket.from_stdlib_socket(daemon.dup())
        with trio.fail_after(SOON_SECONDS), told:
            first = await number_in(tmp_path / "first")
            with held_at_its_end(first):
                go_on.write_text("on\n")
                said = b""
                while b"exited 0" not in said:
                    said += await told.recv(64)
                assert is_alive(first)
            await process.wait()
        assert not is_alive(first)


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


# --- the fork server ---------------------------------------------------------------------------


async def run(script: str, cwd: Path) -> ProcessEnd:
    return await run_supervised(
        ["/bin/sh", "-c", script],
        cwd=cwd,
        env=ENV,
        on_output=lambda _: None,
        timeout_seconds=WAIT_SECONDS,
    )


async def test_killing_the_fork_server_ends_no_running_command_and_the_next_one_starts(
    tmp_path: Path, line: Lifeline
) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    ended = []

    async def command() -> None:
        script = f"exec 9>{line.path}; echo ready >&9; read word < go; [ $word = on ] && exit 7"
        ended.append(await run(script, tmp_path))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(command)
        await line.wait_ready(1)
        server = fork_server().pid
        assert server is not None
        os.kill(server, signal.SIGKILL)
        await gone(server)
        assert await run("exit 5", tmp_path) == ProcessEnd(code=5)
        assert fork_server().pid not in (server, None)
        assert not line.is_gone()
        go.write_text("on\n")
    assert ended == [ProcessEnd(code=7)]
    await line.wait_gone()


async def test_a_start_that_the_fork_server_did_not_live_to_see_is_made_once_by_a_new_one(
    tmp_path: Path,
) -> None:
    assert await run("exit 0", tmp_path) == ProcessEnd()
    server = fork_server().pid
    assert server is not None
    os.kill(server, signal.SIGSTOP)
    ended = []

    async def command() -> None:
        ended.append(await run("echo begun >> effect; exit 7", tmp_path))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(command)
        await trio.testing.wait_all_tasks_blocked()
        os.kill(server, signal.SIGKILL)
    assert ended == [ProcessEnd(code=7)]
    assert (tmp_path / "effect").read_text() == "begun\n"


async def test_a_command_that_no_fork_server_lives_to_start_fails_without_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork, killed = ForkServer.fork, []

    async def kill_and_fork(server: ForkServer, *args: Any) -> Forked | None:
        await server.prepare()
        assert server.pid is not None
        killed.append(server.pid)
        os.kill(server.pid, signal.SIGKILL)
        return await fork(server, *args)

    monkeypatch.setattr(ForkServer, "fork", kill_and_fork)
    ended = await run("echo begun > effect", tmp_path)
    assert ended == ProcessEnd(failure="could not be started: lost its supervisor")
    assert len(set(killed)) == 2
    assert not (tmp_path / "effect").exists()


FULL = """
import errno, os, sys
from nousd.tools.process import _fork_server_main as server
def fork():
    raise BlockingIOError(errno.EAGAIN, "no more processes")
os.fork = fork
server.main(sys.argv[1:])
"""


async def test_a_command_for_which_there_is_no_process_fails_and_the_fork_server_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (sys.executable, "-c", f"import sys; sys.path.append({str(REPOSITORY)!r})\n{FULL}")
    monkeypatch.setattr(forking, "_PROGRAM", program)
    servers = []
    for _ in range(2):
        ended = await run("echo begun > effect", tmp_path)
        assert ended.failure == "could not be started: Resource temporarily unavailable"
        servers.append(fork_server().pid)
    assert servers[0] == servers[1]
    assert not (tmp_path / "effect").exists()


STOPPED = """
exec 9>'{fifo}'
echo ready >&9
kill -STOP $PPID
while :; do sleep 1000; done
"""


@pytest.mark.slow
async def test_a_command_ends_within_the_bound_though_its_daemon_is_dead_and_its_supervisor_stopped(
    line: Lifeline,
) -> None:
    async with another_daemon(DAEMON, STOPPED.format(fifo=line.path)) as daemon:
        await line.wait_ready(1)
        daemon.kill()
        await line.wait_gone()


async def test_the_fork_server_ends_with_the_daemon(tmp_path: Path) -> None:
    servers: list[int | None] = []

    async def main() -> None:
        await run("exit 0", tmp_path)
        servers.append(fork_server().pid)

    await trio.to_thread.run_sync(trio.run, main)
    (server,) = servers
    assert server is not None
    await gone(server)


async def spare_of(server: int | None) -> int:
    """Return the process that the fork server has forked for the next command, once it waits."""
    assert server is not None
    with trio.fail_after(SOON_SECONDS):
        while len(found := children(server)) != 1 or not is_waiting_for_a_job(found[0]):  # noqa: ASYNC110
            await trio.sleep(0.01)
    return found[0]


def is_waiting_for_a_job(process: int) -> bool:
    first = children(process)
    return len(first) == 1 and all(
        len(descriptors_of(each)) == count and state(each) == "S"
        for each, count in ((process, 2), (first[0], 1))
    )


def descriptors_of(process: int) -> list[str]:
    try:
        return [str(each.readlink()) for each in Path(f"/proc/{process}/fd").iterdir()]
    except OSError:
        return []


async def test_two_processes_are_forked_ahead_for_the_next_command_and_hold_only_their_sockets(
    tmp_path: Path,
) -> None:
    assert await run("exit 0", tmp_path) == ProcessEnd()
    spare = await spare_of(fork_server().pid)
    (first,) = children(spare)
    held = [*descriptors_of(spare), *descriptors_of(first)]
    assert len(held) == len(set(held)) == 3
    assert all(each.startswith("socket:") for each in held)
    async with commanded(unconfined("sleep 1000"), tmp_path) as (_, found):
        assert found == spare
        assert children(found) == [first]


async def test_a_process_forked_ahead_has_memory_of_its_own_before_a_command_waits(
    tmp_path: Path,
) -> None:
    assert await run("exit 0", tmp_path) == ProcessEnd()
    spare = await spare_of(fork_server().pid)
    for process in (spare, *children(spare)):
        kib = kib_of_memory(process)
        assert kib["Private_Dirty"] > kib["Anonymous"] / 4, "its memory is still the server's"


def kib_of_memory(process: int) -> dict[str, int]:
    """Return the kibibytes of each kind of memory."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
    return {name.rstrip(":"): int(kib) for name, kib, _ in map(str.split, lines)}


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("killed", ["the supervisor", "the first process"])
async def test_a_command_begins_though_a_process_forked_ahead_was_killed(
    tmp_path: Path, end: signal.Signals, killed: str
) -> None:
    assert await run("exit 0", tmp_path) == ProcessEnd()
    server = fork_server().pid
    spare = await spare_of(server)
    first = children(spare)
    os.kill(spare if killed == "the supervisor" else first[0], end)
    await gone(*first, *([spare] if killed == "the supervisor" else []))
    assert await run("exit 5", tmp_path) == ProcessEnd(code=5)
    assert fork_server().pid == server


async def test_a_job_that_the_process_forked_ahead_did_not_live_to_read_begins_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await run("exit 0", tmp_path) == ProcessEnd()
    spare = await spare_of(fork_server().pid)
    os.kill(spare, signal.SIGSTOP)
    fork, handed_over = ForkServer.fork, trio.Event()

    async def tell_and_fork(server: ForkServer, *args: Any) -> Forked | None:
        try:
            return await fork(server, *args)
        finally:
            handed_over.set()

    monkeypatch.setattr(ForkServer, "fork", tell_and_fork)
    ended = []

    async def command() -> None:
        ended.append(await run("echo begun >> effect; exit 7", tmp_path))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(command)
        with trio.fail_after(SOON_SECONDS):
            await handed_over.wait()
        os.kill(spare, signal.SIGKILL)
    assert ended == [ProcessEnd(code=7)]
    assert (tmp_path / "effect").read_text() == "begun\n"


@pytest.mark.parametrize("killed", ["the daemon", "the fork server"])
async def test_the_processes_forked_ahead_end_with(killed: str, tmp_path: Path) -> None:
    spares: list[int] = []

    async def main() -> None:
        await run("exit 0", tmp_path)
        server = fork_server().pid
        spare = await spare_of(server)
        spares.extend((spare, *children(spare)))
        if killed == "the fork server":
            assert server is not None
            os.kill(server, signal.SIGKILL)
            await gone(server, *spares)

    await trio.to_thread.run_sync(trio.run, main)
    await gone(*spares)


async def test_the_memory_of_the_fork_server_holds_nothing_of_a_command(tmp_path: Path) -> None:
    words = [f"{place}-{os.urandom(8).hex()}" for place in ("argument", "variable", "folder")]
    argument, variable, folder = words
    (tmp_path / folder).mkdir()
    ended = await run_supervised(
        ["/bin/sh", "-c", f"echo {argument}"],
        cwd=tmp_path / folder,
        env={**ENV, "KEY": variable},
        on_output=lambda _: None,
        timeout_seconds=WAIT_SECONDS,
    )
    assert ended == ProcessEnd()
    server = fork_server().pid
    assert server is not None
    memory = memory_of(server)
    assert b"supervisor_process" in memory
    for word in words:
        assert word.encode() not in memory


def memory_of(process: int) -> bytes:
    """Return all that a process can read of its memory."""
    pieces = []
    with Path(f"/proc/{process}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            place, rights, *_ = line.split()
            first, last = (int(number, 16) for number in place.split("-"))
            if rights.startswith("rw"):
                memory.seek(first)
                pieces.append(memory.read(last - first))
    return b"".join(pieces)
