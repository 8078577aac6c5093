"""A daemon in the bridge's own process, reached over streams in memory instead of sockets.

The functions that serve a connection are passed in, because this room must not import the daemon.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from operator import index
from typing import Final

import anyio
import trio

from nousd.client.dial import Dial
from nousd.client.memory import BYTES_MAX, MemoryDial, MemoryStream

ServeStream = Callable[[trio.abc.Stream], Awaitable[None]]
"""Serves one connection, as the daemon serves a connection of its sockets."""

_AS_TRIO: Final[dict[type[Exception], type[Exception]]] = {
    anyio.BrokenResourceError: trio.BrokenResourceError,
    anyio.ClosedResourceError: trio.ClosedResourceError,
    anyio.BusyResourceError: trio.BusyResourceError,
}
"""error of anyio's streams -> the corresponding error of trio's."""

_ERRORS: Final = tuple(_AS_TRIO)


class TrioStream(trio.abc.HalfCloseableStream):
    """One end of a pair of streams in memory, with the interface and errors of a trio stream."""

    def __init__(self, stream: MemoryStream) -> None:
        self._stream = stream

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for bytes and return at most that many; empty at the end of input."""
        bytes_max = BYTES_MAX if max_bytes is None else index(max_bytes)
        try:
            return await self._stream.receive(bytes_max)
        except anyio.EndOfStream:
            return b""
        except _ERRORS as error:
            raise _AS_TRIO[type(error)] from None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all bytes."""
        try:
            await self._stream.send(data)
        except _ERRORS as error:
            raise _AS_TRIO[type(error)] from None

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until bytes can be sent, or the stream is closed for good."""
        try:
            await self._stream.wait_sendable()
        except _ERRORS as error:
            raise _AS_TRIO[type(error)] from None

    def write_now(self, data: bytes | memoryview) -> int:
        """Send as much as fits without waiting, and return the number of bytes.

        Call it only while no task is in ``send_all``.
        """
        return self._stream.send_now(data)

    async def send_eof(self) -> None:
        """Announce that no more bytes will be sent."""
        try:
            await self._stream.send_eof()
        except _ERRORS as error:
            raise _AS_TRIO[type(error)] from None

    async def aclose(self) -> None:
        """Close this end. The other end can still receive the bytes sent before."""
        await self._stream.aclose()


@asynccontextmanager
async def open_memory_dial(commands: ServeStream, events: ServeStream) -> AsyncIterator[Dial]:
    """Yield a dial for the daemon that these functions serve; it works until the block ends."""
    async with trio.open_nursery() as connections:
        dial = MemoryDial(
            connections.start_soon,
            commands=lambda stream: commands(TrioStream(stream)),
            events=lambda stream: events(TrioStream(stream)),
        )
        yield dial
        dial.close()
        connections.cancel_scope.cancel()
