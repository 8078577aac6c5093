"""One connection of HTTP/1.1 on trio: h11 parses and frames, an ASGI application responds.

Theory of operation. A connection is one task. It reads a head within the idle deadline, checks it
(``strict_http``), and calls the application in that same task. The application pulls the body:
``receive`` reads from the socket when it is called, so nothing is read too early, there is no queue, and
a request needs no task of its own. A client that waits for ``100 Continue`` gets it at the first
``receive``. After the body, ``receive`` waits for the client to disconnect; bytes of the next request
that arrive meanwhile are kept, up to a bound.

A write that has begun is completed: it is shielded from cancellation, and only the stream's own deadline
or ``cut`` ends it. A client that disconnects does not cause an error in the application: further
messages of the application are dropped, and ``receive`` returns ``http.disconnect``.

Upgrades to other protocols are not supported. This module knows no routes and no tokens.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import unquote

import h11
import trio
from starlette.types import ASGIApp, Message, Scope

from nousd.bridge.access.credentials import CONNECTION
from nousd.bridge.http.strict_http import (
    AMBIGUOUS,
    ChunkGuard,
    Fault,
    Refused,
    fault_for_status,
    fault_of,
    http_date,
    refusal,
    split_head,
)
from nousd.bridge.replies import INTERNAL
from nousd.net.streams import DirectStream
from nousd.wire.limits import HTTP_HEADERS_BYTES_MAX, HTTP_IDLE_SECONDS

AHEAD_BYTES_MAX: Final = 64 * 1024
"""Maximum bytes of later requests that are kept during a request; beyond it, reading stops."""

LINGER_SECONDS: Final = 2.0
"""How long input is still read and dropped after the last response. Closing at once would reset the
connection, and the client could lose the response."""

_BODILESS: Final = frozenset({204, 304})


class Connection:
    """A connection from its first byte to its end.

    Args:
        stream: the socket; its writes have a deadline (``server._DeadlineStream``).
        cut: closes the stream at once.
        keep: called when a credential is accepted on this connection; from then on it is never cut to
            make room for others.
    """

    def __init__(
        self,
        app: ASGIApp,
        stream: DirectStream,
        cut: Callable[[], None],
        keep: Callable[[], None],
    ) -> None:
        self._app = app
        self.cut = cut
        self.keep = keep
        self._stream = stream
        self._machine = h11.Connection(
            h11.SERVER, max_incomplete_event_size=2 * HTTP_HEADERS_BYTES_MAX
        )
        self._ahead = b""
        self._idle = trio.CancelScope()
        self._is_ending = False
        self._exchange: _Exchange | None = None

    def end(self) -> None:
        """Accept no further request: stop at once if idle, else after the current response."""
        self._is_ending = True
        if self._exchange is None:
            self._idle.cancel()

    async def run(self) -> None:
        """Serve requests until the client or the server ends the connection."""
        while not self._is_ending:
            try:
                request = await self._next_request()
            except Refused as refused:
                await self._refuse(refused)
                return
            if request is None:
                return
            exchange = self._exchange = _Exchange(self, request)
            await exchange.run(self._app)
            self._exchange = None
            if not await self._is_ready_for_next(exchange):
                return

    # --- reading -------------------------------------------------------------------------------

    async def _next_request(self) -> h11.Request | None:
        """Return the next request; None if the client disconnected or was idle for too long, or if the
        server is stopping.

        Raises:
            Refused: the head is refused.
        """
        self._idle = trio.CancelScope(deadline=trio.current_time() + HTTP_IDLE_SECONDS)
        with self._idle:
            checked = 0
            while (split := split_head(self._ahead, checked)) is None:
                checked = len(self._ahead)
                received = await self._read()
                if not received:
                    return None
                self._ahead += received
            head, self._ahead = split
            return self._parse(head)
        return None

    def _parse(self, head: bytes) -> h11.Request:
        self._machine.receive_data(head)
        event = self._next_event()
        if not isinstance(event, h11.Request):
            raise Refused(AMBIGUOUS)
        fault = fault_of(event)
        if fault is not None:
            raise Refused(fault, is_bodiless=event.method == b"HEAD")
        return event

    def _next_event(self) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
        try:
            return self._machine.next_event()
        except h11.RemoteProtocolError as error:
            raise Refused(fault_for_status(error.error_status_hint)) from error

    async def _read(self) -> bytes:
        """Return the next bytes; empty once the client has disconnected."""
        try:
            return await self._stream.receive_some()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""

    async def read_body(self, guard: ChunkGuard | None) -> h11.Event | type[h11.NEED_DATA] | None:
        """Return the next event of the request's body; None if the client has disconnected.

        Raises:
            Refused: the framing is wrong.
        """
        while True:
            event = self._next_event()
            if event is not h11.NEED_DATA:
                return event  # type: ignore[return-value]
            received, self._ahead = self._ahead or await self._read(), b""
            if not received:
                return None
            if guard is not None:
                guard.check(received)
            self._machine.receive_data(received)

    def take_received_body(self, guard: ChunkGuard | None) -> list[h11.Data | h11.EndOfMessage]:
        """Return the parts of the body that have already arrived.

        A small body arrives with its head, so the connection can go on even if the application responds
        without reading it. Framing errors are found when the rest is read.
        """
        events: list[h11.Data | h11.EndOfMessage] = []
        received, self._ahead = self._ahead, b""
        try:
            if guard is not None:
                guard.check(received)
            if received:
                self._machine.receive_data(received)
            while isinstance(event := self._machine.next_event(), h11.Data | h11.EndOfMessage):
                events.append(event)
                if isinstance(event, h11.EndOfMessage):
                    break
        except (Refused, h11.RemoteProtocolError):
            pass
        return events

    async def wait_gone(self) -> None:
        """Wait until the client disconnects; keep the bytes that arrive meanwhile, up to a bound."""
        while len(self._ahead) < AHEAD_BYTES_MAX:
            received = await self._read()
            if not received:
                return
            self._ahead += received
        await trio.sleep_forever()

    # --- writing -------------------------------------------------------------------------------

    async def send(self, data: bytes) -> bool:
        """Write all bytes, waiting only if the kernel does not accept them at once. Return False if the
        client has disconnected.
        """
        rest = data[self._stream.write_now(data) :]
        if not rest:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return True
        try:
            # After a partial write, the client could not parse anything that follows.
            with trio.CancelScope(shield=True):
                await self._stream.send_all(rest)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        await trio.lowlevel.checkpoint_if_cancelled()
        return True

    def encode(self, *events: h11.Event) -> bytes:
        """Return the bytes of h11 events, framed for the current response."""
        return b"".join(self._machine.send(event) or b"" for event in events)

    async def _refuse(self, refused: Refused) -> None:
        """Respond with a refusal, and end the connection."""
        events = refusal(refused.fault, is_bodiless=refused.is_bodiless)
        await self.send(self.encode(*events))
        await self._linger()

    async def _linger(self) -> None:
        """Shut down the sending side, then read and drop input for ``LINGER_SECONDS`` at most."""
        with trio.move_on_after(LINGER_SECONDS):
            try:
                await self._stream.send_eof()
            except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
                return
            while await self._read():
                pass

    # --- from one request to the next ----------------------------------------------------------

    @property
    def is_body_open(self) -> bool:
        """True if the current body has not been read completely."""
        return self._machine.their_state is h11.SEND_BODY

    @property
    def closes_after_answer(self) -> bool:
        """True if no request can follow: the server is stopping, or the current body has not been read
        completely.
        """
        return self._is_ending or self.is_body_open

    @property
    def has_more_after_last(self) -> bool:
        """True if bytes follow a request that declared itself the last one."""
        return self._machine.their_state is h11.MUST_CLOSE and bool(
            self._ahead or self._machine.trailing_data[0]
        )

    @property
    def wants_continue(self) -> bool:
        """True if the client waits for ``100 Continue`` before it sends the body."""
        return self._machine.they_are_waiting_for_100_continue

    async def _is_ready_for_next(self, exchange: _Exchange) -> bool:
        if exchange.is_gone:
            return False
        ours, theirs = self._machine.our_state, self._machine.their_state
        if (ours, theirs) != (h11.DONE, h11.DONE):
            is_unread = theirs in (h11.SEND_BODY, h11.ERROR) or self.has_more_after_last
            if is_unread and not self.wants_continue:
                await self._linger()
            return False
        # h11 gives back the bytes after the body. They belong to the next request, whose head has to be
        # checked before h11 parses it.
        rest = self._machine.trailing_data[0]
        if rest:
            self._ahead = bytes(rest) + self._ahead
            self._machine = h11.Connection(
                h11.SERVER, max_incomplete_event_size=2 * HTTP_HEADERS_BYTES_MAX
            )
        else:
            self._machine.start_next_cycle()
        return True


class _Exchange:
    """One request and its response, as an ASGI application sees them."""

    def __init__(self, connection: Connection, request: h11.Request) -> None:
        self._connection = connection
        self._request = request
        is_chunked = any(name == b"transfer-encoding" for name, _ in request.headers)
        self._guard = ChunkGuard() if is_chunked else None
        self._has_read_end = False
        self._has_delivered_end = False
        self._has_begun = False
        self._has_ended = False
        self._is_bodiless = request.method == b"HEAD"
        self._head = b""
        self._early: deque[h11.Data | h11.EndOfMessage] = deque()
        self._receiving = trio.CancelScope()
        self.is_gone = False

    async def run(self, app: ASGIApp) -> None:
        """Let the application respond. If it raises an exception, the client still gets a response."""
        if not _has_body(self._request):
            await self._read_end()
            if self._connection.has_more_after_last:
                await self._refuse(AMBIGUOUS)
                return
        try:
            await app(self._scope(), self.receive, self.send)
        finally:
            if not self._has_begun and not self.is_gone:
                await self._refuse((INTERNAL, "the request could not be answered"))
            elif not self._has_ended:
                self.is_gone = True

    def _scope(self) -> Scope:
        path, _, query = self._request.target.partition(b"?")
        return {
            "type": "http",
            "http_version": self._request.http_version.decode(),
            "asgi": {"spec_version": "2.1", "version": "3.0"},
            # Upper case only: h11 frames the response to "head" and to "HEAD" differently.
            "method": self._request.method.decode("ascii"),
            "scheme": "http",
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": list(self._request.headers),
            "client": None,
            "server": None,
            "state": {},
            "extensions": {CONNECTION: self._connection},
        }

    # --- receive -------------------------------------------------------------------------------

    async def receive(self) -> Message:
        """Return the next part of the body, or a message that the client has disconnected."""
        if self.is_gone or self._has_ended:
            await trio.lowlevel.checkpoint()
            return {"type": "http.disconnect"}
        with trio.CancelScope() as self._receiving:
            if not self._has_delivered_end:
                return await self._receive_body()
            await self._connection.wait_gone()
            self._leave()
        return {"type": "http.disconnect"}

    async def _receive_body(self) -> Message:
        if self._has_read_end:
            return self._finish_body()
        if self._connection.wants_continue:
            interim = h11.InformationalResponse(status_code=100, headers=[])
            await self._connection.send(self._connection.encode(interim))
        try:
            event = (
                self._early.popleft()
                if self._early
                else await self._connection.read_body(self._guard)
            )
        except Refused as refused:
            await self._refuse(refused.fault)
            return {"type": "http.disconnect"}
        if isinstance(event, h11.Data):
            return {"type": "http.request", "body": bytes(event.data), "more_body": True}
        if isinstance(event, h11.EndOfMessage):
            return self._finish_body()
        self._leave()
        return {"type": "http.disconnect"}

    def _finish_body(self) -> Message:
        self._has_delivered_end = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def _read_end(self) -> None:
        """Consume the end of a request without a body, which has already arrived."""
        await self._connection.read_body(None)
        self._has_read_end = True

    # --- send ----------------------------------------------------------------------------------

    async def send(self, message: Message) -> None:
        """Send a message of the application: the head of the response, or a part of its body."""
        if self.is_gone or self._has_ended:
            # Dropped; a checkpoint lets an endless response notice its cancellation.
            await trio.lowlevel.checkpoint()
        elif message["type"] == "http.response.start":
            await self._begin(message["status"], message.get("headers", ()))
        else:
            is_last = not message.get("more_body", False)
            await self._continue(message.get("body", b""), is_last=is_last)

    async def _begin(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self._has_begun = True
        if self._connection.is_body_open:
            self._early.extend(self._connection.take_received_body(self._guard))
        self._is_bodiless = self._is_bodiless or status in _BODILESS
        fields = [(bytes(name), bytes(value)) for name, value in headers]
        fields.append((b"date", http_date(int(time.time()))))
        if self._connection.closes_after_answer:
            fields.append((b"connection", b"close"))
        head = self._connection.encode(h11.Response(status_code=status, headers=fields))
        if any(name.lower() == b"content-length" for name, _ in fields):
            self._head = head  # A short response goes out in one write.
        else:
            await self._write(head)

    async def _continue(self, body: Any, *, is_last: bool) -> None:
        events: list[h11.Event] = []
        if body and not self._is_bodiless:
            events.append(h11.Data(data=body))
        if is_last:
            events.append(h11.EndOfMessage())
            self._has_ended = True
        data, self._head = self._head + self._connection.encode(*events), b""
        if data:
            await self._write(data)
        if is_last:
            # A task that waits in ``receive`` learns that the response is complete.
            self._receiving.cancel()

    async def _write(self, data: bytes) -> None:
        if not await self._connection.send(data):
            self._leave()

    async def _refuse(self, fault: Fault) -> None:
        """Respond with a refusal; if a response has already begun, end the connection instead."""
        if not self._has_begun:
            self._has_begun = self._has_ended = True
            await self._write(
                self._connection.encode(*refusal(fault, is_bodiless=self._is_bodiless))
            )
        else:
            self._leave()

    def _leave(self) -> None:
        """Record that the client has disconnected; a task that waits in ``receive`` learns of it."""
        self.is_gone = True
        self._receiving.cancel()


def _has_body(request: h11.Request) -> bool:
    """Return whether bytes of a body follow the head."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and int(value) > 0)
        for name, value in request.headers
    )
