"""Starts supervisors quickly: each is forked from a small process that has loaded all their modules.

A supervisor is a Python process. Starting one from its file takes tens of milliseconds, mostly for
imports; a fork takes one, and the server usually has one forked already. The daemon itself cannot fork:
it has threads, and keys in its memory.

The server belongs to an event loop, is started on first use, and ends with the loop. Apart from the
grace period, a message to it carries only descriptors, so the server learns nothing about the command.
If it dies, running commands go on, and the next start gets a new server. It knows the grace period of
each command to enforce it when the daemon is dead and the supervisor is stopped.

``_fork_server_main`` is the other end.
"""

from __future__ import annotations

import array
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import trio
from trio.lowlevel import RunVar, spawn_system_task

from nousd.tools.own_program import own_program

REPLY_SECONDS_MAX: Final = 10.0
"""How long a start may take, including that of the server, before the server is replaced."""

_PROGRAM: Final = own_program("nousd.tools.process._fork_server_main")
_ENDING_SECONDS_MAX: Final = 1.0
_REPLY_BYTES_MAX: Final = 64


class Forked:
    """A process that the server has forked, referred to by a pidfd."""

    def __init__(self, pid: int, handle: int) -> None:
        self.pid = pid
        self._handle = handle

    async def wait(self) -> None:
        """Return when it has ended."""
        await trio.lowlevel.wait_readable(self._handle)

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def close(self) -> None:
        """Close the pidfd; the process goes on."""
        os.close(self._handle)


class ForkServer:
    """The fork server of one event loop."""

    def __init__(self) -> None:
        self._turn = trio.Lock()
        self._process: trio.Process | None = None
        self._requests: trio.socket.SocketType | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the server; None if none runs."""
        return None if self._process is None else self._process.pid

    async def fork(self, grace_seconds: float, descriptors: Sequence[int]) -> Forked | None:
        """Fork a process.

        Args:
            grace_seconds: the time between SIGTERM and SIGKILL of its command.
            descriptors: those of the job and of its ``places``.

        Returns:
            None if the server died meanwhile; it is unknown whether it has forked.

        Raises:
            OSError: the server cannot be started, or could not fork.
        """
        async with self._turn:
            # Shielded, because a later start would take a reply left unread for its own.
            with trio.CancelScope(shield=True):
                with trio.move_on_after(REPLY_SECONDS_MAX):
                    requests = await self._running()
                    with suppress(ConnectionError):
                        await _send(requests, round(grace_seconds * 1000), descriptors)
                        if (reply := await _receive(requests)) is not None:
                            return reply
                await self._end()
        return None

    async def prepare(self) -> None:
        """Start the server if it does not run.

        Raises:
            OSError: it cannot be started.
        """
        async with self._turn:
            await self._running()

    async def end_with_loop(self) -> None:
        """End the server when the event loop ends."""
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await self._end()

    async def _running(self) -> trio.socket.SocketType:
        if self._requests is None:
            ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
            with theirs:
                self._requests = trio.socket.from_stdlib_socket(ours)
                self._process = await trio.lowlevel.open_process(
                    [*_PROGRAM, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    cwd="/",
                    env={},
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        return self._requests

    async def _end(self) -> None:
        """Ask the server to end when no command runs any more, and wait a moment for its end."""
        if self._requests is not None:
            self._requests.close()
        if self._process is not None:
            with trio.move_on_after(_ENDING_SECONDS_MAX):
                await self._process.wait()
        self._requests = self._process = None


async def _send(requests: trio.socket.SocketType, number: int, descriptors: Sequence[int]) -> None:
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
    await requests.sendmsg([str(number).encode()], [rights])


async def _receive(requests: trio.socket.SocketType) -> Forked | None:
    """Return the forked process; None if the server is gone.

    Raises:
        OSError: it could not be forked.
    """
    size = socket.CMSG_SPACE(array.array("i").itemsize)
    reply, rights, _, _ = await requests.recvmsg(_REPLY_BYTES_MAX, size, socket.MSG_CMSG_CLOEXEC)
    if not reply:
        return None
    if (number := int(reply)) < 0:
        raise OSError(-number, os.strerror(-number))
    (handle,) = array.array("i", rights[0][2])
    return Forked(number, handle)


_SERVER: Final = RunVar[ForkServer]("fork server")


def fork_server() -> ForkServer:
    """Return the server of this event loop. It is started by its first fork."""
    with suppress(LookupError):
        return _SERVER.get()
    server = ForkServer()
    _SERVER.set(server)
    spawn_system_task(server.end_with_loop)
    return server
