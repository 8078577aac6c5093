"""Streams in memory, for a daemon in the same process and for tests: a socket pair without a kernel.

They behave like sockets: a sender waits while ``BYTES_MAX`` bytes are unread, one end can announce the
end of its output and still receive, and closing one end wakes a task that waits at the other. Unlike
with sockets, both ends are in one event loop, asyncio's or trio's, and closing an end loses no bytes
that it sent before.

This module knows nothing of lines or of the protocol.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import anyio
import anyio.lowlevel
from anyio.abc import AnyByteStream, ByteStream

from nousd.errors import DaemonUnreachable

BYTES_MAX: Final = 64 * 1024
"""Maximum unread bytes in one direction; beyond it, the sender waits."""

CONNECTIONS_MAX: Final = 512
"""Maximum open connections of one ``MemoryDial``, as many as a socket of the daemon accepts."""


class _Side:
    """One end of a pipe, at which at most one task waits for an action of the other end."""

    def __init__(self, action: str) -> None:
        self.guard = anyio.ResourceGuard(action)
        self._woken: anyio.Event | None = None

    async def wait(self) -> None:
        self._woken = anyio.Event()
        try:
            await self._woken.wait()
        finally:
            self._woken = None

    def tell(self) -> None:
        if self._woken is not None:
            self._woken.set()


class _Pipe:
    """One direction of a connection. ``has_ended`` is true once no more bytes will be sent,
    ``is_refused`` once no more bytes will be received.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._buffer = bytearray()
        self.has_ended = False
        self.is_refused = False
        self.receiver = _Side("receiving from")
        self.sender = _Side("sending to")

    @property
    def is_readable(self) -> bool:
        """True if ``take`` would return bytes, or no more bytes will come."""
        return bool(self._buffer) or self.has_ended

    @property
    def is_writable(self) -> bool:
        """True if ``put`` would accept bytes, or no more bytes will be accepted."""
        return len(self._buffer) < self._bytes_max or self.has_ended or self.is_refused

    def put(self, data: bytes | memoryview) -> int:
        """Accept as many bytes as there is room for, and return their number."""
        room = self._bytes_max - len(self._buffer)
        size = min(room, len(data))
        self._buffer += data[:size]
        if size:
            self.receiver.tell()
        return size

    def take(self, bytes_max: int) -> bytes:
        """Remove and return at most that many bytes; empty if there are none."""
        data = bytes(memoryview(self._buffer)[:bytes_max])
        del self._buffer[: len(data)]
        if data:
            self.sender.tell()
        return data

    def end(self) -> None:
        self.has_ended = True
        self.receiver.tell()
        self.sender.tell()

    def refuse(self) -> None:
        self.is_refused = True
        self._buffer.clear()
        self.receiver.tell()
        self.sender.tell()


class MemoryStream(ByteStream):
    """One end of a pair that ``memory_streams`` creates. At most one task may send, and one receive."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    @property
    def is_readable(self) -> bool:
        """True if ``receive`` would return or raise at once."""
        return self._incoming.is_readable or self._incoming.is_refused

    async def receive(self, max_bytes: int = BYTES_MAX) -> bytes:
        """Wait for bytes and return up to ``max_bytes`` of them.

        Raises:
            anyio.EndOfStream: the other end has ended its output, and all of it has been received.
            anyio.ClosedResourceError: this end is closed.
        """
        if max_bytes < 1:
            raise ValueError("max_bytes must be at least 1")
        pipe = self._incoming
        with pipe.receiver.guard:
            if self.is_readable:
                await anyio.lowlevel.checkpoint()
            while not self.is_readable:
                await pipe.receiver.wait()
            if pipe.is_refused:
                raise anyio.ClosedResourceError
            if data := pipe.take(max_bytes):
                return data
            raise anyio.EndOfStream

    async def send(self, item: bytes | bytearray | memoryview) -> None:
        """Send all bytes. If the call is cancelled, a part of them may have been sent.

        Raises:
            anyio.BrokenResourceError: the other end is closed.
            anyio.ClosedResourceError: this end is closed, or has ended its output.
        """
        pipe = self._outgoing
        with pipe.sender.guard:
            await anyio.lowlevel.checkpoint()
            left = memoryview(item)
            while True:
                self._check_sendable()
                left = left[pipe.put(left) :]
                if not left:
                    return
                await pipe.sender.wait()

    async def wait_sendable(self) -> None:
        """Wait until ``send`` could send at least one byte without waiting.

        Raises:
            anyio.BrokenResourceError, anyio.ClosedResourceError: as ``send``.
        """
        pipe = self._outgoing
        with pipe.sender.guard:
            await anyio.lowlevel.checkpoint()
            while not pipe.is_writable:
                await pipe.sender.wait()
            self._check_sendable()

    def send_now(self, data: bytes | memoryview) -> int:
        """Send as many bytes as there is room for, and return their number; 0 if either end has closed
        this direction.

        Call it only while no task is in ``send``.
        """
        pipe = self._outgoing
        return 0 if pipe.has_ended or pipe.is_refused else pipe.put(data)

    def _check_sendable(self) -> None:
        if self._outgoing.has_ended:
            raise anyio.ClosedResourceError
        if self._outgoing.is_refused:
            raise anyio.BrokenResourceError

    async def send_eof(self) -> None:
        """Announce that no more bytes will be sent."""
        with self._outgoing.sender.guard:
            self._outgoing.end()
            await anyio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Close this end. The other end can still receive the bytes sent before."""
        self._outgoing.end()
        self._incoming.refuse()
        await anyio.lowlevel.checkpoint()


def memory_streams(bytes_max: int = BYTES_MAX) -> tuple[MemoryStream, MemoryStream]:
    """Return the two ends of a connection."""
    requests, answers = _Pipe(bytes_max), _Pipe(bytes_max)
    return MemoryStream(answers, requests), MemoryStream(requests, answers)


Serve = Callable[[MemoryStream], Awaitable[None]]
"""Serves one connection until it ends; the caller then closes the stream."""


class MemoryDial:
    """Reaches a daemon in this process.

    Args:
        start_soon: the method of the task group or nursery in which connections are served. An error in
            ``commands`` or ``events`` propagates there.
        commands, events: serve one connection of that kind.
        connections_max: the maximum of open connections; beyond it, DaemonUnreachable is raised.
    """

    def __init__(
        self,
        start_soon: Callable[[Callable[[], Coroutine[Any, Any, None]]], object],
        *,
        commands: Serve,
        events: Serve,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self._start_soon = start_soon
        self._commands = commands
        self._events = events
        self._connections_max = connections_max
        self._connections = 0
        self._is_closed = False

    def __str__(self) -> str:
        return "this process"

    async def commands(self) -> AnyByteStream:
        return self._open(self._commands)

    async def events(self) -> AnyByteStream:
        return self._open(self._events)

    def close(self) -> None:
        """Refuse new connections; open ones continue. Call this before the serving tasks end."""
        self._is_closed = True

    def _open(self, serve: Serve) -> MemoryStream:
        if self._is_closed:
            raise DaemonUnreachable(f"no daemon listens in {self} any more")
        if self._connections >= self._connections_max:
            raise DaemonUnreachable(f"the daemon in {self} has too many connections")
        ours, theirs = memory_streams()
        self._connections += 1
        self._start_soon(lambda: self._serve(serve, theirs))
        return ours

    async def _serve(self, serve: Serve, stream: MemoryStream) -> None:
        try:
            async with stream:
                await serve(stream)
        finally:
            self._connections -= 1
