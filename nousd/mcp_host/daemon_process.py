"""A running daemon for as long as it is needed: the one there is, or one of our own.

One that was started here is a child: it ends when the block is left, and with us however we end. Its
words go to standard error, because standard output belongs to the protocol.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from nousd.client.connection import connect
from nousd.errors import DaemonUnreachable

START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 15.0
_RETRY_SECONDS: Final = 0.05

_UNTIL_WE_END: Final = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""Becomes the program that is named, and is told to end when the process of that number is gone."""


@asynccontextmanager
async def running_daemon(socket_path: Path, serve_options: Sequence[str]) -> AsyncIterator[None]:
    """Makes sure that a daemon answers on the socket.

    Args:
        serve_options: for ``nousd serve``, should one have to be started.

    Raises:
        DaemonUnreachable: none answers, and none could be started.
    """
    if await _answers(socket_path):
        yield
        return
    command = [sys.executable, "-m", "nousd", "serve", "--socket", str(socket_path), *serve_options]
    # A signal from the terminal is for us: the daemon ends when we do. It is not started in a thread,
    # because the kernel takes the end of the thread that started a process for our end.
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-I", "-c", _UNTIL_WE_END, str(os.getpid()), *command],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        start_new_session=True,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_when_told_to, process)
        try:
            await _wait_until_ready(process, socket_path)
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await _stop(process)
            tasks.cancel_scope.cancel()


async def _stop_when_told_to(process: subprocess.Popen[bytes]) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async for number in signals:
            await _stop(process)
            # A thread that waits for standard input would keep this process until that ends.
            os._exit(128 + number)


async def _answers(socket_path: Path) -> bool:
    try:
        async with connect(socket_path) as daemon:
            await daemon.request("ping", {})
    except DaemonUnreachable:
        return False
    return True


async def _wait_until_ready(process: subprocess.Popen[bytes], socket_path: Path) -> None:
    with anyio.move_on_after(START_SECONDS):
        # Another one may have been started meanwhile, and have the lock: then that one answers.
        while not await _answers(socket_path):
            if process.poll() is not None:
                raise DaemonUnreachable(
                    f"no daemon answers on {socket_path}, and one could not be started: it says why "
                    "above"
                )
            await anyio.sleep(_RETRY_SECONDS)
        return
    raise DaemonUnreachable(f"the daemon did not answer within {START_SECONDS:g} seconds")


async def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with anyio.move_on_after(_STOP_SECONDS):
        await _ended(process)
    process.kill()
    await _ended(process)


async def _ended(process: subprocess.Popen[bytes]) -> None:
    await anyio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
