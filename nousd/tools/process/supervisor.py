"""Runs a command so that none of its processes outlives the call or the daemon.

Each command has a supervisor process (``supervisor_process``) between the daemon and itself, and the
fork server stands between the daemon and all supervisors. Below a supervisor, a forked process waits to
become the command (``first_process``). Supervisors and server are *subreapers*: all
processes that the command starts stay below them, even after a double fork and ``setsid``. The
supervisor ends them all, with SIGTERM and after a grace period with SIGKILL, when

- the first process of the command has ended (its other processes end with the call),
- the daemon closes its socket, on purpose (abort, time-out) or because it died for any reason,
- the supervisor receives SIGTERM.

It reports the exit code only when the last process is gone. So the end of a call is never delayed by a
child that keeps the output open, and never comes before its last effect. The first process of a
sandbox's PID namespace counts as gone when it is killed and has no child: it takes milliseconds to
release its namespaces, and can do nothing else.

A program of our own that starts no process has no supervisor: it runs in the process in which that would
run, and behaves like one to the daemon (``lone_process``).

A sandbox may leave some system calls of the command to the supervisor (``call_decider``); a separate
thread decides them, so that no number of them delays the supervisor.

The guarantee: ``GRACE_SECONDS`` and two seconds after the daemon's death no process of a command is
left, and until then no command begins that did not run before. These are the moments at which that could
fail; each has a test in ``tests/tools/test_supervisor_windows.py``:

- The daemon dies while the supervisor starts: the supervisor waits for a byte from the daemon before it
  lets its forked process go on, and that process ends when the supervisor does.
- The daemon dies after that, but before the forked process has become the command. Then the process
  needs no grace period, in which the command could begin. A socket that the exec closes tells the two
  apart; before the exec, SIGKILL is sent.
- A sandbox is still being prepared: ``_bubblewrap_main`` and bubblewrap do not get SIGTERM, so that the
  command can use its grace period, and the first process of a PID namespace ignores it. They would go on
  to begin the command. While no process runs below that first one, SIGKILL is sent.
- The fork server dies before it has handed over the job, or the supervisor before it has reported that
  the command begins: end of file comes before any line, so the job had no effect, and is given to the
  fork server again, once; to a new one if the first is dead.
- A process forks during a scan: the scan is repeated until the kernel reports that the supervisor has no
  child. A process that loses its parent becomes a child of the supervisor in the same step, whatever its
  group, session or namespace. For the same reason, a chain of processes that fork and exit is caught.
- The supervisor is killed (or fails): the first process of its command dies with it, whether or not its
  own helper has set a parent-death signal yet; the others become children of the fork server, which
  kills them.
- The fork server is killed: commands go on with their supervisors.
- The supervisor is stopped: the daemon kills it after ``ENDING_SECONDS_MAX``; if the daemon is dead, the
  fork server does so after ``grace_seconds`` and four seconds.

Rejected alternatives:

- A parent-death signal from daemon to command: it is tied to the *thread* that started the process,
  worker threads come and go, and it does not reach grandchildren. (Between supervisor and command it is
  right, because the supervisor's main thread forks: it covers the death of the supervisor itself.)
- Killing process groups from the daemon: it misses processes that left the group, and a killed daemon
  cannot do it.
- One supervisor for all commands: an orphan could belong to any of them, so that aborting one call could
  not find its stray processes.
- Only a PID namespace or cgroup per command: the cleanest, but it needs rights that the daemon may not
  have. A sandbox with a namespace runs *below* the supervisor, which then need not search for processes.

Known gaps: if a supervisor gets SIGKILL together with its fork server or after it (``pkill -9 nousd``),
only the first process of its command dies. In bubblewrap all others die with it; otherwise they live on.
A program that gains other rights (sudo) cannot be killed. A process stuck in the kernel dies when it
returns from there.

Linux only: subreapers and ``/proc``.
"""

from __future__ import annotations

import errno
import marshal
import os
import select
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, cast

import msgspec
import trio

from nousd.tools.anonymous_file import anonymous_file
from nousd.tools.interface import WaitStarted, has_started
from nousd.tools.process.fork_server import REPLY_SECONDS_MAX, Forked, fork_server
from nousd.tools.sandbox.interface import SandboxedProcess

if TYPE_CHECKING:
    from nousd.tools.process.jobs import Job

GRACE_SECONDS: Final = 0.5
"""Time between SIGTERM and SIGKILL."""

ENDING_SECONDS_MAX: Final = 5.0
"""How long a supervisor may take to end a command before it is killed itself. Its own limit is the
grace period plus two seconds."""

BEGIN: Final = b"\n"
"""The byte that lets the command of a supervisor begin."""

_READ_BYTES: Final = 64 * 1024
_STARTS_MAX: Final = 2
_DRAIN_READS_MAX: Final = 64
"""Maximum reads of each pipe after the end of the command. A pipe holds at most 1 MiB."""

OnOutput = Callable[[bytes], None]
"""Receives a chunk of output."""

WaitRoom = Callable[[], Awaitable[None]]
"""Returns when more output can be accepted; always a checkpoint."""


class ProcessEnd(msgspec.Struct, frozen=True):
    """The end of a command.

    Args:
        code: its exit code; 128 plus the signal's number if a signal killed it, as in shells.
        timed_out: whether it was ended after its time-out.
        failure: why its end is unknown; ``code`` is then meaningless.
        exceeded: the name of the limit that it exceeded and was ended for.
    """

    code: int = 0
    timed_out: bool = False
    failure: str | None = None
    exceeded: str | None = None


async def run_supervised(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    on_output: OnOutput,
    on_errors: OnOutput | None = None,
    wait_room: WaitRoom = trio.lowlevel.checkpoint,
    timeout_seconds: float,
    grace_seconds: float = GRACE_SECONDS,
    sandboxed: SandboxedProcess | None = None,
    wait_started: WaitStarted = has_started,
) -> ProcessEnd:
    """Run a program to its end. Cancelling ends it first, then raises ``trio.Cancelled``.

    Args:
        argv: the absolute path of the program, and its arguments.
        env: its whole environment.
        on_output: called in the event loop; nothing more is read until it returns.
        on_errors: the same for stderr, which then has its own pipe: each stream keeps its order, and the
            stream whose data was there first is read first. Without it, both streams share a pipe, and
            reach ``on_output`` in the order of writing.
        wait_room: awaited after each chunk before more is read; a command that prints faster waits. At
            its end up to 4 MiB more may come without waiting.
        timeout_seconds: after this time it is ended like a cancelled one; its output is still delivered.
        grace_seconds: the time between SIGTERM and SIGKILL.
        sandboxed: the sandbox; its ``argv`` and ``env`` already include those of the program.
        wait_started: awaited when all is ready, before the program begins. If it raises, the program
            never begins.

    Returns:
        The end of the program. One that cannot be executed has exit code 127, and the reason in its
        output.
    """
    try:
        with ExitStack() as stack:
            inherited = stack.enter_context(ExitStack())
            outputs = stack.enter_context(_Outputs())
            streams = [_open_null(inherited), outputs.pipe(on_output, stack, inherited)]
            errors = None if on_errors is None else outputs.pipe(on_errors, stack, inherited)
            streams.append(streams[-1] if errors is None else errors)
            program = _Program(argv, cwd, env, grace_seconds, sandboxed, wait_started)
            async with _supervise(program, streams, inherited.close) as command:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(outputs.pass_on, wait_room)
                    with trio.move_on_after(timeout_seconds) as limit:
                        await command.wait_ended()
                    if limit.cancelled_caught:
                        await command.end()
                    nursery.cancel_scope.cancel()
                outputs.drain()
                return command.outcome(timed_out=limit.cancelled_caught)
    except OSError as error:
        return ProcessEnd(failure=f"could not be started: {error.strerror}")


class Conversation(NamedTuple):
    """The streams of a running program.

    Args:
        wait: returns when every process of the program is gone.
        code: returns the exit code of the program, above 128 after a signal; None while it is unknown.
    """

    stdin: trio.abc.SendStream
    stdout: trio.abc.ReceiveStream
    stderr: trio.abc.ReceiveStream
    wait: Callable[[], Awaitable[None]]
    code: Callable[[], int | None] = lambda: None


@asynccontextmanager
async def open_conversation(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], grace_seconds: float = GRACE_SECONDS
) -> AsyncIterator[Conversation]:
    """Start a program and open its streams; end it, with all its processes, at the end of the block.

    Both outputs end when the last process of the program is gone. For a program that cannot be executed,
    stderr holds the reason and ends.

    Raises:
        OSError: no process could be started.
    """
    async with AsyncExitStack() as stack:
        inherited = stack.enter_context(ExitStack())
        ours: list[trio.lowlevel.FdStream] = []
        theirs: list[int] = []
        for number in range(3):
            read_end, write_end = os.pipe()
            own_end, program_end = (write_end, read_end) if number == 0 else (read_end, write_end)
            ours.append(await stack.enter_async_context(trio.lowlevel.FdStream(own_end)))
            inherited.callback(os.close, program_end)
            theirs.append(program_end)
        program = _Program(argv, cwd, env, grace_seconds)
        command = await stack.enter_async_context(_supervise(program, theirs, inherited.close))
        stdin, stdout, stderr = ours
        yield Conversation(stdin, stdout, stderr, command.wait_ended, command.code)


class _Program(NamedTuple):
    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    grace_seconds: float
    sandboxed: SandboxedProcess | None = None
    wait_started: WaitStarted = has_started

    def job(self, control: int, streams: Sequence[int]) -> tuple[Job, list[int]]:
        """Return the supervisor's job, and the descriptors for its ``places``."""
        numbers: dict[int, list[int]] = {}
        for number, descriptor in enumerate(streams):
            numbers.setdefault(descriptor, []).append(number)
        sandboxed = self.sandboxed
        for descriptor in (control, *(sandboxed.descriptors if sandboxed else ())):
            numbers[descriptor] = [descriptor]
        job: Job = {
            "argv": list(self.argv),
            "cwd": str(self.cwd),
            "environment": dict(self.env),
            "grace_seconds": self.grace_seconds,
            "limits": (sandboxed.is_holder, *msgspec.structs.astuple(sandboxed.limits))
            if sandboxed
            else (False, 0, 0, 0),
            "control": control,
            "asks_on": -1 if sandboxed is None or sandboxed.asks_on is None else sandboxed.asks_on,
            "places": list(numbers.values()),
        }
        return job, list(numbers)


def _open_null(stack: ExitStack) -> int:
    descriptor = os.open(os.devnull, os.O_RDWR)
    stack.callback(os.close, descriptor)
    return descriptor


@asynccontextmanager
async def _supervise(
    program: _Program, streams: Sequence[int], close_streams: Callable[[], None]
) -> AsyncIterator[_RunningSupervisor]:
    """Start a program, and end it at the end of the block.

    Args:
        streams: the descriptors of its stdin, stdout and stderr.
        close_streams: closes them; called when the program has them.

    Raises:
        OSError: it cannot be started.
    """
    for _ in range(_STARTS_MAX):
        async with _attempt(program, streams) as command:
            if await command.has_begun():
                close_streams()
                yield command
                return
        if command.has_spoken:
            break
    raise OSError(errno.EIO, "lost its supervisor")


@asynccontextmanager
async def _attempt(program: _Program, streams: Sequence[int]) -> AsyncIterator[_RunningSupervisor]:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            job, descriptors = program.job(theirs.fileno(), streams)
            with anonymous_file("job", marshal.dumps(cast("Any", job))) as file:
                process = await fork_server().fork(program.grace_seconds, [file, *descriptors])
        decides = program.sandboxed is not None and program.sandboxed.asks_on is not None
        command = _RunningSupervisor(process, trio.socket.from_stdlib_socket(ours), decides=decides)
        try:
            await program.wait_started()
            with suppress(OSError):  # it may have died meanwhile
                ours.send(BEGIN)
            yield command
        finally:
            with trio.CancelScope(shield=True):
                await command.end()
                await command.close()


class _Outputs:
    """The pipes that a program writes to, read in the order in which they became ready."""

    def __init__(self) -> None:
        self._ready = select.epoll()
        self._callbacks: dict[int, OnOutput] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ready.close()

    def pipe(self, on_output: OnOutput, ours: ExitStack, theirs: ExitStack) -> int:
        """Open a pipe; return its write end. Both ends are closed with their stacks."""
        output, write_end = os.pipe()
        ours.callback(os.close, output)
        theirs.callback(os.close, write_end)
        os.set_blocking(output, False)
        self._ready.register(output, select.EPOLLIN)
        self._callbacks[output] = on_output
        return write_end

    async def pass_on(self, wait_room: WaitRoom) -> None:
        """Pass on output until every pipe has ended; read nothing while there is no room."""
        while self._callbacks:
            await trio.lowlevel.wait_readable(self._ready)
            self._pass_on_ready()
            await wait_room()

    def drain(self) -> None:
        """Pass on the output that is left in the pipes, without waiting for their end."""
        for _ in range(_DRAIN_READS_MAX):
            if not self._pass_on_ready():
                return

    def _pass_on_ready(self) -> bool:
        """Pass on a chunk of each pipe that has one; return whether any had."""
        ready = self._ready.poll(0)
        for output, _ in ready:
            chunk = os.read(output, _READ_BYTES)
            if chunk:
                self._callbacks[output](chunk)
            else:
                self._ready.unregister(output)
                del self._callbacks[output]
        return bool(ready)


class _RunningSupervisor:
    """A running supervisor.

    Args:
        process: its process; None if the fork server died during the request.
        control: the socket that receives its lines; shutting down our side ends the command.
        decides: whether it carries out system calls of the command, even one of a command just killed.
    """

    def __init__(
        self, process: Forked | None, control: trio.socket.SocketType, *, decides: bool
    ) -> None:
        self.process = process
        self._control = control
        self._decides = decides
        self._report = b""
        self._has_exited = False

    @property
    def has_spoken(self) -> bool:
        """Whether it has sent a line; until then the job has had no effect."""
        return b"\n" in self._report

    async def has_begun(self) -> bool:
        """Return whether the command begins; False if the supervisor died before that.

        Raises:
            OSError: it cannot begin.
        """
        with trio.move_on_after(REPLY_SECONDS_MAX):
            while not (self._has_exited or self.has_spoken):
                await self._listen()
        if (number := self._number_after(b"failed")) is not None:
            raise OSError(number, os.strerror(number))
        return self.has_spoken

    async def wait_ended(self) -> None:
        """Wait until every process of the command is gone, or the supervisor itself."""
        while not self._has_exited:
            await self._listen()

    async def _listen(self) -> None:
        try:
            data = await self._control.recv(4096)
        except ConnectionError:  # it died without reading all that we sent
            data = b""
        self._report += data
        self._has_exited = not data or (b"exited" in self._report and data.endswith(b"\n"))

    async def end(self) -> None:
        """End the command if it has not ended; bounded in time."""
        if self._has_exited:
            return
        with suppress(OSError):  # it may have died meanwhile
            self._control.shutdown(socket.SHUT_WR)
        with trio.move_on_after(ENDING_SECONDS_MAX):
            await self.wait_ended()
        if self._code() is None:
            self._kill()

    async def close(self) -> None:
        """Release its process; first wait for its death if it may still have an effect."""
        if self.process is not None:
            if self._decides or self._code() is None:
                await self.process.wait()
            self.process.close()

    def _kill(self) -> None:
        """Kill it. The command's first process dies with it, and the fork server kills the others."""
        if self.process is not None:
            self.process.kill()

    def outcome(self, *, timed_out: bool) -> ProcessEnd:
        code = self.code()
        if code is None:
            self._kill()
            return ProcessEnd(failure="lost its supervisor", timed_out=timed_out)
        return ProcessEnd(
            code=code,
            timed_out=timed_out,
            exceeded=self._word_after(b"exceeded"),
        )

    def code(self) -> int | None:
        """Return the exit code of the command, above 128 after a signal; None while it is unknown."""
        code = self._code()
        return code if code is None or code >= 0 else 128 - code

    def _code(self) -> int | None:
        return self._number_after(b"exited")

    def _number_after(self, word: bytes) -> int | None:
        found = self._word_after(word)
        return int(found) if found is not None and found.lstrip("-").isdigit() else None

    def _word_after(self, word: bytes) -> str | None:
        for line in self._report.splitlines():
            name, _, rest = line.partition(b" ")
            if name == word:
                return rest.decode("ascii", "replace")
        return None
