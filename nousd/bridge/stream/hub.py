"""The daemon's events for all streams of the bridge: the newest from a window, older ones from the log.

One subscription follows the log. Each event is rendered once for all readers; ``nousd.event_window``
describes how readers share the window and wait. The hub knows nothing of HTTP, and of a view only the
types of events that it renders.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import anyio
import trio

from nousd.bridge.stream.rendered_event import ENDING_TYPES, RenderedEvent, StreamQuery
from nousd.client.answers import ReceivedEvent, decode_subscription_line
from nousd.client.client import Client
from nousd.client.follow import Follower
from nousd.client.resuming import Backoff, Retry
from nousd.client.typed import loads
from nousd.errors import ClientError, Refused
from nousd.event_window import EventWindow, Notifier, fill_page
from nousd.views.event_view import EventView
from nousd.views.stream_position import StreamPosition, position_after_event
from nousd.wire.commands import GetEvents
from nousd.wire.commands.subscribe import Subscribe, cursor, cursor_seq
from nousd.wire.objects.field_types import EventTypes
from nousd.wire.responses import Events

WINDOW_EVENTS_MAX: Final = 8192
WINDOW_BYTES_MAX: Final = 12 * 1024 * 1024
"""The bounds of the window; a reader that falls behind the window reads the log."""

PAGE_EVENTS: Final = 1024
"""Maximum events of the window that a reader examines in one step."""

PAGE_BYTES: Final = 64 * 1024
"""Maximum bytes that a reader gets in one step, unless a single event is longer."""

LOGGED_EVENTS: Final = 128
"""Maximum events of one read of the log: about a page, because events beyond the page are read again."""

_logger: Final = logging.getLogger(__name__)


class Page(NamedTuple):
    """A part of a stream: whole frames, or no bytes if the stream shows none of the events.

    ``position`` is the position after them. ``has_end`` is true if they include the end of the run or of
    its session.
    """

    data: bytes
    position: StreamPosition
    has_end: bool


class Hub:
    """The newest events of a daemon's log, while ``follow`` runs.

    Args:
        views: the views that streams may request; events that none of them renders are left out.
        retry: how long to try to reach the daemon again.
        observe: receives every event once, in order; it must not raise.

    ``has_begun`` is true once the daemon has been reached, ``has_ended`` once no more events will come.
    """

    def __init__(
        self,
        daemon: Client,
        views: Iterable[EventView],
        retry: Retry,
        observe: Callable[[ReceivedEvent], None] = lambda _received: None,
    ) -> None:
        self._daemon = daemon
        self._types = ENDING_TYPES.union(*(view.types for view in views))
        self._retry = retry
        self._observe = observe
        self._window: EventWindow[RenderedEvent] = EventWindow()
        self._begun_or_ended = trio.Event()
        self._ended = trio.Event()
        self.has_begun = False
        self._following: Follower | None = None

    @property
    def is_connected(self) -> bool:
        """True while the subscription has a connection to the daemon."""
        return self._following is not None and self._following.is_connected

    @property
    def head(self) -> int:
        """The number of the newest event received from the log."""
        return self._window.head

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    # --- following the log -------------------------------------------------------------------

    async def follow(self) -> None:
        """Follow the log until ``retry`` gives up on the daemon."""
        backoff = Backoff(self._retry)
        try:
            while True:
                try:
                    await self._follow_from_now(backoff)
                except Refused as refused:
                    # A shorter log has replaced the old one, so earlier positions are meaningless.
                    _logger.warning("the daemon's events begin anew: %s", refused.message)
                except ClientError as error:
                    seconds = backoff.wait(anyio.current_time())
                    if seconds is None:
                        _logger.info("the daemon's events have ended: %s", error)
                        return
                    await anyio.sleep(seconds)
        finally:
            self.end()

    async def _follow_from_now(self, backoff: Backoff) -> None:
        async with self._daemon.follow(Subscribe(types="all"), retry=self._retry) as following:
            backoff.reset()
            self._following = following
            self.has_begun = True
            self._begun_or_ended.set()
            self._window.restart(cursor_seq(following.cursor))
            async for received in following:
                self._add(received)

    def _add(self, received: ReceivedEvent) -> None:
        self._observe(received)
        if received.type not in self._types:
            self._window.skip_to(cursor_seq(received.id))
            return
        event = RenderedEvent(received)
        if event.is_deletion:
            self._window.forget(event.session_id)
        self._window.publish((event,))
        self._window.trim(WINDOW_EVENTS_MAX, WINDOW_BYTES_MAX)

    def end(self) -> None:
        """Let every reader end once it has read the remaining events."""
        self._ended.set()
        self._begun_or_ended.set()
        self._window.wake_all()

    async def wait_begun(self) -> None:
        """Return once the daemon has been reached, or attempts to reach it have ended."""
        await self._begun_or_ended.wait()

    async def wait_ended(self) -> None:
        """Return once no more events will come."""
        await self._ended.wait()

    # --- reading -----------------------------------------------------------------------------

    async def wait_after(
        self, position: StreamPosition, query: StreamQuery, seconds: float
    ) -> StreamPosition:
        """Wait, for at most that many seconds, until there is an event that the stream may show.

        Return the position, moved past events of other streams; at once if an event follows it.
        """
        if self.has_ended or self.head > position.after:
            return position
        notifier = Notifier()
        with trio.move_on_after(seconds):
            await self._window.wait(notifier, query.topic)
        seq = self.head if notifier.woken_by is None else notifier.woken_by - 1
        return max(position, position_after_event(seq))

    async def page_after(self, position: StreamPosition, query: StreamQuery) -> Page:
        """Return the next frames of a stream; the position also moves past events of other streams.

        Raises:
            ClientError: the log cannot be read.
        """
        after = position.after
        if after > self.head:
            # The log was replaced, such as by a restored backup: continue with its new events.
            return Page(b"", position_after_event(self.head), has_end=False)
        if after < self._window.start:
            events, until = await self._read_log(after, query)
        else:
            events, until = self._window.after(after, PAGE_EVENTS)
        return _page(events, until, position, query)

    async def _read_log(self, after: int, query: StreamQuery) -> tuple[list[RenderedEvent], int]:
        answer = await self._daemon.ask(
            GetEvents(
                after=cursor(after),
                session_id=query.session_id,
                run_id=query.run_id if query.session_id is None else None,
                types="all",
                limit=LOGGED_EVENTS,
            ),
        )
        events = [RenderedEvent(line) for line in _decode(answer) if line.type in self._types]
        return events, cursor_seq(answer.next)

    async def first_event(self, run_id: str, types: EventTypes = "all") -> RenderedEvent | None:
        """Return a run's first event of these types; None if there is none.

        Raises:
            ClientError: the log cannot be read.
        """
        answer = await self._daemon.ask(GetEvents(run_id=run_id, types=types, limit=1))
        return next(map(RenderedEvent, _decode(answer)), None)


def _decode(answer: Events) -> Iterator[ReceivedEvent]:
    for line in answer.events:
        event = decode_subscription_line(bytes(line), loads)
        if isinstance(event, ReceivedEvent):
            yield event


def _page(
    events: Sequence[RenderedEvent], until: int, position: StreamPosition, query: StreamQuery
) -> Page:
    view, of_run, matches = query.view, query.run_id is not None, query.matches

    def data_of(event: RenderedEvent) -> bytes:
        return event.data_after(position, view, of_run=of_run) if matches(event) else b""

    data, reached = fill_page(events, until, data_of, PAGE_BYTES)
    has_end = any(event.is_end and event.seq <= reached and matches(event) for event in events)
    return Page(data, max(position, position_after_event(reached)), has_end)
