"""Runs a command so that nothing of it outlives the call, nor the daemon.

One supervisor process per command (``_supervisor_main.py``) stands between the daemon and the command,
and between the daemon and that its guard. Each is a *subreaper*: whatever the command starts stays below
it, also after a double fork and ``setsid``. The supervisor ends all of that, SIGTERM and after a grace
period SIGKILL, when

- the command's first process has ended (what a call starts ends with the call),
- the daemon hangs up its socket, on purpose (abort, timeout) or because it died for any reason,
- someone sends it SIGTERM.

Only when the last process is gone does it report the exit code. So the end of a call is never delayed
by a child that keeps the output open, and never comes before its last effect.

A sandbox may leave some system calls of the command to it (``metadata_calls``); they are decided in a
thread of their own, so that no number of them keeps it from the above.

The bound: ``GRACE_SECONDS`` and two seconds after the daemon's death nothing of a command is left, and
until then nothing of it begins that was not running. At these moments that could fail; each has a test
in ``tests/tools/test_supervisor_windows.py``:

- The daemon dies while the supervisor starts: it looks at the socket before it forks.
- It dies after that, but before the forked process has become the command. SIGTERM would be swallowed by
  the handler inherited from the supervisor, so the command would begin, and run for the grace period
  without having been told. A pipe that the exec closes says which it is; before it, SIGKILL.
- A sandbox still prepares: ``_bubblewrap_main`` and bubblewrap are spared SIGTERM, so that the command
  may use its grace period, and the first process of a PID namespace is deaf to it. They would go on to
  begin the command. While nothing runs below that first process, SIGKILL.
- A process forks while we look: the look is repeated until the kernel says that we have no child. A
  process cannot leave its ancestors without becoming our child in the same step, whatever its group,
  session or namespace. A chain of processes that hand on and leave is caught for the same reason.
- The supervisor is killed (or fails): its command's first process dies with it, whether or not its own
  helper has set a parent-death signal yet; all others become the guard's, which kills them.
- The guard is killed: the supervisor gets SIGTERM and ends the command as usual.
- The supervisor is stopped: the guard kills it and the rest after ``grace_seconds`` and four seconds.

Rejected alternatives:

- A parent-death signal from daemon to command: it is tied to the *thread* that started the process,
  worker threads come and go, and it does not reach grandchildren. (Between supervisor and command, where
  there is one thread only, it is right: it covers the death of the supervisor itself.)
- Killing process groups from the daemon: misses processes that left the group, and a killed daemon
  kills nobody.
- One supervisor for all commands: an orphan that reached it could belong to any of them, so that
  aborting one call could not find its stray processes. It would start faster by some 15 ms.
- A PID namespace or cgroup per command alone: the cleanest, but needs rights that we may not have. A
  sandbox with a namespace stands *below* the supervisor, which then need not search for processes.

Left open: if guard and supervisor are killed with SIGKILL in the same moment (``pkill -9 nousd``), only
the first process dies, in bubblewrap with all others; without it the rest lives on. A program that gains
other rights (sudo) is not ours to kill. What is stuck in the kernel dies when it comes out of it.

Linux only: subreapers and ``/proc``.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
import trio

from nousd.tools.anonymous_file import anonymous_file
from nousd.tools.sandbox.interface import SandboxedProcess

GRACE_SECONDS: Final = 0.5
"""Between SIGTERM and SIGKILL."""

ENDING_SECONDS_MAX: Final = 5.0
"""How long a supervisor may take to end a command before it is killed itself. Its own bound is the
grace period and two seconds."""

_PROGRAM: Final = Path(__file__).with_name("_supervisor_main.py")
_READ_BYTES: Final = 64 * 1024
_DRAIN_READS_MAX: Final = 64
"""A pipe holds 1 MiB at most: what is read after the end was in it then."""

OnOutput = Callable[[bytes], None]
"""Receives a chunk of stdout and stderr, merged in the order in which they were written."""

WaitRoom = Callable[[], Awaitable[None]]
"""Returns when more output can be taken; a checkpoint in any case."""


class Ended(msgspec.Struct, frozen=True):
    """The end of a command.

    Args:
        code: its exit code; for a death by signal 128 plus the signal's number, as in shells.
        timed_out: whether it was ended after its time-out.
        failure: why its end is unknown; ``code`` then means nothing.
        exceeded: the limit for which it was ended.
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
    wait_room: WaitRoom = trio.lowlevel.checkpoint,
    timeout_seconds: float,
    grace_seconds: float = GRACE_SECONDS,
    held: SandboxedProcess | None = None,
) -> Ended:
    """Run a program to its end. Cancelling ends it first, then raises ``trio.Cancelled``.

    Args:
        argv: the absolute path of the program, and its arguments.
        env: its whole environment.
        on_output: called in the event loop; nothing more is read until it returns.
        wait_room: awaited after each chunk before more is read; a command that prints faster waits. At
            its end up to 4 MiB more may come without that.
        timeout_seconds: it is then ended like a cancelled one; its output is still delivered.
        grace_seconds: the time between SIGTERM and SIGKILL.
        held: the sandbox's additions around the program, which is then its ``argv`` with its ``env``.

    Returns:
        Also for programs that cannot be started: exit code 127, and the reason in the output.
    """
    try:
        async with _supervised(argv, cwd, env, grace_seconds, held) as command:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(command.read_output, on_output, wait_room)
                with trio.move_on_after(timeout_seconds) as limit:
                    await command.wait_ended()
                if limit.cancelled_caught:
                    await command.end()
                nursery.cancel_scope.cancel()
            command.drain_output(on_output)
            return command.outcome(timed_out=limit.cancelled_caught)
    except OSError as error:
        return Ended(failure=f"could not be started: {error.strerror}")


@asynccontextmanager
async def supervised_conversation(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], grace_seconds: float = GRACE_SECONDS
) -> AsyncIterator[trio.Process]:
    """Start a program to talk to; at the end of the block it is ended, with all that it started.

    Its ``stdin``, ``stdout`` and ``stderr`` are streams. Both outputs end when the last process of the
    program is gone; a program that cannot be started says so on stderr and ends.

    Raises:
        OSError: nothing could be started.
    """
    with _control() as (ours, theirs):
        process = await _open(argv, cwd, env, grace_seconds, control=theirs, output=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        async with process.stdin, process.stdout, process.stderr, _running(process, ours, -1):
            yield process


@asynccontextmanager
async def _supervised(
    argv: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    grace_seconds: float,
    held: SandboxedProcess | None = None,
) -> AsyncIterator[_Supervised]:
    """Start a program whose output is read from a pipe; at the end of the block it is ended."""
    read_end, write_end = os.pipe()
    with ExitStack() as stack:
        stack.callback(os.close, read_end)
        with ExitStack() as inherited:
            inherited.callback(os.close, write_end)
            ours, theirs = stack.enter_context(_control())
            process = await _open(
                argv, cwd, env, grace_seconds, control=theirs, output=write_end, held=held
            )
        os.set_blocking(read_end, False)
        async with _running(process, ours, read_end) as command:
            yield command


@asynccontextmanager
async def _running(
    process: trio.Process, control: socket.socket, output: int
) -> AsyncIterator[_Supervised]:
    """Provide a started supervisor; at the end of the block its command is ended, and then it."""
    command = _Supervised(process, trio.socket.from_stdlib_socket(control), output)
    try:
        yield command
    finally:
        with trio.CancelScope(shield=True):
            await command.end()
            await process.wait()


@contextmanager
def _control() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield our end of the socket to a supervisor, and the end that it inherits."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


async def _open(
    argv: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    grace_seconds: float,
    *,
    control: socket.socket,
    output: int,
    held: SandboxedProcess | None = None,
) -> trio.Process:
    """Start a supervisor; ``output`` is where the command's goes, ``PIPE`` for a conversation."""
    talks = output == subprocess.PIPE
    with control, anonymous_file("environment", _encoded(env)) as environment:
        settings = (control.fileno(), round(grace_seconds * 1000), environment, _limits(held))
        return await trio.lowlevel.open_process(
            [sys.executable, "-I", "-S", str(_PROGRAM), *map(str, settings), *argv],
            stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE if talks else subprocess.STDOUT,
            cwd=cwd,
            env={},
            pass_fds=[control.fileno(), environment, *(held.descriptors if held else ())],
            start_new_session=True,
        )


def _encoded(env: Mapping[str, str]) -> bytes:
    """Return an environment in the form that the supervisor reads."""
    return b"".join(os.fsencode(f"{name}={value}\0") for name, value in env.items())


def _limits(held: SandboxedProcess | None) -> str:
    """Return the supervisor's argument for limits."""
    if held is None:
        return "0,0,0,0"
    limits = held.limits
    numbers = (held.is_holder, limits.memory_bytes, limits.processes, limits.file_bytes)
    asks = () if held.asks_on is None else (held.asks_on,)
    return ",".join(str(int(number)) for number in (*numbers, *asks))


class _Supervised:
    """A running supervisor.

    Args:
        control: receives ``started PID`` and ``exited CODE``; shutting down our side ends the command.
        output: the reading end of the command's output, non-blocking.
    """

    def __init__(self, process: trio.Process, control: trio.socket.SocketType, output: int) -> None:
        self._process = process
        self._control = control
        self._output = output
        self._report = b""
        self._over = False

    async def read_output(self, on_output: OnOutput, wait_room: WaitRoom) -> None:
        """Pass on output until it ends."""
        while True:
            await trio.lowlevel.wait_readable(self._output)
            chunk = os.read(self._output, _READ_BYTES)
            if not chunk:
                return
            on_output(chunk)
            await wait_room()

    def drain_output(self, on_output: OnOutput) -> None:
        """Pass on the rest of the pipe, without waiting for its end."""
        with suppress(BlockingIOError):
            for _ in range(_DRAIN_READS_MAX):
                chunk = os.read(self._output, _READ_BYTES)
                if not chunk:
                    return
                on_output(chunk)

    async def wait_ended(self) -> None:
        """Return when every process of the command is gone, or the supervisor is."""
        while not self._over:
            data = await self._control.recv(4096)
            self._report += data
            self._over = not data or (b"exited" in self._report and data.endswith(b"\n"))

    async def end(self) -> None:
        """End the command if it has not ended; bounded in time."""
        if self._over:
            return
        with suppress(OSError):  # it may have died meanwhile
            self._control.shutdown(socket.SHUT_WR)
        with trio.move_on_after(ENDING_SECONDS_MAX):
            await self.wait_ended()
        if self._code() is None:
            self._kill()

    def _kill(self) -> None:
        """Kill the command without the supervisor's help: its death takes the first process, we kill
        its group.
        """
        self._process.kill()
        pid = self._number_after(b"started")
        if pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def outcome(self, *, timed_out: bool) -> Ended:
        code = self._code()
        if code is None:
            self._kill()
            return Ended(failure="lost its supervisor", timed_out=timed_out)
        return Ended(
            code=code if code >= 0 else 128 - code,
            timed_out=timed_out,
            exceeded=self._word_after(b"exceeded"),
        )

    def _code(self) -> int | None:
        return self._number_after(b"exited")

    def _number_after(self, word: bytes) -> int | None:
        found = self._word_after(word)
        return int(found) if found is not None and found.lstrip("-").isdigit() else None

    def _word_after(self, word: bytes) -> str | None:
        for line in self._report.splitlines():
            name, _, said = line.partition(b" ")
            if name == word:
                return said.decode("ascii", "replace")
        return None
