"""The fork server: a small process that forks others with all modules loaded: the supervisors of
commands, and nousd's own programs that need none (``lone_process``).

Its argument is SOCKET. Each start is one message over this socket: GRACE_MS, with descriptors of a job
and of the job's ``places``. The reply is PID, with a pidfd of the new process, or -ERRNO if it could not
be forked. The other end, and the reasons for this design, are in ``nousd.tools.process.fork_server``.

The server has one thread and never reads a job: it hands the descriptors on to the forked process, which
reads it, so no key is ever in memory that later processes inherit. A forked process first closes all
descriptors but the socket for this (``jobs``), and never returns to the loop.

After the first start, when there is nothing to do for a moment, the server forks the process for the
next one, which then only has to be handed its job. If none comes for a while, it forks the process that
becomes a command (``first_process``), and both get memory of their own. This *spare* knows nothing of
any command; it ends when the server does.

The server is a *subreaper*: it becomes the parent of the processes of a killed supervisor, and kills all
children that it has not forked. When the daemon has ended, the server ends too: at once if nothing runs,
else when the supervisors have ended their commands. A supervisor that does not, because it is stopped,
is killed.

A separate program: standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import gc
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

from nousd.tools.own_program import find_loaded_program, is_lone_program, load_programs
from nousd.tools.process import lone_process
from nousd.tools.process import supervisor_process as supervisor
from nousd.tools.process.first_process import FirstProcess
from nousd.tools.process.jobs import (
    DESCRIPTORS_MAX,
    SIGNALS,
    ReceivedJob,
    close_all_but,
    copy_pages,
    end_process,
    receive_job,
)
from nousd.tools.process.process_table import descendants

LINGER_SECONDS = 2 * supervisor.KILLING_SECONDS_MAX
"""How long supervisors may take after the daemon's death, in addition to the grace period."""

_LOOK_SECONDS = 0.01

_SPARE_AFTER_MS = 20
"""How long the server waits before it forks a spare, so as not to take time from the command that has
just been started or has just ended."""


_PREPARES_AFTER_SECONDS = 0.1
"""How long a spare waits before it prepares further. That takes as long as a short command: it would
slow down commands that follow each other at once, as they never do while a model thinks."""


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


class Waiting:
    """A forked process that waits for its job.

    Args:
        handle: its pidfd.
        handover: the socket over which it receives the descriptors of the job; it ends with the socket.
    """

    def __init__(self, process: int, handover: socket.socket) -> None:
        self.process = process
        # Only the server can reap it, so its process id has not been reused.
        self.handle = os.pidfd_open(process)
        self._handover = handover

    def take(self, descriptors: Sequence[int]) -> bool:
        """Hand over a job; return False if the process is dead, so that the job had no effect."""
        try:
            socket.send_fds(self._handover, [b"\n"], descriptors)
        except ConnectionError:
            return False
        return True

    def close(self) -> None:
        """Close both descriptors. The process ends unless it has a job."""
        self._handover.close()
        os.close(self.handle)


class Server:
    """The loop."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._grace_seconds: dict[int, float] = {}
        """Forked process's id -> how long its command may take to end after the daemon's death."""
        self._spare: Waiting | None = None
        self._lacks_spare = False
        self._wake = supervisor.wake_on_signals((signal.SIGCHLD,))

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._requests, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            ready = {
                descriptor
                for descriptor, _ in poll.poll(_SPARE_AFTER_MS if self._lacks_spare else None)
            }
            if not ready:
                self._fork_spare()
            if self._wake in ready:
                self._reap()
            if self._requests.fileno() in ready and not self._answer():
                break
        self._drop_spare()
        self._outlive()

    # --- starts --------------------------------------------------------------------------------

    def _answer(self) -> bool:
        """Start the process that one message requests; return False if the daemon is gone."""
        try:
            message, descriptors, _, _ = socket.recv_fds(
                self._requests, 64, DESCRIPTORS_MAX, socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionError:
            return False
        if not message:
            return False
        try:
            self._start(int(message) / 1000, descriptors)
        except OSError as error:
            self._reply(-(error.errno or errno.EIO))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _start(self, grace_seconds: float, descriptors: Sequence[int]) -> None:
        """Hand a job to the spare, or to a new process."""
        started, self._spare = self._spare, None
        if started is None or not started.take(descriptors):
            if started is not None:
                started.close()
            started = self._fork()
            started.take(descriptors)
        self._grace_seconds[started.process] = grace_seconds
        self._reply(started.process, started.handle)
        started.close()
        self._lacks_spare = True

    def _fork_spare(self) -> None:
        self._lacks_spare = False
        with contextlib.suppress(OSError):  # the next start forks, or says why it cannot
            self._spare = self._fork(is_spare=True)

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.close()
            self._spare = None

    def _fork(self, *, is_spare: bool = False) -> Waiting:
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as on_failure:
            on_failure.callback(ours.close)
            process = os.fork()
            if process == 0:
                _begin(theirs, is_spare=is_spare)
            self._grace_seconds[process] = 0.0
            waiting = Waiting(process, ours)
            on_failure.pop_all()
        return waiting

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
            if self._spare is not None and process == self._spare.process:
                self._drop_spare()
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
            for process in descendants(os.getpid(), self._grace_seconds)
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


def _begin(handover: socket.socket, *, is_spare: bool) -> NoReturn:
    """Wait for a job, carry it out, and exit."""

    def main() -> None:
        signal.set_wakeup_fd(-1)
        close_all_but(handover.fileno())
        first = None
        if is_spare and not select.select([handover], [], [], _PREPARES_AFTER_SECONDS)[0]:
            with contextlib.suppress(OSError):  # it is forked when there is a command
                first = FirstProcess(is_ahead=True)
            copy_pages()
        with handover:
            received = receive_job(handover)
        if received is not None:
            # From here on a signal is for the command, which the supervisor ends.
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            _run(received, first)
        elif first is not None:
            first.dismiss()

    end_process(main)


def _run(received: ReceivedJob, first: FirstProcess | None) -> None:
    """Run a program in this process if it needs no supervisor, else below one.

    Args:
        first: a process that was forked ahead, if there is one.
    """
    job = received.job
    loaded = find_loaded_program(job["argv"]) if is_lone_program(job["argv"]) else None
    if loaded is not None:
        if first is not None:
            first.waits_on.close()
        received.place()
        lone_process.run(job, *loaded)
        return
    if first is None or not first.take(received):
        first = FirstProcess(is_ahead=False)
        first.take(received)
    received.place()
    supervisor.run(job, first)


if __name__ == "__main__":
    main(sys.argv[1:])
