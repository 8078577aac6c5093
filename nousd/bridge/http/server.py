"""The HTTP server: listeners, the limit on connections, and shutdown. ``connection`` serves one
connection.

Each connection is a ``_DeadlineStream``: every write has a deadline, so that a stalled reader cannot
hold up the daemon's shutdown, and the stream is closed by force at the end of a grace period.

A connection is a *stranger* (unauthenticated) until a credential is accepted on it. When there are too
many strangers, or too few free places, the oldest stranger is cut, so idle connections without a
credential cannot keep clients out.

This module knows no routes: it serves an ASGI application.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import trio
from starlette.types import ASGIApp

from nousd.bridge.http.connection import Connection
from nousd.bridge.http.listen_address import HttpPlace
from nousd.bridge.replies import TOO_MANY_CONNECTIONS, envelope
from nousd.errors import ConfigError
from nousd.net.accept import is_own_or_root, serve_connections
from nousd.net.streams import DirectStream
from nousd.net.unix_sockets import check_length, listen, remove_stale
from nousd.runtime_paths.locks import lock_socket
from nousd.wire.limits import (
    HTTP_CONNECTIONS_MAX,
    HTTP_STRANGERS_MAX,
    HTTP_WRITE_SECONDS,
)

GRACE_SECONDS: Final = 1.0
"""How long connections may take to write pending responses once the daemon stops."""

_FREE_PLACES_MIN: Final = 8
"""With fewer free places, each new connection cuts the oldest stranger. The number is larger than the
number of connections that the listeners accept before a cut connection has ended."""

_PIECE_BYTES: Final = 1024 * 1024

_logger: Final = logging.getLogger(__name__)


class _DeadlineStream(DirectStream):
    """A stream with a deadline for each write that has to wait.

    A reader that has not taken the next mebibyte, or the rest, after ``HTTP_WRITE_SECONDS`` is
    disconnected; the reader of an event stream resumes by the id of the last frame it has seen.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        super().__init__(stream)
        self._own = stream

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        for begin in range(0, len(data), _PIECE_BYTES):
            await self._send_piece(memoryview(data)[begin : begin + _PIECE_BYTES])

    async def _send_piece(self, piece: memoryview) -> None:
        with trio.move_on_after(HTTP_WRITE_SECONDS) as waiting:
            await super().send_all(piece)
        if waiting.cancelled_caught:
            await trio.aclose_forcefully(self._own)
            raise trio.BrokenResourceError("the client does not read")

    def cut(self) -> None:
        """End the connection at once."""
        self._own.socket.close()


@asynccontextmanager
async def open_listeners(place: HttpPlace) -> AsyncIterator[Sequence[trio.SocketListener]]:
    """Listen at once; clients that connect wait until ``serve`` accepts them.

    Raises:
        ConfigError: the address cannot be used.
    """
    if place.path is not None:
        with lock_socket(place.path), _unix_listener(place.path) as listener:
            yield (listener,)
        return
    try:
        listeners = await trio.open_tcp_listeners(place.port, host=place.host)
    except OSError as error:
        raise ConfigError(f"http: {place}: {error.strerror or error}{_who_uses(error)}") from None
    try:
        yield listeners
    finally:
        for listener in listeners:
            listener.socket.close()


def _who_uses(error: OSError) -> str:
    """Return a hint if another program uses the address; "" for any other error."""
    is_taken = error.errno == errno.EADDRINUSE
    return (
        " by another program, which ss -ltnp lists; or choose another address" if is_taken else ""
    )


@contextmanager
def _unix_listener(path: Path) -> Iterator[trio.SocketListener]:
    """Listen on a socket with mode 0600; only its owner can connect."""
    check_length(path)
    remove_stale((path,))
    listening = listen(path)
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening.socket))
    try:
        yield listener
    finally:
        listening.remove_file()
        listener.socket.close()


async def serve(
    app: ASGIApp, listeners: Sequence[trio.SocketListener], closing: trio.Event
) -> None:
    """Serve until ``closing`` is set and the grace period after it is over.

    An error on one connection is logged and ends only that connection. The listeners are closed in every
    case, so that no client is left waiting.
    """
    try:
        await _Server(app).serve(listeners, closing)
    finally:
        for listener in listeners:
            listener.socket.close()


class _Server:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._places = trio.CapacityLimiter(HTTP_CONNECTIONS_MAX)
        self._open: dict[_DeadlineStream, Connection] = {}
        self._strangers: dict[_DeadlineStream, None] = {}
        self._is_ending = False
        self._connection_closed = trio.Event()

    async def serve(self, listeners: Sequence[trio.SocketListener], closing: trio.Event) -> None:
        async with trio.open_nursery() as connections:
            try:
                async with trio.open_nursery() as accepting:
                    for listener in listeners:
                        accepting.start_soon(self._accept, listener, connections)
                    await closing.wait()
                    accepting.cancel_scope.cancel()
                self._is_ending = True
                for connection in self._open.values():
                    connection.end()
                with trio.move_on_after(GRACE_SECONDS):
                    await self._all_gone()
            finally:
                # Writes are shielded from cancellation; only a cut ends them before their deadline.
                for guarded in list(self._open):
                    guarded.cut()
                connections.cancel_scope.cancel()

    async def _accept(self, listener: trio.SocketListener, connections: trio.Nursery) -> None:
        is_unix = listener.socket.family == socket.AF_UNIX
        await serve_connections(
            listener,
            self._serve_one,
            limiter=self._places,
            refusal=_REFUSAL,
            admits=is_own_or_root if is_unix else _anyone,
            handlers=connections,
        )

    async def _serve_one(self, stream: trio.SocketStream) -> None:
        guarded = _DeadlineStream(stream)
        connection = self._open[guarded] = Connection(
            self._app, guarded, guarded.cut, partial(self._keep, guarded)
        )
        self._make_room()
        self._strangers[guarded] = None
        if self._is_ending:
            connection.end()
        try:
            await connection.run()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            _logger.debug("a client has gone")
        except Exception:
            # The application is foreign code: an error on one connection must not end the others.
            _logger.exception("a fault on a connection")
        finally:
            del self._open[guarded]
            self._keep(guarded)
            self._connection_closed.set()

    def _keep(self, guarded: _DeadlineStream) -> None:
        """Remove a connection from the strangers."""
        self._strangers.pop(guarded, None)

    def _make_room(self) -> None:
        """Cut the oldest stranger if the limits leave no room for another one."""
        is_full = self._places.available_tokens < _FREE_PLACES_MIN
        if self._strangers and (is_full or len(self._strangers) >= HTTP_STRANGERS_MAX):
            oldest = next(iter(self._strangers))
            self._keep(oldest)
            oldest.cut()

    async def _all_gone(self) -> None:
        while self._open:
            self._connection_closed = trio.Event()
            await self._connection_closed.wait()


def _anyone(_stream: trio.SocketStream) -> bool:
    """Accept every client; the gate checks credentials."""
    return True


def _refusal() -> bytes:
    """Return the response to a connection beyond the limit; its request is not read."""
    message = f"{HTTP_CONNECTIONS_MAX} connections are open already"
    body = msgspec.json.encode(envelope(TOO_MANY_CONNECTIONS, message))
    head = (
        f"HTTP/1.1 {TOO_MANY_CONNECTIONS.status} Service Unavailable\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


_REFUSAL: Final = _refusal()
