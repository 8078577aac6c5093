"""Gives committed events to subscribers: the newest from a shared window, older ones from the log.

``nousd.event_window`` describes the design. The hub knows neither sockets nor the meaning of events.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Final, Protocol

from nousd.event_window import EventWindow, fill_page
from nousd.store.interface import Store
from nousd.store.records import EventFilter, StoredEvent
from nousd.wire.codec.envelope import decode_event
from nousd.wire.objects.metrics import WindowMetrics

WINDOW_EVENTS_MAX: Final = 16_384
WINDOW_BYTES_MAX: Final = 4 * 1024 * 1024
"""The bounds of the window. A burst beyond them sends slow subscribers to the log, which is read faster
than any burst is written."""

PAGE_EVENTS: Final = 4096
PAGE_BYTES: Final = 128 * 1024
"""Maximum bytes that one step of a subscriber gets; one event always fits. It bounds a joined write,
and so the memory that a subscriber holds while it does not read."""

STRETCH_EVENTS: Final = 65_536
"""Maximum sequence numbers that one read of the log covers. Otherwise a narrow filter on a long log
would occupy one of the few reader threads for seconds, without reporting progress to its subscriber."""


LineOf = Callable[[StoredEvent], bytes]

whole_line: Final[LineOf] = attrgetter("line")


class Reader(Protocol):
    """A waiting subscriber. It has received all wanted events up to ``position``."""

    @property
    def position(self) -> int: ...
    @property
    def event_filter(self) -> EventFilter: ...
    @property
    def line_of(self) -> LineOf: ...

    def take(self, lines: bytes, position: int) -> bool:
        """Take the wanted lines up to a position, without waiting; return whether the reader keeps
        waiting. ``lines`` can be empty, and ``position`` can be lower than the hub's head.
        """
        ...


class Hub:
    """Gives subscribers the newest committed events from memory, and older ones from the log.

    Waiting readers receive events in the step of the event loop in which these are published: waking a
    task for each reader would take longer than its write.

    Invariant: every event up to ``head`` is committed.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._window: EventWindow[StoredEvent] = EventWindow(store.head)
        self._waiting: dict[Reader, None] = {}
        store.after_commits(self._pass_on)

    @property
    def head(self) -> int:
        """The number of the last event that was published."""
        return self._window.head

    @property
    def window_start(self) -> int:
        """The number up to which events are read from the log; it only grows."""
        return self._window.start

    @property
    def window(self) -> WindowMetrics:
        """The size of the window."""
        return WindowMetrics(events=len(self._window.events), bytes=self._window.size)

    def publish(self, events: Sequence[StoredEvent]) -> None:
        """Add committed events."""
        self._window.publish(events)
        self._window.trim(WINDOW_EVENTS_MAX, WINDOW_BYTES_MAX)

    def forget(self, session_id: str) -> None:
        """Drop a deleted session's events from the window, as the log did."""
        self._window.forget(session_id)

    def release(self, before: str) -> None:
        """Drop events older than a time (RFC 3339 UTC) from the window: their lines may change."""
        self._window.drop(bisect_left(self._window.events, before, key=_time))

    @contextmanager
    def attach_reader(self, reader: Reader) -> Iterator[None]:
        """Pass published events to a reader during the block, until it stops waiting. It must have
        received everything up to ``head``.
        """
        self._waiting[reader] = None
        try:
            yield
        finally:
            self._waiting.pop(reader, None)

    def _pass_on(self) -> None:
        # Many readers have the same filter and position, and share one page.
        pages: dict[tuple[int, EventFilter, LineOf], tuple[bytes, int]] = {}
        for reader in tuple(self._waiting):
            key = reader.position, reader.event_filter, reader.line_of
            page = pages.get(key)
            if page is None:
                page = pages[key] = self._page_of_window(*key)
            if not reader.take(*page):
                del self._waiting[reader]

    async def page_after(
        self, cursor: int, event_filter: EventFilter, line_of: LineOf = whole_line
    ) -> tuple[bytes, int]:
        """Return the wanted lines after ``cursor``, joined, and the next cursor.

        The lines are empty if no event up to the next cursor is wanted.

        Args:
            line_of: returns a reader's bytes of a wanted event, none if the reader does not want it
                after all. It is called for each wanted event in order; for one that does not fit into
                a page, again for the next page.
        """
        if cursor < self._window.start:
            return await self._read_log(cursor, event_filter, line_of)
        return self._page_of_window(cursor, event_filter, line_of)

    async def events_after(
        self, cursor: int, event_filter: EventFilter, *, limit: int = PAGE_EVENTS
    ) -> tuple[Sequence[StoredEvent], int]:
        """Return wanted events after ``cursor``, and the event number up to which they are complete.

        Args:
            limit: maximum number of events.
        """
        if cursor < self._window.start:
            return await self._read_logged_events(cursor, event_filter, limit)
        events, until = self._window.after(cursor, limit)
        return select(events, event_filter), until

    def _page_of_window(
        self, cursor: int, event_filter: EventFilter, line_of: LineOf
    ) -> tuple[bytes, int]:
        """Like ``page_after``; no lines and the same cursor if the window does not continue there."""
        if not self._window.start <= cursor < self._window.head:
            return b"", cursor
        events, until = self._window.after(cursor, PAGE_EVENTS)
        return fill_page(select(events, event_filter), until, line_of, PAGE_BYTES)

    async def _read_log(
        self, cursor: int, event_filter: EventFilter, line_of: LineOf
    ) -> tuple[bytes, int]:
        events, until = await self._read_logged_events(cursor, event_filter, PAGE_EVENTS)
        return b"".join(map(line_of, events)), until

    async def _read_logged_events(
        self, cursor: int, event_filter: EventFilter, limit: int
    ) -> tuple[Sequence[StoredEvent], int]:
        # An event that is committed but not yet published is shown when it is published.
        until = min(self.head, cursor + STRETCH_EVENTS)
        events = await self._store.events_after(
            cursor, event_filter, until=until, limit=limit, bytes_max=PAGE_BYTES
        )
        return events, events[-1].seq if events else until


def _time(event: StoredEvent) -> str:
    return decode_event(event.line).ts


def select(events: Sequence[StoredEvent], event_filter: EventFilter) -> Sequence[StoredEvent]:
    """Return the events that a reader with that filter wants. Most filters name no session and no run;
    a page then needs no call for each event, which took a third of its time.
    """
    if event_filter.session_id is not None or event_filter.run_id is not None:
        return [event for event in events if matches(event, event_filter)]
    types = event_filter.types
    return events if types is None else [event for event in events if event.type in types]


def matches(event: StoredEvent, event_filter: EventFilter) -> bool:
    """Return whether a reader with that filter wants the event."""
    return (
        (event_filter.types is None or event.type in event_filter.types)
        and (event_filter.session_id is None or event.session_id == event_filter.session_id)
        and (event_filter.run_id is None or event.run_id == event_filter.run_id)
    )
