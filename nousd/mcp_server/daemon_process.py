"""Ensuring that a daemon runs: an existing one, or one that this process starts.

A daemon started here is a child process: it ends with the block, and when this process ends for any
reason. It writes to standard error, because MCP uses standard output.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from nousd.client.connection import connect
from nousd.errors import ConnectionLost, DaemonUnreachable

START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 15.0
_RETRY_SECONDS: Final = 0.05

_EXEC_WITH_PARENT: Final = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""A program that executes the command in its arguments. The command receives SIGTERM when its parent,
the process whose id is the first argument, ends."""


@asynccontextmanager
async def running_daemon(
    socket_path: Path, serve_options: Sequence[str]
) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Ensure that a daemon answers on the socket. Yield a function that ensures it again, because the
    daemon may end.

    Args:
        serve_options: options of ``nousd serve``, for a daemon that must be started.

    Raises:
        DaemonUnreachable: no daemon answers, and none could be started.
    """
    daemon = _Daemon(socket_path, serve_options)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_when_told_to, daemon)
        try:
            await daemon.ensure()
            yield daemon.ensure
        finally:
            with anyio.CancelScope(shield=True):
                await daemon.stop()
            tasks.cancel_scope.cancel()


async def _stop_when_told_to(daemon: _Daemon) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async for number in signals:
            await daemon.stop()
            # A thread that reads standard input would keep this process alive until the input ends.
            os._exit(128 + number)


class _Daemon:
    """The daemon behind a socket, whether or not this process started it."""

    def __init__(self, socket_path: Path, serve_options: Sequence[str]) -> None:
        self._socket_path = socket_path
        serve = ("-m", "nousd", "serve", "--socket", str(socket_path), *serve_options)
        own_pid = str(os.getpid())
        self._command = (
            sys.executable,
            "-I",
            "-c",
            _EXEC_WITH_PARENT,
            own_pid,
            sys.executable,
            *serve,
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = anyio.Lock()

    async def ensure(self) -> None:
        """Start a daemon if none answers."""
        async with self._starting:
            if await _answers(self._socket_path):
                return
            await self.stop()
            # In a new session, signals from the terminal reach only this process, which then stops the
            # daemon. The daemon is not started in a thread: PR_SET_PDEATHSIG takes the end of the thread
            # that started a process for the end of the parent.
            self._process = subprocess.Popen(  # noqa: ASYNC220
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
                start_new_session=True,
            )
            await _wait_until_ready(self._process, self._socket_path)

    async def stop(self) -> None:
        """Stop the daemon that was started here."""
        process = self._process
        if process is None:
            return
        process.terminate()
        with anyio.move_on_after(_STOP_SECONDS):
            await _wait_exit(process)
        process.kill()
        await _wait_exit(process)


async def _answers(socket_path: Path) -> bool:
    try:
        async with connect(socket_path) as daemon:
            await daemon.request("ping", {})
    except (DaemonUnreachable, ConnectionLost):
        return False
    return True


async def _wait_until_ready(process: subprocess.Popen[bytes], socket_path: Path) -> None:
    with anyio.move_on_after(START_SECONDS):
        # If another daemon was started meanwhile and holds the lock, that daemon answers.
        while not await _answers(socket_path):
            if process.poll() is not None:
                raise DaemonUnreachable(
                    f"no daemon answers on {socket_path}, and one could not be started: it says why "
                    "above"
                )
            await anyio.sleep(_RETRY_SECONDS)
        return
    raise DaemonUnreachable(f"the daemon did not answer within {START_SECONDS:g} seconds")


async def _wait_exit(process: subprocess.Popen[bytes]) -> None:
    await anyio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
