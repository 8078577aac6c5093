"""One connection to the event socket: a cursor that follows the log.

A client that says nothing gets the frozen event types from the moment it connected. One ``subscribe``
line chooses others, and from where; a second one replaces the first. Whatever else a client writes
here is ignored, as v1 has it.
"""

from __future__ import annotations

import select
from contextlib import suppress
from typing import Final

import msgspec
import trio

from nousd.daemon import boundary
from nousd.daemon.core import Core
from nousd.daemon.event_filters import FROZEN, event_filter, position
from nousd.errors import InvalidCommand, NousdError
from nousd.store.interface import EventFilter
from nousd.wire.codec import convert_payload, decode_request, encode_error, encode_response
from nousd.wire.framing import LineSplitter, LineTooLong
from nousd.wire.responses import Subscribed
from nousd.wire.subscribe import Subscribe, cursor

READ_BYTES: Final = 16 * 1024
SUBSCRIBE_BYTES_MAX: Final = 64 * 1024
"""A longer line on this socket is nothing we know, and is skipped."""


_HEARD_MAX: Final = 16
"""Answers owed to a client that sends ``subscribe`` lines and does not read; then we do not either."""

_HANG_UP_POLL_SECONDS: Final = 1.0


class _Subscription(msgspec.Struct, frozen=True):
    """Where to go on, and what for."""

    after: int
    wanted: EventFilter


class _Heard(msgspec.Struct, frozen=True):
    """What to answer a line with, and the subscription it brings if it was a good one."""

    answer: bytes
    subscription: _Subscription | None = None


async def serve_events(core: Core, stream: trio.abc.Stream) -> None:
    """Follows the log for one client until it leaves or the daemon closes."""
    await _Feed(core, stream).serve()


class _Feed:
    def __init__(self, core: Core, stream: trio.abc.Stream) -> None:
        self._core = core
        self._stream = stream
        self._current = _Subscription(core.hub.head, EventFilter(types=FROZEN))
        self._heard: list[_Heard] = []
        self._answered = trio.Event()
        self._idle = trio.CancelScope()

    async def serve(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen, nursery.cancel_scope)
            nursery.start_soon(self._stop_waiting_at_close)
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._follow()
            nursery.cancel_scope.cancel()

    # --- what the client is told -------------------------------------------------------------

    async def _follow(self) -> None:
        """Writes what the subscription wants; returns when the daemon closes and all is written."""
        hub = self._core.hub
        position = self._current.after
        while True:
            position = await self._answer_what_was_heard(position)
            lines, position = await hub.page_after(position, self._current.wanted)
            if lines:
                await self._stream.send_all(b"".join(lines))
            elif position >= hub.head and not self._heard:
                if self._core.closing.is_set():
                    return
                with trio.CancelScope() as self._idle:
                    await hub.wait_after(position)

    async def _answer_what_was_heard(self, position: int) -> int:
        while self._heard:
            heard = self._heard.pop(0)
            if heard.subscription is not None:
                self._current = heard.subscription
                position = heard.subscription.after
            await self._stream.send_all(heard.answer)
            self._answered.set()
        return position

    async def _stop_waiting_at_close(self) -> None:
        await self._core.closing.wait()
        self._idle.cancel()

    # --- what the client says ----------------------------------------------------------------

    async def _listen(self, connection: trio.CancelScope) -> None:
        splitter = LineSplitter(SUBSCRIBE_BYTES_MAX)
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while chunk := await self._stream.receive_some(READ_BYTES):
                for line in splitter.feed(chunk):
                    await self._hear(line)
            for line in splitter.end():
                await self._hear(line)
            # Who has nothing more to say may still listen; who has hung up does not.
            await _wait_hung_up(self._stream)
        connection.cancel()

    async def _hear(self, line: bytes | LineTooLong) -> None:
        request_id = ""

        async def understood() -> _Heard | None:
            nonlocal request_id
            request = None if isinstance(line, LineTooLong) else decode_request(line)
            if request is None or request.type != "subscribe":
                return None
            request_id = request.id
            return self._subscribed(request_id, convert_payload(request.payload, Subscribe))

        heard = await boundary.contained(understood, "subscribe")
        if heard is None or isinstance(heard, InvalidCommand):
            return
        if isinstance(heard, NousdError):
            heard = _Heard(encode_error(request_id, boundary.wire_error(heard)))
        while len(self._heard) >= _HEARD_MAX:
            self._answered = trio.Event()
            await self._answered.wait()
        self._heard.append(heard)
        self._idle.cancel()

    def _subscribed(self, request_id: str, command: Subscribe) -> _Heard:
        head = self._core.hub.head
        after = head if command.after is None else position(command.after, head=head)
        wanted = event_filter(command)
        answer = encode_response(request_id, Subscribed(cursor=cursor(after), head=cursor(head)))
        return _Heard(answer, _Subscription(after, wanted))


async def _wait_hung_up(stream: trio.abc.Stream) -> None:
    """Returns once the peer of a half-closed stream has closed the other half too.

    The kernel has no wakeable event for it that trio offers, so it is looked at now and then.
    """
    if not isinstance(stream, trio.SocketStream):
        return
    poll = select.poll()
    poll.register(stream.socket.fileno(), 0)
    gone = select.POLLHUP | select.POLLERR
    while not any(happened & gone for _, happened in poll.poll(0)):  # noqa: ASYNC110
        await trio.sleep(_HANG_UP_POLL_SECONDS)
