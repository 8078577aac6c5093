"""The first process of a command: it waits below its supervisor, and becomes the program.

It is usually forked before there is a job, because forking a process, and copying its memory, take
longer than a short command. It waits for the job, prepares itself, waits for the permission, and becomes
the program. Over one socket the supervisor sends the job, and later one byte with the descriptor of the
working directory, which is the permission. At end of file the process ends without an effect. It closes
its end by becoming the program, so that the supervisor sees it.

Standard library only, like all modules that the fork server loads.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
from typing import NoReturn

from nousd.tools.own_program import find_loaded_program
from nousd.tools.process.jobs import (
    SIGNALS,
    Job,
    ReceivedJob,
    close_all_but,
    copy_pages,
    end_process,
    receive_job,
    say,
)
from nousd.tools.process.process_table import count_tasks

PR_SET_PDEATHSIG = 1

OPEN_FILES_DEFAULT = 1024
"""Files that a program may have open unless it raises the limit; the usual default of systems."""

OPEN_FILES_MAX = 65_536

# Loaded here, so that the fork server does it once for all processes.
_LIBC = ctypes.CDLL(None, use_errno=True)


class Limits:
    """The resource limits of a command; zero means no limit.

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


_JOB = b"j"
_PERMIT = b"p"


class FirstProcess:
    """Forks the first process; its supervisor's view of it.

    ``waits_on`` ends when the process has become the program, or is dead.

    Args:
        is_ahead: whether there is no job yet, so that nobody waits for it.
    """

    def __init__(self, *, is_ahead: bool) -> None:
        supervisor = os.getpid()
        self.waits_on, theirs = socket.socketpair()
        self.id = os.fork()
        if self.id == 0:
            _become_first(theirs, supervisor, is_ahead=is_ahead)
        theirs.close()

    def take(self, received: ReceivedJob) -> bool:
        """Give it the job that its supervisor has received; return False if it is dead."""
        try:
            socket.send_fds(self.waits_on, [_JOB], received.descriptors)
        except ConnectionError:
            return False
        self.waits_on = received.move_away(self.waits_on)
        return True

    def permit(self) -> bool:
        """Let it become the program, in the current directory; return False if it is dead."""
        # Not by its path, which may lead elsewhere by now.
        folder = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            socket.send_fds(self.waits_on, [_PERMIT], [folder])
        except ConnectionError:
            return False
        finally:
            os.close(folder)
        return True

    def dismiss(self) -> None:
        """Let it end without an effect, and wait for that. It must not have been permitted."""
        self.waits_on.close()
        os.waitpid(self.id, 0)


def _become_first(waits_on: socket.socket, supervisor: int, *, is_ahead: bool) -> NoReturn:
    """Wait for the job and for the permission, and become the program."""

    def main() -> int | None:
        # Tied to the forking thread, and a supervisor forks in its main thread.
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            return 0
        close_all_but(waits_on.fileno())
        if is_ahead:
            copy_pages()
        received = receive_job(waits_on)
        if received is None:
            return 0
        # From here on a signal is for the command.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        permits = received.move_away(waits_on)
        received.place()
        return _become_permitted(received.job, permits)

    end_process(main)


def _become_permitted(job: Job, permits: socket.socket) -> int | None:
    """Become the program once it is permitted; return the exit code if it is not, or ends here."""
    program = job["argv"]
    control = socket.socket(fileno=job["control"])
    control.set_inheritable(False)
    if job["asks_on"] >= 0:
        os.set_inheritable(job["asks_on"], False)
    try:
        permitted, folders, _, _ = socket.recv_fds(permits, 1, 1, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        permitted = b""
    if not permitted:
        return 0
    try:
        os.fchdir(folders[0])
        os.close(folders[0])
        # Sent by this process before the program begins, since that may kill its supervisor at once.
        say(control, f"started {os.getpid()}")
        return become_program(program, job["environment"], Limits(*job["limits"]))
    except OSError as error:
        os.write(2, f"{program[0]}: {error.strerror}\n".encode())
        return 127


def become_program(program: list[str], environment: dict[str, str], limits: Limits) -> int | None:
    """Become a program, or call it if it is one of nousd's own; return its exit code.

    Raises:
        OSError: it cannot be executed.
    """
    os.setsid()
    behave_as_new()
    _limit(limits)
    loaded = find_loaded_program(program)
    if loaded is None:
        os.execve(program[0], program, environment)  # noqa: S606
    os.environ.update(environment)
    main, arguments = loaded
    return main(arguments)


def prctl(option: int, value: int) -> None:
    """Call ``prctl``. Raises OSError."""
    if _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def behave_as_new() -> None:
    """Give a forked process the signals and the limit of files that a new program expects."""
    signal.set_wakeup_fd(-1)
    # Python ignores SIGPIPE and SIGXFSZ; a command expects to be killed by them.
    for number in (*SIGNALS, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    _expect_few_files()


def _expect_few_files() -> None:
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
