"""Subscribing to events, on anyio. A client that subscribes after the cursor of a state that it read
misses nothing.

Nothing is read ahead of the caller except the rest of one read. The daemon waits for a slow reader and
keeps its position in the log, so there is no buffer here that could overflow.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

import anyio
import msgspec
from anyio.abc import AnyByteStream

from nousd.client.answers import (
    REQUEST_TIMEOUT_SECONDS,
    Answer,
    ReceivedEvent,
    decode_subscription_line,
    encode_request,
    new_splitter,
)
from nousd.client.dial import Dial, Where, dial_of, wait_for_stream
from nousd.client.resuming import silence_of
from nousd.client.typed import loads
from nousd.errors import AnswerInvalid, AnswerTimedOut, ConnectionLost
from nousd.wire.codec.decoding import convert
from nousd.wire.codec.framing import LineTooLong
from nousd.wire.commands.subscribe import Subscribe
from nousd.wire.responses import Keepalive, Subscribed


class Subscription:
    """An async iterator over new events, which ends only with an exception. Open it with ``subscribe``.

    ``subscribed`` is the daemon's answer: ``cursor``, after which events follow, and ``head``, the
    newest event at that time. ``cursor`` is the position from which to continue after a lost connection:
    that of the last event that was returned, or that a keep-alive reported as filtered out.
    """

    def __init__(self, stream: AnyByteStream) -> None:
        self._stream = stream
        self._silence_seconds = math.inf
        self._splitter = new_splitter()
        self._ready: deque[bytes | LineTooLong] = deque()
        self.subscribed = Subscribed(cursor="", head="")
        self.cursor = ""

    async def start(self, wanted: Subscribe) -> None:
        """Send the subscription's only request, and wait for its answer.

        Raises:
            Refused: the daemon refused the subscription, for example a cursor beyond the end of the log.
            ConnectionLost, AnswerInvalid
        """
        self._silence_seconds = silence_of(wanted.keepalive_seconds)
        payload = msgspec.to_builtins(wanted)
        settings = {key: value for key, value in payload.items() if value is not None}
        try:
            await self._stream.send(encode_request("s1", "subscribe", settings))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise ConnectionLost("the daemon closed the connection") from None
        answer = (await self._answer()).raise_for_refusal()
        try:
            self.subscribed = convert(answer.payload, Subscribed)
        except msgspec.ValidationError as error:
            raise AnswerInvalid(f"subscribed: {error}") from None
        self.cursor = self.subscribed.cursor

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedEvent:
        """Return the next event, however long it takes. A cancelled call loses no event.

        Raises:
            ConnectionLost: the daemon closed the connection, or missed three keep-alives; subscribe
                again after ``cursor``, or use ``follow``.
            AnswerInvalid: the line is not an event.
        """
        while isinstance(received := decode_subscription_line(await self._line(), loads), Answer):
            self._take_keepalive(received.raise_for_refusal())
        self.cursor = received.id
        return received

    @property
    def has_more(self) -> bool:
        """True if the next line has already been read."""
        return bool(self._ready)

    def _take_keepalive(self, answer: Answer) -> None:
        try:
            self.cursor = convert(answer.payload, Keepalive).cursor
        except msgspec.ValidationError as error:
            raise AnswerInvalid(f"{answer.type}: {error}") from None

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def _answer(self) -> Answer:
        while True:
            received = decode_subscription_line(await self._line(), loads)
            if isinstance(received, Answer):
                return received

    async def _line(self) -> bytes | LineTooLong:
        while not self._ready:
            self._ready.extend(self._splitter.feed(await self._receive()))
        return self._ready.popleft()

    async def _receive(self) -> bytes:
        seconds = self._silence_seconds
        with anyio.move_on_after(None if seconds == math.inf else seconds):
            try:
                return await self._stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                raise ConnectionLost("the daemon closed the connection") from None
        raise ConnectionLost(f"the daemon gave no sign of life for {seconds:g} seconds")


@asynccontextmanager
async def subscribe(
    where: Where,
    wanted: Subscribe,
    *,
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
) -> AsyncIterator[Subscription]:
    """Open a subscription on a new connection.

    Args:
        timeout_seconds: for connecting and for the answer; events have no time-out.

    Raises:
        DaemonUnreachable, Refused, AnswerTimedOut, ConnectionLost, AnswerInvalid
    """
    subscription = await open_subscription(dial_of(where), wanted, timeout_seconds)
    try:
        yield subscription
    finally:
        await subscription.aclose()


async def open_subscription(dial: Dial, wanted: Subscribe, timeout_seconds: float) -> Subscription:
    """Open a subscription that the caller closes. Arguments and errors are those of ``subscribe``."""
    subscription = Subscription(await wait_for_stream(dial.events(), dial, timeout_seconds))
    is_started = False
    try:
        with anyio.move_on_after(None if timeout_seconds == math.inf else timeout_seconds):
            await subscription.start(wanted)
            is_started = True
    finally:
        if not is_started:
            await subscription.aclose()
    if not is_started:
        raise AnswerTimedOut(f"no answer to subscribe within {timeout_seconds:g} seconds")
    return subscription
