"""The supervisor of one command, which lets none of its processes survive.

It runs in a process that the fork server forks for it (``_fork_server_main``), with the input and output
of the command. It has one thread, and for some sandboxes a second one, see ``_decide_calls``. See
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
import ctypes
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Collection
from typing import TypedDict

from nousd.tools.own_program import find_loaded_program
from nousd.tools.process.call_decider import decide_calls
from nousd.tools.process.process_table import children_of, count_tasks, descendants, own_bytes

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

KILLING_SECONDS_MAX = 2.0
"""How long processes may take to die of SIGKILL; some are stuck in the kernel, or cannot be killed."""

OPEN_FILES_DEFAULT = 1024
"""Files that a program may have open unless it raises the limit; the usual default of systems."""

OPEN_FILES_MAX = 65_536

COUNTING_SECONDS = 0.05
"""Time between two checks of the resources that a command uses. In between it can exceed the number of
processes; no limit of the kernel counts the processes of root."""

COUNTING_SHARE_MAX = 0.05
"""Maximum fraction of one processor that these checks take."""

HOLDER_SECONDS = 0.05
"""How long to wait, after a holder has ended, for the kernel to end the processes that it held."""

# Loaded here, so that the fork server does it once for all supervisors.
_LIBC = ctypes.CDLL(None, use_errno=True)


class Limits:
    """The resource limits of the command; zero means no limit.

    Args:
        is_holder: whether its first process only holds the sandbox in which the others run.
        memory_bytes: writable memory of one process.
        processes: simultaneous processes, including threads.
        file_bytes: size of one file.
    """

    def __init__(self, is_holder: int, memory_bytes: int, processes: int, file_bytes: int) -> None:
        self.is_holder = bool(is_holder)
        self.memory_bytes = memory_bytes
        self.processes = processes
        self.file_bytes = file_bytes

    @property
    def any(self) -> bool:
        return bool(self.memory_bytes or self.processes or self.file_bytes)


class Job(TypedDict):
    """The instructions for a supervisor.

    Args:
        argv: the absolute path of the program, and its arguments.
        cwd: its working directory.
        environment: its whole environment.
        grace_seconds: the time between SIGTERM and SIGKILL.
        limits: the arguments of ``Limits``.
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


_PERMIT = b"\n"
"""The byte that lets the command's first process go on."""

SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals that a supervisor handles. They are blocked from its job until its handlers are set."""


def run(job: Job) -> None:
    """Run the command to its end."""
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
        return
    limits = Limits(*job["limits"])
    if job["asks_on"] >= 0:
        os.set_inheritable(job["asks_on"], False)
    # Forked before the daemon permits the command, because it waits for that longer than forking takes.
    child, started, permit = _fork_first_process(job["argv"], job["environment"], control, limits)
    if not _may_begin(control, wake):
        os.close(permit)
        os.waitpid(child, 0)
        say(control, f"exited {-signal.SIGTERM}")
        return
    try:
        os.write(permit, _PERMIT)
    except BrokenPipeError:
        return  # it was killed before it had an effect; without a line from us the daemon tries again
    os.close(permit)
    if job["asks_on"] >= 0:
        _decide_calls(job["asks_on"])
    command = Command(child, wake, limits, started)
    exceeded = command.wait_until_over_or(control)
    if exceeded is not None:
        say(control, f"exceeded {exceeded}")
    command.end(0 if exceeded else job["grace_seconds"])
    say(control, f"exited {command.code}")
    # The fork server would treat a process that is still dying as a stray.
    command.wait_reaped()


def become_subreaper() -> None:
    """Make the kernel reparent orphaned descendants to this process."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


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


def _fork_first_process(
    program: list[str], environment: dict[str, str], control: socket.socket, limits: Limits
) -> tuple[int, int, int]:
    """Fork the command's first process; return its id, a pipe that ends at its exec, and the pipe that
    it waits for: it becomes the command after one byte, and ends at end of file.
    """
    supervisor = os.getpid()
    started, starts = os.pipe()
    permitted, permit = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(permit)
            if not os.read(permitted, 1):
                os._exit(0)
            # Sent by the child before the program begins, since that may kill its supervisor at once.
            say(control, f"started {os.getpid()}")
            _become(program, environment, supervisor, limits)
        except OSError as error:
            os.write(2, f"{program[0]}: {error.strerror}\n".encode())
            os._exit(127)
    os.close(starts)
    os.close(permitted)
    return child, started, permit


def _become(
    program: list[str], environment: dict[str, str], supervisor: int, limits: Limits
) -> None:
    os.setsid()
    # Correct because the supervisor forks in its main thread: the signal is tied to the forking thread.
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        return
    # Python ignores these two signals; a command expects to be killed by them.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    expect_few_files()
    _limit(limits)
    loaded = find_loaded_program(program)
    if loaded is None:
        os.execve(program[0], program, environment)  # noqa: S606
    os.environ.update(environment)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    main, arguments = loaded
    sys.exit(main(arguments))


def expect_few_files() -> None:
    """Lower the limit that the daemon has raised for its many clients, because a program may use
    ``select``. The program can raise it again.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft > OPEN_FILES_DEFAULT:
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES_DEFAULT, hard))


def _limit(limits: Limits) -> None:
    """Set the limits that the kernel enforces for each process."""
    if not limits.any:
        return
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_NOFILE, OPEN_FILES_MAX)
    if limits.memory_bytes:
        # Not RLIMIT_AS: many programs reserve far more addresses than they ever use.
        _lower(resource.RLIMIT_DATA, limits.memory_bytes)
    if limits.file_bytes:
        _lower(resource.RLIMIT_FSIZE, limits.file_bytes)
    if limits.processes and os.getuid() != 0:
        # The kernel counts the processes of a user, and never those of root. Other programs of the user
        # start some as well.
        _lower(resource.RLIMIT_NPROC, count_tasks(os.getuid()) + 2 * limits.processes)


def _lower(kind: int, value: int) -> None:
    soft, hard = resource.getrlimit(kind)
    hard = value if hard == resource.RLIM_INFINITY else min(hard, value)
    soft = hard if soft == resource.RLIM_INFINITY else min(hard, soft)
    resource.setrlimit(kind, (soft, hard))


def _decide_calls(receiver: int) -> None:
    """Start the thread that decides system calls of the command."""
    _thread.start_new_thread(decide_calls, (socket.socket(fileno=receiver),))


def say(control: socket.socket, line: str) -> None:
    # The daemon may be gone, and no other error may end the supervisor either.
    with contextlib.suppress(OSError):
        control.sendall(line.encode() + b"\n", socket.MSG_NOSIGNAL)


class Command:
    """The command's first process and all its descendants.

    Args:
        started: a pipe that ends when the first process has become the program; -1 if it has already.
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
