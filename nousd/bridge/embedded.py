"""A daemon in the bridge's own process: a client over streams in memory, which its serving takes for
those of sockets. What serves them is handed in, because the daemon's rooms are above this one.
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
"""Serves one connection, as the daemon does with those of its sockets."""

_AS_TRIO: Final[dict[type[Exception], type[Exception]]] = {
    anyio.BrokenResourceError: trio.BrokenResourceError,
    anyio.ClosedResourceError: trio.ClosedResourceError,
    anyio.BusyResourceError: trio.BusyResourceError,
}
"""What the streams of anyio raise -> what those of trio raise for the same reason."""

_ERRORS: Final = tuple(_AS_TRIO)


class TrioStream(trio.abc.HalfCloseableStream):
    """An end of a pair in memory, as the daemon knows streams. Raises what any stream of trio does."""

    def __init__(self, stream: MemoryStream) -> None:
        self._stream = stream

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Waits for bytes and returns at most that many, none at the end of input."""
        wanted = BYTES_MAX if max_bytes is None else index(max_bytes)
        try:
            return await self._stream.receive(wanted)
        except anyio.EndOfStream:
            return b""
        except _ERRORS as error:
            raise _AS_TRIO[type(error)] from None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Sends all of it."""
        try:
            await self._stream.send(data)
        except _ERRORS as error:
            raise _AS_TRIO[type(error)] from None

    async def wait_send_all_might_not_block(self) -> None:
        """Waits until something could be sent, or nothing ever can."""
        try:
            await self._stream.wait_sendable()
        except _ERRORS as error:
            raise _AS_TRIO[type(error)] from None

    def write_now(self, data: bytes) -> int:
        """Sends what there is room for, and returns how many bytes that was.

        Only while no task is in ``send_all``.
        """
        return self._stream.send_now(data)

    async def send_eof(self) -> None:
        """Says that no more will be sent."""
        try:
            await self._stream.send_eof()
        except _ERRORS as error:
            raise _AS_TRIO[type(error)] from None

    async def aclose(self) -> None:
        """Closes this end. What was sent can still be received at the other."""
        await self._stream.aclose()


@asynccontextmanager
async def embedded(commands: ServeStream, events: ServeStream) -> AsyncIterator[Dial]:
    """Gives a way to the daemon whose two ways of serving these are, for as long as the block lasts."""
    async with trio.open_nursery() as connections:
        dial = MemoryDial(
            connections.start_soon,
            commands=lambda stream: commands(TrioStream(stream)),
            events=lambda stream: events(TrioStream(stream)),
        )
        yield dial
        dial.close()
        connections.cancel_scope.cancel()
