"""Runs one of nousd's own programs that starts no process, without a supervisor.

It runs in a process that the fork server forks for it (``_fork_server_main``), like the supervisor of
any other command, and speaks to the daemon in the same way (``supervisor_process``). A supervisor finds
and ends what a command has started. Here there is nothing to find, so the program itself is the process
that the daemon knows, which saves a fork on the way to its result.

The kernel ends it: ``control`` sends SIGKILL to this process as soon as the daemon closes its end, on
purpose or because it died. So no computation, such as a regular expression that never ends, delays that.
Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
from typing import NoReturn

from nousd.tools.own_program import Main
from nousd.tools.process.first_process import behave_as_new
from nousd.tools.process.jobs import Job, end_process, say


def run(job: Job, main: Main, arguments: list[str]) -> None:
    """Run the program to its end."""
    control = socket.socket(fileno=job["control"])
    control.set_inheritable(False)
    os.setsid()
    try:
        os.chdir(job["cwd"])
    except OSError as error:
        say(control, f"failed {error.errno}")
        return
    if not control.recv(1):
        return
    _end_with(control)
    behave_as_new()
    os.environ.update(job["environment"])
    say(control, f"started {os.getpid()}")
    _call(main, arguments, control)


def _end_with(control: socket.socket) -> None:
    """Make the kernel kill this process when the other end of the socket is closed."""
    fcntl.fcntl(control, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(control, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(control, fcntl.F_SETFL, fcntl.fcntl(control, fcntl.F_GETFL) | os.O_ASYNC)
    # It may have been closed before.
    if select.select([control], [], [], 0)[0]:
        os.kill(os.getpid(), signal.SIGKILL)


def _call(main: Main, arguments: list[str], control: socket.socket) -> NoReturn:
    """Call the program, report its exit code when all that it has printed is in its pipes, and exit."""

    def tell_end(code: int) -> int:
        say(control, f"exited {code}")
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)  # the first process that no command has needed
        return 0

    end_process(lambda: main(arguments), tell_end)
