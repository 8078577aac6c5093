"""One connection of HTTP/1.1: hypercorn's, and where we say otherwise.

- No other protocol. hypercorn would take up HTTP/2 and WebSockets; who asks for them is answered in
  HTTP/1.1, as the standard allows.
- What is ambiguous is refused, and the connection closed, before a route sees it.
- A body is asked for (``100 Continue``) once somebody wants it.
- Who is answered before his body was read is answered, however long the body is.

- What takes a task or a step of the event loop for each request does without: a request is as cheap as
  what is said of it.

It knows no routes and no tokens.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import h11
import msgspec
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol import events
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState, H11SendableEvent, LifespanState
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nousd.bridge.replies import (
    BAD_REQUEST,
    HEADERS_TOO_LARGE,
    NOT_IMPLEMENTED,
    VERSION_NOT_SUPPORTED,
    Failure,
    envelope,
)
from nousd.net.streams import DirectStream
from nousd.wire.limits import HTTP_HEADERS_BYTES_MAX

_VERSIONS: Final = frozenset({b"1.0", b"1.1"})

_Headers = list[tuple[bytes, bytes]]

_UNREADABLE: Final[dict[int, tuple[Failure, str]]] = {
    431: (HEADERS_TOO_LARGE, f"the head has more than {HTTP_HEADERS_BYTES_MAX} bytes"),
    501: (NOT_IMPLEMENTED, "no transfer coding but chunked"),
}
"""status with which h11 gives up on what it reads -> what is said; anything else is no request."""


def fault_of(request: h11.Request, headers: _Headers) -> tuple[Failure, str] | None:
    """Return why a request's head is not taken; None if it is."""
    names = {name for name, _ in headers}
    if request.http_version not in _VERSIONS:
        return VERSION_NOT_SUPPORTED, "HTTP/1.1 is spoken here"
    if not request.target.startswith(b"/"):
        # In a whole URL there is a second host, and it would count.
        return BAD_REQUEST, "the target is to be a path"
    if _head_bytes(request, headers) > HTTP_HEADERS_BYTES_MAX:
        return _UNREADABLE[431]
    if b"transfer-encoding" in names and b"content-length" in names:
        return BAD_REQUEST, "Content-Length and Transfer-Encoding contradict each other"
    if b"transfer-encoding" in names and request.http_version == b"1.0":
        return BAD_REQUEST, "HTTP/1.0 has no Transfer-Encoding"
    return None


def _head_bytes(request: h11.Request, headers: _Headers) -> int:
    """Return how long the head is, written without spare spaces."""
    first = len(request.method) + len(request.target) + len(b"  HTTP/1.1\r\n\r\n")
    return first + sum(len(name) + len(value) + len(b": \r\n") for name, value in headers)


def _has_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether anything comes behind a head that is taken."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and int(value) > 0)
        for name, value in headers
    )


class Http11(H11Protocol):
    """What is said on a connection.

    Args:
        asgi: the application.
        parts: what hypercorn's own takes after the application.
        ended: called once the connection has come to its end, however it did.
    """

    def __init__(self, asgi: ASGIApp, *parts: Any, ended: Callable[[], None]) -> None:
        # hypercorn asks for its wrapper of an application, and does nothing but call it.
        super().__init__(self._answer, *parts)  # type: ignore[arg-type]
        self._asgi = asgi
        self._ended = ended
        self._has_body = False
        self._head = b""
        self._decided = trio.Event()

    async def handle(self, event: Event) -> None:
        """Take bytes, or that the connection has ended."""
        await super().handle(event)
        if isinstance(event, Closed):
            self._ended()

    async def _check_protocol(self, event: h11.Request) -> None:
        """Take up no other protocol."""

    async def _create_stream(self, request: h11.Request) -> None:
        headers = list(request.headers)
        fault = fault_of(request, headers)
        if fault is not None:
            await self._send_refusal(*fault, has_body=request.method != b"HEAD")
            await self.send(Closed())
            return
        self._has_body = _has_body(headers)
        self._decided = trio.Event()
        self.stream = HTTPStream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        await self.stream.handle(
            events.Request(
                stream_id=STREAM_ID,
                headers=headers,
                http_version=request.http_version.decode(),
                # As it is: h11 frames no answer to "head" as one to HEAD.
                method=request.method.decode("ascii"),
                raw_path=request.target,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1
        if self.connection.they_are_waiting_for_100_continue:
            await self._decided.wait()

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, *_threads: Callable[..., Any]
    ) -> None:
        decided, has_body = self._decided, self._has_body

        async def wanted() -> Message:
            decided.set()
            return await receive()

        async def answering(message: Message) -> None:
            if has_body and _is_last(message):
                await _while_dropping(receive, send(message))
            else:
                await send(message)
            decided.set()

        try:
            await self._asgi(scope, wanted, answering)
        finally:
            decided.set()

    async def _send_h11_event(self, event: H11SendableEvent) -> None:
        """Write; the head of a short answer together with what follows it."""
        try:
            data = self._head + (self.connection.send(event) or b"")
        except h11.LocalProtocolError:
            if self.connection.their_state is h11.ERROR:
                # Nobody is told any more, which must not be an endless answer's next step at once.
                await trio.lowlevel.checkpoint()
                return
            raise
        is_head = isinstance(event, h11.Response) and b"content-length" in dict(event.headers)
        self._head = data if is_head else b""
        if data and not is_head:
            await self.send(RawData(data=data))

    async def stream_send(self, event: events.Event) -> None:
        """Take what the application says; what closes the connection says so."""
        if isinstance(event, events.Response) and self._ends_with_answer():
            event = events.Response(
                event.stream_id, [*event.headers, (b"connection", b"close")], event.status_code
            )
        await super().stream_send(event)

    async def _maybe_recycle(self) -> None:
        """End what was asked, and the connection if this was the last. The application is told first
        that it has ended, and may drop everything because of that, whatever it was sending.
        """
        with trio.CancelScope(shield=True):
            await super()._maybe_recycle()

    def _ends_with_answer(self) -> bool:
        return self.connection.their_state is h11.SEND_BODY or self.context.terminated.is_set()

    async def _send_error_response(self, status_code: int) -> None:
        unreadable = BAD_REQUEST, "this is no request of HTTP/1.1"
        await self._send_refusal(*_UNREADABLE.get(status_code, unreadable))

    async def _send_refusal(self, failure: Failure, words: str, *, has_body: bool = True) -> None:
        body = msgspec.json.encode(envelope(failure, words))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            *self.config.response_headers("h11"),
        ]
        response = h11.Response(status_code=failure.status, headers=headers)
        await self._send_h11_event(response)
        if has_body:
            await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())


def _is_last(message: Message) -> bool:
    return message["type"] == "http.response.body" and not message.get("more_body", False)


async def _while_dropping(receive: Receive, sent: Awaitable[None]) -> None:
    """Send the end of an answer. hypercorn tells its application then that this was the end, which it
    could not while the pieces of a body that nobody wants stand in the way.
    """

    async def drop() -> None:
        while True:
            await receive()

    async with trio.open_nursery() as dropping:
        dropping.start_soon(drop)
        await sent
        dropping.cancel_scope.cancel()


class Connection(TCPServer):
    """A connection from its first byte to its end; awaited, it is served."""

    def __init__(
        self, app: ASGIApp, config: Config, context: WorkerContext, stream: DirectStream
    ) -> None:
        # hypercorn asks for a stream of TLS and its wrapper of an application; it uses of them what
        # these have.
        super().__init__(app, config, context, LifespanState({}), stream)  # type: ignore[arg-type]
        self._direct = stream
        self._idle = trio.CancelScope(deadline=trio.current_time() + config.keep_alive_timeout)
        self._is_idle = True

    async def run(self) -> None:
        """Serve it. Raises what is a fault of ours."""
        try:
            async with TaskGroup() as tasks:
                async with trio.open_nursery() as while_open:
                    # Who reads may wait for the answer to what was asked before, and that never ends
                    # once its reader has gone.
                    self.protocol = self._spoken(tasks, ended=while_open.cancel_scope.cancel)
                    while_open.start_soon(self._end_when_idle)
                    await self._read_data()
                    while_open.cancel_scope.cancel()
                await self.protocol.handle(Closed())
        finally:
            await self._close()

    def _spoken(self, tasks: TaskGroup, *, ended: Callable[[], None]) -> Any:
        """Return what hypercorn would choose itself, in a wrapper that looks for other protocols."""
        state = ConnectionState(self.state)
        parts = (self.config, self.context, tasks, state, False, None, None, self.protocol_send)
        return Http11(self.app, *parts, ended=ended)  # type: ignore[arg-type]

    async def _end_when_idle(self) -> None:
        """Close the connection once nothing was asked on it for long, or is when the server ends."""
        with self._idle:
            await self.context.terminated.wait()
        while self._idle.cancelled_caught and not self._is_idle:
            # The deadline passed in the very step in which a request came.
            with trio.CancelScope() as self._idle:
                await self.context.terminated.wait()
        if self._is_idle:
            with trio.CancelScope(shield=True):
                await self._initiate_server_close()

    async def _read_data(self) -> None:
        data: bytes | None = None
        while data != b"":
            try:
                data = await self._direct.receive_some()
            except (trio.ClosedResourceError, trio.BrokenResourceError):
                break
            await self.protocol.handle(RawData(data))

    async def protocol_send(self, event: Event) -> None:
        """Take what the protocol says: bytes, that it waits for a request or does not, or the end."""
        if isinstance(event, Updated):
            self._is_idle = event.idle
            seconds = self.config.keep_alive_timeout if event.idle else math.inf
            self._idle.deadline = trio.current_time() + seconds
        elif isinstance(event, RawData) and not self.send_lock.locked():
            await self._send(event.data)
        else:
            await super().protocol_send(event)

    async def _send(self, data: bytes) -> None:
        """Send what is taken at once, and wait only with the rest, if any."""
        left = data[self._direct.write_now(data) :]
        if left:
            # What is begun is written whole, or nothing behind it could be read.
            with trio.CancelScope(shield=True):
                await super().protocol_send(RawData(left))
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await trio.lowlevel.cancel_shielded_checkpoint()
