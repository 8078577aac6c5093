"""The HTTP server: our own accept loop around hypercorn's handling of one connection.

Why not hypercorn's own loop: it sends inside a shielded scope, so that one reader that stalls would hold
up the daemon's end for as long as it likes. Here each connection is a ``_Guarded`` stream, on which
every write has a deadline, and which is closed by force once a grace is over.

It knows no routes: what is served is an ASGI application.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final, cast

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework, ConnectionState, LifespanState
from starlette.types import ASGIApp

from nousd.bridge.place import HttpPlace
from nousd.errors import ConfigError
from nousd.places.locks import lock_socket
from nousd.places.unix_sockets import check_length, listen, remove_stale
from nousd.wire.limits import (
    HTTP_CONNECTIONS_MAX,
    HTTP_HEADERS_BYTES_MAX,
    HTTP_IDLE_SECONDS,
    HTTP_WRITE_SECONDS,
)

GRACE_SECONDS: Final = 1.0
"""How long connections may take to write what they owe once the daemon stops."""

_FINAL_STATUS: Final = tuple(b"HTTP/1.1 %d" % kind for kind in (2, 3, 4, 5))
"""How the head of an answer begins. What tells to go on with a body is not held back."""

_logger: Final = logging.getLogger(__name__)


class _Guarded:
    """A connection as hypercorn knows it, with a deadline for each write.

    A reader that takes nothing for ``HTTP_WRITE_SECONDS`` is cut off; it resumes by the id of the last
    frame it has seen.

    The head of an answer waits for what follows it, so that both are one write: hypercorn writes them
    apart, and ends each answer with a write of its own, which may be empty.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._head = b""
        self.socket = stream.socket

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def send_all(self, data: bytes) -> None:
        if not self._head and data.startswith(_FINAL_STATUS):
            self._head = data
            return
        data, self._head = self._head + data, b""
        if data:
            await self._write(data)

    async def _write(self, data: bytes) -> None:
        with trio.move_on_after(HTTP_WRITE_SECONDS) as waiting:
            await self._stream.send_all(data)
        if waiting.cancelled_caught:
            await trio.aclose_forcefully(self._stream)
            raise trio.BrokenResourceError("the client does not read")

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def cut(self) -> None:
        """Ends the connection at once, whatever it is doing."""
        self._stream.socket.close()


@asynccontextmanager
async def open_listeners(place: HttpPlace) -> AsyncIterator[Sequence[trio.SocketListener]]:
    """Listens there from now on; whoever connects waits until ``serve`` takes him in.

    Raises:
        ConfigError: the place cannot be had.
    """
    if place.path is not None:
        with lock_socket(place.path), _unix_listener(place.path) as listener:
            yield (listener,)
        return
    try:
        listeners = await trio.open_tcp_listeners(place.port, host=place.host)
    except OSError as error:
        raise ConfigError(f"http: {place}: {error.strerror or error}") from None
    try:
        yield listeners
    finally:
        for listener in listeners:
            await listener.aclose()


@contextmanager
def _unix_listener(path: Path) -> Iterator[trio.SocketListener]:
    """Listens on a socket with mode 0600; who else may not open the file does not get in."""
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
    """Serves until ``closing`` is set, and the grace after it is over."""
    await _Server(app).serve(listeners, closing)


class _Server:
    def __init__(self, app: ASGIApp) -> None:
        # Both libraries type the same protocol, each in its own words.
        self._app = ASGIWrapper(cast("ASGIFramework", app))
        self._config = _config()
        self._context = WorkerContext(None)
        self._places = trio.CapacityLimiter(HTTP_CONNECTIONS_MAX)
        self._open: set[_Guarded] = set()
        self._all_gone = trio.Event()

    async def serve(self, listeners: Sequence[trio.SocketListener], closing: trio.Event) -> None:
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                for listener in listeners:
                    accepting.start_soon(self._accept, listener, connections)
                await closing.wait()
                accepting.cancel_scope.cancel()
            await self._context.terminated.set()
            connections.cancel_scope.deadline = trio.current_time() + GRACE_SECONDS
            connections.start_soon(self._cut_what_is_left)

    async def _accept(self, listener: trio.SocketListener, connections: trio.Nursery) -> None:
        await trio.serve_listeners(self._serve_one, [listener], handler_nursery=connections)

    async def _serve_one(self, stream: trio.SocketStream) -> None:
        guarded = _Guarded(stream)
        self._open.add(guarded)
        try:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await TCPServer(
                    self._app,
                    self._config,
                    self._context,
                    ConnectionState(LifespanState({})),
                    guarded,  # type: ignore[arg-type]
                )
        finally:
            self._open.discard(guarded)
            if not self._open:
                self._all_gone.set()

    async def _cut_what_is_left(self) -> None:
        """Waits until all have gone, or the grace is over."""
        with trio.CancelScope(shield=True):
            if self._open:
                self._all_gone = trio.Event()
                with trio.move_on_after(GRACE_SECONDS):
                    await self._all_gone.wait()
            for guarded in list(self._open):
                guarded.cut()


def _config() -> Config:
    config = Config()
    config.accesslog = None
    config.errorlog = None
    config.keep_alive_timeout = HTTP_IDLE_SECONDS
    config.h11_max_incomplete_size = HTTP_HEADERS_BYTES_MAX
    config.include_server_header = False
    return config
