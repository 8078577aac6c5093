"""The fork server: a small process that forks the supervisors of commands with all modules loaded.

Its argument is SOCKET. Each start is one message over this socket: GRACE_MS, with descriptors of a job
and of the job's ``places``. The reply is PID, with a pidfd of the new process, or -ERRNO if it could not
be forked. The other end, and the reasons for this design, are in ``nousd.tools.process.fork_server``.

The server has one thread and never reads a job. The forked process reads it, so no key is ever in memory
that later processes inherit. A forked process first closes all descriptors but its own, and never
returns to the loop.

The server is a *subreaper*: it becomes the parent of the processes of a killed supervisor, and kills all
children that it has not forked. When the daemon has ended, the server ends too: at once if nothing runs,
else when the supervisors have ended their commands. A supervisor that does not, because it is stopped,
is killed.

A separate program: standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import marshal
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

# Last, so that no folder of the project shadows a module of the standard library.
sys.path.append(os.path.abspath(f"{__file__}/../../../.."))  # noqa: PTH100

from nousd.tools.own_program import load_programs
from nousd.tools.process import supervisor_process as supervisor

DESCRIPTORS_MAX = 64
"""Maximum descriptors with one message."""

LINGER_SECONDS = 2 * supervisor.KILLING_SECONDS_MAX
"""How long supervisors may take after the daemon's death, in addition to the grace period."""

_LOOK_SECONDS = 0.01


def main(arguments: list[str]) -> None:
    requests = socket.socket(fileno=int(arguments[0]))
    requests.set_inheritable(False)
    supervisor.become_subreaper()
    load_programs()
    # Python sets a locale variable by itself; a command gets only its own variables.
    os.environ.clear()
    # Without this, garbage collection would write to pages that all processes share.
    gc.collect()
    gc.freeze()
    Server(requests).run()


class Server:
    """The loop."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._grace_seconds: dict[int, float] = {}
        """Supervisor's process id -> how long its command may take to end after the daemon's death."""
        self._wake = supervisor.wake_on_signals((signal.SIGCHLD,))

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._requests, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._wake in ready:
                self._reap()
            if self._requests.fileno() in ready and not self._answer():
                break
        self._outlive()

    # --- starts --------------------------------------------------------------------------------

    def _answer(self) -> bool:
        """Fork the process that one message requests; return False if the daemon is gone."""
        try:
            message, descriptors, _, _ = socket.recv_fds(
                self._requests, 64, DESCRIPTORS_MAX, socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionError:
            return False
        if not message:
            return False
        try:
            self._fork(int(message) / 1000, descriptors)
        except OSError as error:
            self._reply(-(error.errno or errno.EIO))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _fork(self, grace_seconds: float, descriptors: Sequence[int]) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, supervisor.SIGNALS)
        try:
            process = os.fork()
            if process == 0:
                _begin(descriptors)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, supervisor.SIGNALS)
        self._grace_seconds[process] = grace_seconds
        # Only we can reap it, so its process id has not been reused.
        handle = os.pidfd_open(process)
        self._reply(process, handle)
        os.close(handle)

    def _reply(self, number: int, *descriptors: int) -> None:
        with contextlib.suppress(ConnectionError):  # the daemon is gone; the next message says so
            socket.send_fds(self._requests, [str(number).encode()], descriptors)

    # --- ends ----------------------------------------------------------------------------------

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)
        is_clean = True
        while (ended := _reap_child()) is not None:
            process, status = ended
            is_clean &= self._grace_seconds.pop(process, None) is not None and status == 0
        if not is_clean:
            self._kill_strangers()

    def _kill_strangers(self) -> None:
        """Kill the processes of a dead supervisor, until a scan finds none.

        A process that forks during a scan can hide its child from it; but then its own death wakes us
        for the next scan.
        """
        deadline = time.monotonic() + supervisor.KILLING_SECONDS_MAX
        while strangers := self._strangers():
            for process in strangers:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process, signal.SIGKILL)
            if time.monotonic() > deadline:
                return  # stuck in the kernel, or not ours to kill
            select.select([self._wake], [], [], _LOOK_SECONDS)
            while (ended := _reap_child()) is not None:
                self._grace_seconds.pop(ended[0], None)

    def _strangers(self) -> list[int]:
        """Return the processes below us that belong to no living supervisor."""
        return [
            process.id
            for process in supervisor.descendants(os.getpid(), self._grace_seconds)
            if not process.is_dead
        ]

    def _outlive(self) -> None:
        """Wait until all supervisors have ended their commands; kill those that do not."""
        grace_seconds = max(self._grace_seconds.values(), default=0.0)
        deadline = time.monotonic() + grace_seconds + LINGER_SECONDS
        while self._grace_seconds and (seconds_left := deadline - time.monotonic()) > 0:
            select.select([self._wake], [], [], seconds_left)
            self._reap()
        for process in self._grace_seconds:
            os.kill(process, signal.SIGKILL)
        self._grace_seconds.clear()
        self._kill_strangers()


def _reap_child() -> tuple[int, int] | None:
    """Reap a child that has ended; return its process id and status, None if there is none."""
    try:
        process, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (process, status) if process else None


# --- in the forked process ---------------------------------------------------------------------


def _begin(descriptors: Sequence[int]) -> NoReturn:
    """Become the supervisor that the first descriptor describes, and exit."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        _close_all_but(descriptors)
        job = _read(descriptors[0])
        _place(descriptors[1:], job["places"])
        supervisor.run(job)
        code = 0
    except SystemExit as exit:  # raised by a program that was loaded beforehand
        code = int(exit.code or 0)
    finally:
        # No exit handler or cleanup of the server may run here.
        if sys.exc_info()[1] is not None:
            sys.excepthook(*sys.exc_info())
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _close_all_but(kept: Sequence[int]) -> None:
    first = 0
    for descriptor in sorted(kept):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _read(descriptor: int) -> supervisor.Job:
    data = os.read(descriptor, os.fstat(descriptor).st_size)
    os.close(descriptor)
    job: supervisor.Job = marshal.loads(data)  # noqa: S302 - from our own daemon
    return job


def _move_descriptor(descriptor: int, minimum: int) -> int:
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, minimum)
    os.close(descriptor)
    return moved


def _place(descriptors: Sequence[int], places: Sequence[Sequence[int]]) -> None:
    """Give each descriptor the numbers that the job states, and no other."""
    first_free = 1 + max(number for numbers in places for number in numbers)
    moved = [_move_descriptor(descriptor, first_free) for descriptor in descriptors]
    for descriptor, numbers in zip(moved, places, strict=True):
        for number in numbers:
            os.dup2(descriptor, number)
        os.close(descriptor)


if __name__ == "__main__":
    main(sys.argv[1:])
