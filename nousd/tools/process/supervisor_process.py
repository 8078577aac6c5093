"""The supervisor of one command, which lets none of its processes survive.

It runs in a process that the fork server forks for it (``_fork_server_main``), with the input and output
of the command, whose first process waits below it (``first_process``). It has one thread, and for some
sandboxes a second one, see ``_decide_calls``. See
``nousd.tools.process.supervisor`` for the whole design. Standard library only, like all modules that the
fork server loads.

``control`` of the job is a socket to the daemon, which writes one byte to it when the command may begin.
End of file, for whatever reason, means "end the command". The supervisor writes lines to it: ``started
PID`` before the command begins, or ``failed ERRNO`` if it cannot begin, and ``exited CODE`` (negative:
minus the signal's number) when all its processes are gone. If the command was ended for exceeding a
limit, ``exceeded LIMIT`` comes before that.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Collection

from nousd.tools.process.call_decider import decide_calls
from nousd.tools.process.first_process import FirstProcess, Limits, prctl
from nousd.tools.process.jobs import SIGNALS, Job, say
from nousd.tools.process.process_table import children_of, descendants, own_bytes

PR_SET_CHILD_SUBREAPER = 36

KILLING_SECONDS_MAX = 2.0
"""How long processes may take to die of SIGKILL; some are stuck in the kernel, or cannot be killed."""

COUNTING_SECONDS = 0.05
"""Time between two checks of the resources that a command uses. In between it can exceed the number of
processes; no limit of the kernel counts the processes of root."""

COUNTING_SHARE_MAX = 0.05
"""Maximum fraction of one processor that these checks take."""

HOLDER_SECONDS = 0.05
"""How long to wait, after a holder has ended, for the kernel to end the processes that it held."""


def run(job: Job, first: FirstProcess) -> None:
    """Run the command to its end.

    Args:
        first: its first process, which has the same job.
    """
    control = socket.socket(fileno=job["control"])
    control.set_inheritable(False)
    os.setsid()
    # Orphans of the command become our children, whatever group or session they moved to.
    become_subreaper()
    wake = wake_on_signals(SIGNALS)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        os.chdir(job["cwd"])
    except OSError as error:
        say(control, f"failed {error.errno}")
        first.dismiss()
        return
    limits = Limits(*job["limits"])
    if job["asks_on"] >= 0:
        os.set_inheritable(job["asks_on"], False)
    if not _may_begin(control, wake):
        first.dismiss()
        say(control, f"exited {-signal.SIGTERM}")
        return
    if not first.permit():
        return  # it was killed before it had an effect; without a line from us the daemon tries again
    if job["asks_on"] >= 0:
        _decide_calls(job["asks_on"])
    command = Command(first.id, wake, limits, first.waits_on.fileno())
    exceeded = command.wait_until_over_or(control)
    if exceeded is not None:
        say(control, f"exceeded {exceeded}")
    command.end(0 if exceeded else job["grace_seconds"])
    say(control, f"exited {command.code}")
    # The fork server would treat a process that is still dying as a stray.
    command.wait_reaped()


def become_subreaper() -> None:
    """Make the kernel reparent orphaned descendants to this process."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def wake_on_signals(numbers: Collection[signal.Signals]) -> int:
    """Return a descriptor from which the numbers of arriving signals can be read."""
    wake, write_end = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    return wake


def _may_begin(control: socket.socket, wake: int) -> bool:
    """Wait for the daemon's permission; return False if it died or gave up, or a signal came."""
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    poll.register(control, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if wake in ready and set(os.read(wake, 4096)) - {signal.SIGCHLD}:
            return False
        if control.fileno() in ready:
            return bool(control.recv(1))


def _decide_calls(receiver: int) -> None:
    """Start the thread that decides system calls of the command."""
    _thread.start_new_thread(decide_calls, (socket.socket(fileno=receiver),))


class Command:
    """The command's first process and all its descendants.

    Args:
        started: a socket that ends when the first process has become the program; -1 if it has already.
    """

    def __init__(self, child: int, wake: int, limits: Limits, started: int = -1) -> None:
        self._child = child
        self._wake = wake
        self._limits = limits
        self._started = started
        self._is_dying = False
        self.code: int | None = None

    def wait_until_over_or(self, control: socket.socket) -> str | None:
        """Wait until the first process has ended, the daemon has closed its socket, a signal asks for an
        end, or the command exceeds a limit; return the name of that limit.
        """
        has_limits = bool(self._limits.processes or self._limits.memory_bytes)
        next_count = time.monotonic() + COUNTING_SECONDS
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(control, select.POLLIN)
        while self.code is None:
            wait_ms = max(0, next_count - time.monotonic()) * 1000
            ready = {descriptor for descriptor, _ in poll.poll(wait_ms if has_limits else None)}
            if control.fileno() in ready or self._signals() - {signal.SIGCHLD}:
                return None
            self._reap()
            began = time.monotonic()
            if has_limits and began >= next_count:
                if (exceeded := self._find_exceeded_limit()) is not None:
                    return exceeded
                took = time.monotonic() - began
                next_count = began + max(COUNTING_SECONDS, took / COUNTING_SHARE_MAX)
        return None

    def _find_exceeded_limit(self) -> str | None:
        """Return the name of a limit that the command exceeds."""
        found = list(descendants(os.getpid()))
        processes, memory = self._limits.processes, self._limits.memory_bytes
        if processes and sum(process.tasks for process in found) > processes:
            return "processes"
        pages = memory // resource.getpagesize()
        if memory and any(
            process.pages > pages and own_bytes(process.id) > memory for process in found
        ):
            return "memory_bytes"
        return None

    def end(self, grace_seconds: float) -> None:
        """End the remaining processes: SIGTERM, then SIGKILL after the grace period."""
        if self._reap() or self._dies_with_holder():
            return
        deadline = time.monotonic()
        # A command that has not begun needs no grace period, and would begin in spite of the SIGTERM.
        if self._has_begun():
            deadline += grace_seconds
            self._signal_all(signal.SIGTERM)
        while not self._reap():
            seconds_left = deadline - time.monotonic()
            if seconds_left <= -KILLING_SECONDS_MAX:
                return
            if seconds_left <= 0:
                self._signal_all(signal.SIGKILL)
            # Repeated, because a process may fork while we look for its children.
            select.select([self._wake], [], [], seconds_left if seconds_left > 0 else 0.01)
            self._signals()

    def wait_reaped(self) -> None:
        """Return when every process has been reaped, or has been dying for too long."""
        deadline = time.monotonic() + KILLING_SECONDS_MAX
        while (
            self._is_dying
            and not self._reap()
            and (seconds_left := deadline - time.monotonic()) > 0
        ):
            select.select([self._wake], [], [], seconds_left)
            self._signals()

    def _dies_with_holder(self) -> bool:
        """Wait briefly after a holder has ended; return whether no process is left that could act. The
        kernel kills the processes that it held, sooner than we could find them in ``/proc``.
        """
        if not self._limits.is_holder or self.code is None:
            return False
        deadline = time.monotonic() + HOLDER_SECONDS
        while (seconds_left := deadline - time.monotonic()) > 0:
            if _only_first_ones_are_left():
                self._is_dying = True
                return True
            select.select([self._wake], [], [], seconds_left)
            self._signals()
            if self._reap():
                return True
        return False

    def _has_begun(self) -> bool:
        """Return whether the command itself runs, not only its preparation.

        A process that has only been forked swallows SIGTERM with our handler. A holder does not get
        SIGTERM; it and the first process of its namespace, which only SIGKILL ends, only prepare.
        """
        if self._started >= 0:
            poll = select.poll()
            poll.register(self._started, 0)
            if not poll.poll(0):
                return False
        own = (os.getpid(), self._child)
        return not self._limits.is_holder or any(
            process.parent not in own for process in descendants(own[0])
        )

    def _signals(self) -> set[int]:
        try:
            return set(os.read(self._wake, 4096))
        except BlockingIOError:
            return set()

    def _reap(self) -> bool:
        """Reap all dead children; return whether no process is left.

        No child means no descendant: every process below us has a living ancestor that is our child, or
        became our child when its parent died.
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
        """Signal the command's group, which no fork can escape, and the processes that left the group.

        A holder gets only SIGKILL: it ends when the command does, and if it is killed, the command dies
        with it.
        """
        keeps_holder = self._limits.is_holder and number != signal.SIGKILL
        if not keeps_holder:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child, number)
        for process in descendants(os.getpid()):
            if process.group != self._child or (keeps_holder and process.id != self._child):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process.id, number)


def _only_first_ones_are_left() -> bool:
    """Kill the first processes of the namespaces that a dead holder has left to us; return whether no
    process is below them any more, False if the kernel does not report it.

    Such a process takes milliseconds to die, in which it only releases its namespaces: a killed process
    starts no other one, and all processes of its namespace are below it.
    """
    try:
        first_ones = children_of(os.getpid())
        for process in first_ones:
            os.kill(process, signal.SIGKILL)
        if any(map(children_of, first_ones)):
            return False
        # One that has died since then may have left us the processes below it.
        return set(children_of(os.getpid())) <= set(first_ones)
    except OSError:
        return False
