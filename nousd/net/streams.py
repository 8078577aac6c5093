"""A connected socket, read and written with the fewest possible steps of the event loop.

Answering a command takes a few dozen microseconds, most of which trio's own stream would use: it asks
the kernel before it waits, and yields to other tasks if it did not have to wait. Here a read waits
first, because a client usually has not sent its next request yet, and a write needs no wake-up if the
kernel accepts the bytes at once.

It knows neither lines nor requests.
"""

from __future__ import annotations

import os
from operator import index
from typing import Final, Protocol, runtime_checkable

import trio

READ_BYTES: Final = 64 * 1024


@runtime_checkable
class WritesNow(Protocol):
    """A stream that can be written to without waiting."""

    def write_now(self, data: bytes | memoryview) -> int:
        """Write as many bytes as are accepted at once, and return their number.

        Call it only while no task is in ``send_all``.
        """
        ...


class DirectStream(trio.abc.Stream):
    """A stream over ``stream``, which it does not own: its opener closes it.

    As with any stream of trio, at most one task reads and one writes at a time.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        # Not the descriptor number: it may belong to another file once the socket is closed.
        self._socket = stream.socket

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for bytes and return at most ``max_bytes`` of them; none at the end of input.

        Raises:
            trio.BrokenResourceError: the connection is broken.
            trio.ClosedResourceError: it was closed on this side.
        """
        size = READ_BYTES if max_bytes is None else index(max_bytes)
        if size < 1:
            raise ValueError("max_bytes must be at least 1")
        while True:
            number = self._socket.fileno()
            if number < 0:
                raise trio.ClosedResourceError
            await trio.lowlevel.wait_readable(number)
            try:
                return os.read(self._socket.fileno(), size)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError from error

    def write_now(self, data: bytes | memoryview) -> int:
        """Write as many bytes as the kernel accepts at once, and return their number.

        Call it only while no task is in ``send_all``, which reports any error.
        """
        try:
            return os.write(self._socket.fileno(), data)
        except OSError:
            return 0

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Write all of ``data``.

        Raises:
            trio.BrokenResourceError: the connection is broken.
            trio.ClosedResourceError: it was closed on this side.
        """
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the kernel accepts more bytes."""
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """Close the sending side.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError, OSError: the connection is broken.
        """
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close the socket."""
        await self._stream.aclose()
