"""One connection to the event socket: a cursor that follows the log.

A client that sends nothing gets the frozen event types of the v1 scope (``eventlog.v1_scope``) from the
moment it connected. A ``subscribe`` line chooses other events and a position, or a view of them; a
second one replaces the first. Any other line is ignored, as in v1; only a line that is too long gets an
error, because it may have been meant as a subscription.
"""

from __future__ import annotations

import math
import select
from contextlib import suppress
from typing import Final

import msgspec
import trio
from msgspec import UNSET

from nousd.daemon import error_boundary
from nousd.daemon.eventlog.event_filters import check_pruned, event_filter, position
from nousd.daemon.eventlog.hub import PAGE_BYTES, LineOf, whole_line
from nousd.daemon.eventlog.normalized import NormalizedReader
from nousd.daemon.eventlog.v1_scope import V1_FILTER, V1Scope
from nousd.daemon.services import Services
from nousd.errors import InvalidCommand, NousdError
from nousd.event_window import Notifier
from nousd.net.streams import DirectStream
from nousd.store.records import EventFilter
from nousd.wire.codec.envelope import convert_payload, decode_request, encode_error, encode_response
from nousd.wire.codec.framing import LineSplitter, LineTooLong
from nousd.wire.commands.subscribe import Subscribe, cursor
from nousd.wire.limits import SUBSCRIBE_BYTES_MAX
from nousd.wire.responses import Keepalive, Subscribed

READ_BYTES: Final = 16 * 1024

_HANG_UP_POLL_SECONDS: Final = 1.0


class _Subscription(msgspec.Struct, frozen=True):
    """The position and filter of a subscriber. ``request_id`` is that of its ``subscribe`` line;
    ``confirms`` is true if the client answers approvals and questions. ``line_of`` leaves out events
    that a client without such a line does not see. ``view`` renders the events if one was chosen.
    """

    after: int
    event_filter: EventFilter
    request_id: str = ""
    confirms: bool = False
    keepalive_seconds: float = math.inf
    line_of: LineOf = whole_line
    view: NormalizedReader | None = None


class _Response(msgspec.Struct, frozen=True):
    """The response to a line, and the subscription if the line is valid."""

    answer: bytes
    subscription: _Subscription | None = None


async def serve_events(services: Services, stream: trio.abc.Stream) -> None:
    """Follow the log for one client until it disconnects or the daemon closes."""
    with services.meters.count_subscriber():
        await _Feed(services, stream).serve()


class _Feed:
    """Runs two tasks: one writes; the other reads lines and hands over one response at a time. So no
    more lines are read from a client that never reads, and at most one page is held for it.
    """

    position: int
    event_filter: EventFilter
    line_of: LineOf

    def __init__(self, services: Services, stream: trio.abc.Stream) -> None:
        self._services = services
        self._stream = stream
        self._direct = DirectStream(stream) if isinstance(stream, trio.SocketStream) else None
        self._take_up(
            _Subscription(services.hub.head, V1_FILTER, line_of=_scope_of(services).line_of)
        )
        self._unsent = memoryview(b"")
        self._response: _Response | None = None
        self._answered = trio.Event()
        self._notifier = Notifier()
        self._written_at = trio.current_time()

    async def serve(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen, nursery.cancel_scope)
            nursery.start_soon(self._stop_waiting_at_close)
            try:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await self._follow()
            finally:
                self._services.approvers.leave(self)
            nursery.cancel_scope.cancel()

    # --- lines for the client ----------------------------------------------------------------

    async def _follow(self) -> None:
        """Write the wanted events; return when the daemon closes and all of them are written."""
        hub = self._services.hub
        while True:
            if self._unsent:
                await self._send_rest()
            if self._response is not None:
                await self._write_responses()
            lines, self.position = await self._page()
            if lines:
                await self._write(lines)
                if self.position < hub.head:
                    # Writes that the kernel accepts at once do not wait, so give other tasks a turn.
                    await trio.lowlevel.checkpoint()
            elif trio.current_time() >= self._keepalive_at:
                await self._write(self._keepalive(self.position))
            elif self.position < hub.head:
                # A long stretch without a match must not block other tasks.
                await trio.lowlevel.checkpoint()
            elif self._response is None:
                if self._services.closing.is_set():
                    return
                await self._wait()

    async def _page(self) -> tuple[bytes, int]:
        """Return the next lines for the client, and the position after them."""
        hub, view = self._services.hub, self._current.view
        if view is None:
            return await hub.page_after(self.position, self.event_filter, self.line_of)
        events, until = await hub.events_after(self.position, self.event_filter)
        lines, position = await view.render(events, until, PAGE_BYTES)
        return b"".join(line + b"\n" for line in lines), position

    async def _wait(self) -> None:
        """Write events as they are published. Return when the kernel does not accept them all or the
        next page must be read, and at a line of the client, the close or the next keep-alive.
        """
        with self._services.hub.attach_reader(self):
            if self._current.keepalive_seconds == math.inf:
                await self._notifier.wait()
            else:
                with trio.move_on_at(self._keepalive_at):
                    await self._notifier.wait()

    def take(self, lines: bytes, position: int) -> bool:
        """See ``Reader.take``."""
        if lines and self._current.view is not None:
            # A view may have to read the log, which only a task can do.
            self._notifier.notify()
            return False
        self.position = position
        if lines:
            sent = self._write_now(lines)
            if sent < len(lines):
                self._unsent = memoryview(lines)[sent:]
        if not self._unsent and position == self._services.hub.head:
            return True
        self._notifier.notify()
        return False

    async def _send_rest(self) -> None:
        unsent, self._unsent = self._unsent, memoryview(b"")
        await self._send(unsent)

    async def _write_responses(self) -> None:
        while self._response is not None:
            response, self._response = self._response, None
            self._answered.set()
            if response.subscription is not None:
                self._begin(response.subscription)
            await self._write(response.answer)

    def _take_up(self, subscription: _Subscription) -> None:
        self._current = subscription
        self.position = subscription.after
        self.event_filter, self.line_of = subscription.event_filter, subscription.line_of

    def _begin(self, subscription: _Subscription) -> None:
        self._take_up(subscription)
        if subscription.confirms:
            self._services.approvers.declare(self, subscription.event_filter)
        else:
            self._services.approvers.leave(self)

    async def _write(self, lines: bytes) -> None:
        sent = self._write_now(lines)
        if sent < len(lines):
            await self._send(memoryview(lines)[sent:])

    def _write_now(self, lines: bytes) -> int:
        """Write as many bytes as the kernel accepts at once; return their number."""
        self._written_at = trio.current_time()
        return 0 if self._direct is None else self._direct.write_now(lines)

    async def _send(self, lines: memoryview) -> None:
        await self._stream.send_all(lines)
        # Keep-alives do not pile up while a reader stalls.
        self._written_at = trio.current_time()

    @property
    def _keepalive_at(self) -> float:
        return self._written_at + self._current.keepalive_seconds

    def _keepalive(self, position: int) -> bytes:
        keepalive = Keepalive(cursor=cursor(position), head=cursor(self._services.hub.head))
        return encode_response(self._current.request_id, keepalive)

    async def _stop_waiting_at_close(self) -> None:
        await self._services.closing.wait()
        self._notifier.notify()

    # --- lines from the client ---------------------------------------------------------------

    async def _listen(self, connection: trio.CancelScope) -> None:
        splitter = LineSplitter(SUBSCRIBE_BYTES_MAX)
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while chunk := await self._stream.receive_some(READ_BYTES):
                for line in splitter.feed(chunk):
                    await self._receive_line(line)
            for line in splitter.end():
                await self._receive_line(line)
            # A client that ended its input may still listen; one that hung up does not.
            await _wait_hung_up(self._stream)
        connection.cancel()

    async def _receive_line(self, line: bytes | LineTooLong) -> None:
        response = _too_long() if isinstance(line, LineTooLong) else await self._answer_line(line)
        if response is None:
            return
        while self._response is not None:
            self._answered = trio.Event()
            await self._answered.wait()
        self._response = response
        self._notifier.notify()

    async def _answer_line(self, line: bytes) -> _Response | None:
        """Return the subscription and the response of a line; None if it is not a subscription."""
        if b"subscribe" not in line and b"\\" not in line:
            return None  # A flood of other lines must not take the time to decode each.
        request_id = ""

        async def accept_request() -> _Response | None:
            nonlocal request_id
            request = decode_request(line)
            if request.type != "subscribe":
                return None
            request_id = request.id
            return await self._accept_subscription(
                request_id, convert_payload(request.payload, Subscribe)
            )

        response = await error_boundary.run_contained(accept_request, "subscribe")
        if isinstance(response, InvalidCommand):
            return None
        if isinstance(response, NousdError):
            head = cursor(self._services.hub.head)
            return _Response(
                encode_error(request_id, error_boundary.to_wire_error(response, head=head))
            )
        return response

    async def _accept_subscription(self, request_id: str, command: Subscribe) -> _Response:
        head = self._services.hub.head
        start = position(command, head=head, default=head)
        after = start.after
        filter_ = event_filter(command)
        view = None
        if command.view is not None:
            view = NormalizedReader(self._services.store, start)
        answer = Subscribed(
            cursor=cursor(after),
            head=cursor(head),
            pruned=await check_pruned(self._services.store, after, filter_, head=head),
            confirms=command.confirms or UNSET,
        )
        keepalive_seconds = command.keepalive_seconds or math.inf
        return _Response(
            encode_response(request_id, answer),
            _Subscription(
                after, filter_, request_id, command.confirms, keepalive_seconds, view=view
            ),
        )


def _scope_of(services: Services) -> V1Scope:
    """Return the v1 scope as clients see it now."""
    sessions = services.sessions
    return V1Scope(sessions.committed_active_id, sessions.list_committed_running())


def _too_long() -> _Response:
    message = f"line_too_long: a line on this socket has at most {SUBSCRIBE_BYTES_MAX} bytes"
    return _Response(encode_error("", InvalidCommand(message)))


async def _wait_hung_up(stream: trio.abc.Stream) -> None:
    """Return once the peer of a half-closed stream has closed the other half too.

    The kernel reports that with no event that trio can wait for, so it is polled.
    """
    if not isinstance(stream, trio.SocketStream):
        return
    poll = select.poll()
    poll.register(stream.socket.fileno(), 0)
    hang_up = select.POLLHUP | select.POLLERR
    while not any(events & hang_up for _, events in poll.poll(0)):  # noqa: ASYNC110
        await trio.sleep(_HANG_UP_POLL_SECONDS)
