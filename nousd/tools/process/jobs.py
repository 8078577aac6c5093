"""The job of a forked process: how it waits for it, receives it, and speaks to the daemon about it.

A job comes over a socket as one message with descriptors: first a file with the marshalled ``Job``, then
those that its ``places`` describe. Until then the process holds no descriptor but this socket, and only
the process that carries a job out reads it. Standard library only, like all modules that the fork server
loads.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import marshal
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import NamedTuple, NoReturn, TypedDict

DESCRIPTORS_MAX = 64
"""Maximum descriptors with one message."""

SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals that a supervisor handles. They are blocked from its job until its handlers are set."""


class Job(TypedDict):
    """The instructions for a supervisor, and for the first process of its command.

    Args:
        argv: the absolute path of the program, and its arguments.
        cwd: its working directory.
        environment: its whole environment.
        grace_seconds: the time between SIGTERM and SIGKILL.
        limits: the arguments of ``first_process.Limits``.
        control: the descriptor of the socket to the daemon.
        asks_on: the descriptor of the socket over which a sandbox sends the listener for the system
            calls that it leaves to the supervisor, see ``call_decider``; -1 if there is none.
        places: for each further descriptor of the message, its numbers in this process.
    """

    argv: list[str]
    cwd: str
    environment: dict[str, str]
    grace_seconds: float
    limits: tuple[int, int, int, int]
    control: int
    asks_on: int
    places: list[list[int]]


class ReceivedJob(NamedTuple):
    """A job with its descriptors, which are not in their places yet; the first one is the job's file."""

    job: Job
    descriptors: list[int]

    def move_away(self, kept: socket.socket) -> socket.socket:
        """Return a socket under a number that the job does not state."""
        return socket.socket(fileno=_move_descriptor(kept.detach(), self._first_free))

    @property
    def _first_free(self) -> int:
        return 1 + max(number for numbers in self.job["places"] for number in numbers)

    def place(self) -> None:
        """Give each descriptor the numbers that the job states, and no other."""
        file, *descriptors = self.descriptors
        os.close(file)
        moved = [_move_descriptor(descriptor, self._first_free) for descriptor in descriptors]
        for descriptor, numbers in zip(moved, self.job["places"], strict=True):
            for number in numbers:
                os.dup2(descriptor, number)
            os.close(descriptor)


def receive_job(waits_on: socket.socket) -> ReceivedJob | None:
    """Wait for a job; return None if there is none, because the other end was closed."""
    try:
        _, descriptors, _, _ = socket.recv_fds(
            waits_on, 1, DESCRIPTORS_MAX, socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionError:
        return None
    if not descriptors:
        return None
    # Not moved by reading: another process may read it, too.
    data = os.pread(descriptors[0], os.fstat(descriptors[0]).st_size, 0)
    job: Job = marshal.loads(data)  # noqa: S302 - from our own daemon
    return ReceivedJob(job, descriptors)


def close_all_but(kept: int) -> None:
    """Close every descriptor but one."""
    os.closerange(0, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def copy_pages() -> None:
    """Write to the pages of memory that are shared with the parent, so that the kernel copies them now:
    while a command waited, that took longer than a search.
    """
    # Each object in the list counts one more reference, in its page.
    gc.unfreeze()
    gc.get_objects()
    gc.freeze()


def say(control: socket.socket, line: str) -> None:
    """Send the daemon a line."""
    # The daemon may be gone, and no other error may end the supervisor either.
    with contextlib.suppress(OSError):
        control.sendall(line.encode() + b"\n", socket.MSG_NOSIGNAL)


def end_process(
    main: Callable[[], int | None], tell_end: Callable[[int], int] = lambda code: code
) -> NoReturn:
    """Call the main function of a forked process, and exit without any exit handler of its parent.

    Args:
        main: returns the exit code, or exits.
        tell_end: called with the code when all output is written; returns the status of the process.
    """
    code = 1
    try:
        code = main() or 0
    except SystemExit as exit:  # raised by a program that was loaded beforehand
        code = int(exit.code or 0)
    finally:
        if sys.exc_info()[1] is not None:
            sys.excepthook(*sys.exc_info())
        with contextlib.suppress(OSError, ValueError):  # the other end, or the descriptor, is gone
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(tell_end(code))


def _move_descriptor(descriptor: int, minimum: int) -> int:
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, minimum)
    os.close(descriptor)
    return moved
