"""The supervisor process: holds one command, and lets nothing of it survive.

Its arguments: CONTROL GRACE_MS ENVIRONMENT PROGRAM ARGUMENT...; its input and output are the command's.
See ``nousd.tools.supervisor`` for the whole design. This file is a program of its own: standard library
only, single-threaded, small enough to start in a few milliseconds.

CONTROL is a socket to the daemon. The daemon never writes to it: its end of file, for whatever
reason, means "end the command". Two lines are written to it: ``started PID`` before the command has
begun, and when every process of it is gone ``exited CODE`` (negative: minus the signal's number).
ENVIRONMENT is a file with the command's, as NAME=VALUE with a NUL behind each: unlike arguments, nobody
else on the machine sees it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

KILLING_SECONDS_MAX = 2.0
"""How long processes may take to die of SIGKILL (stuck in the kernel, or not ours to kill)."""


def main(arguments: list[str]) -> None:
    control = socket.socket(fileno=int(arguments[0]))
    control.set_inheritable(False)
    grace_seconds = int(arguments[1]) / 1000
    environment = _environment(int(arguments[2]))

    # Orphans of the command become our children, whatever group or session they moved to.
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake = _wake_on_signals()
    if _is_hung_up(control):
        # The daemon died or gave up while this program started: nothing may begin any more.
        _say(control, f"exited {-signal.SIGTERM}")
        return
    child = _start(arguments[3:], environment, control)
    command = Command(child, wake)
    command.wait_until_over_or(control)
    command.end(grace_seconds)
    _say(control, f"exited {command.code}")


def _environment(descriptor: int) -> dict[str, str]:
    with open(descriptor, "rb") as file:
        items = file.read().split(b"\0")[:-1]
    return dict(os.fsdecode(item).split("=", 1) for item in items)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _wake_on_signals() -> int:
    """Returns a descriptor from which the numbers of arriving signals can be read."""
    wake, write_end = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return wake


def _is_hung_up(control: socket.socket) -> bool:
    poll = select.poll()
    poll.register(control, select.POLLIN)
    return bool(poll.poll(0))


def _start(program: list[str], environment: dict[str, str], control: socket.socket) -> int:
    supervisor = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            # Here, not behind the fork: a command that kills its supervisor at once is told of as well.
            _say(control, f"started {os.getpid()}")
            _become(program, environment, supervisor)
        except OSError as error:
            os.write(2, f"{program[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)
    return child


def _become(program: list[str], environment: dict[str, str], supervisor: int) -> None:
    os.setsid()
    # Right here because we have one thread only: the signal follows the thread that forked.
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        return
    # Python ignores these two; a command expects to die of them.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.execve(program[0], program, environment)  # noqa: S606


def _say(control: socket.socket, line: str) -> None:
    # The daemon may be gone; then there is nobody left to tell.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        control.sendall(line.encode() + b"\n", socket.MSG_NOSIGNAL)


class Command:
    """The command's first process and all that came from it."""

    def __init__(self, child: int, wake: int) -> None:
        self._child = child
        self._wake = wake
        self.code: int | None = None

    def wait_until_over_or(self, control: socket.socket) -> None:
        """Returns when the first process has ended, the daemon hung up, or we are told to stop."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(control, select.POLLIN)
        while self.code is None:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if control.fileno() in ready or self._signals() - {signal.SIGCHLD}:
                return
            self._reap()

    def end(self, grace_seconds: float) -> None:
        """Ends what is left: SIGTERM, and SIGKILL for what is still there after the grace."""
        deadline = time.monotonic() + grace_seconds
        if self._reap():
            return
        self._signal_all(signal.SIGTERM)
        while not self._reap():
            seconds_left = deadline - time.monotonic()
            if seconds_left <= -KILLING_SECONDS_MAX:
                return
            if seconds_left <= 0:
                self._signal_all(signal.SIGKILL)
            # Again and again: a process may fork while we look for its children.
            select.select([self._wake], [], [], seconds_left if seconds_left > 0 else 0.01)
            self._signals()

    def _signals(self) -> set[int]:
        try:
            return set(os.read(self._wake, 4096))
        except BlockingIOError:
            return set()

    def _reap(self) -> bool:
        """Collects the dead. Returns whether nobody is left.

        No child means no descendant: every process below us has a living ancestor that is our
        child, or was handed to us when its parent died.
        """
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if process == 0:
                return False
            if process == self._child:
                self.code = os.waitstatus_to_exitcode(status)

    def _signal_all(self, number: int) -> None:
        """Signals the command's group, which no fork can escape, and who has left the group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child, number)
        for process, group in _descendants(os.getpid()):
            if group != self._child:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process, number)


def _descendants(root: int) -> Iterator[tuple[int, int]]:
    """Yields (process, process group) of everything below ``root``."""
    children: dict[int, list[tuple[int, int]]] = {}
    for process, parent, group in _processes():
        children.setdefault(parent, []).append((process, group))
    ahead = list(children.get(root, ()))
    while ahead:
        found = ahead.pop()
        yield found
        ahead.extend(children.get(found[0], ()))


def _processes() -> Iterator[tuple[int, int, int]]:
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
            # The program's name stands in parentheses and may hold anything.
            _state, parent, group, *_rest = file.read().rpartition(b")")[2].split()
            yield int(name), int(parent), int(group)


if __name__ == "__main__":
    main(sys.argv[1:])
