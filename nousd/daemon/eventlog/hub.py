"""History, then live: how committed events reach those who watch.

Theory of operation. The hub keeps the newest committed events in one window that all subscribers
share. A subscriber is a cursor, not a queue: it takes what is behind its cursor from the window, or,
when it has fallen out of the window, a page from the log. So a subscriber that does not read costs
nothing, blocks nobody and is never dropped; the seam between history and live is a comparison of
numbers.

The hub knows nothing of sockets or of what an event means.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Final

import trio

from nousd.store.interface import Store
from nousd.store.records import EventFilter, StoredEvent
from nousd.wire.codec.envelope import decode_event
from nousd.wire.objects.metrics import WindowMetrics

WINDOW_EVENTS_MAX: Final = 16_384
WINDOW_BYTES_MAX: Final = 4 * 1024 * 1024
"""The window's bound. A burst that passes it sends slow subscribers to the log, which is read faster
than any burst is written."""

PAGE_EVENTS: Final = 4096
PAGE_BYTES: Final = 128 * 1024
"""What one step of one subscriber gets at most (one event always fits). It bounds a joined write, and
so what a subscriber that does not read holds in memory."""

STRETCH_EVENTS: Final = 65_536
"""Numbers that one read of the log looks through at most. A narrow filter on a long log would otherwise
hold one of the few readers for seconds, and a subscriber could not be told how far it has come."""


class Bell:
    """Wakes one follower, if it waits at that moment. So it looks for a reason not to wait in the very
    step of the event loop in which it begins to, and once more when it was woken.
    """

    def __init__(self) -> None:
        self._waiting = trio.lowlevel.ParkingLot()

    def ring(self) -> None:
        """Wakes the follower; nothing is kept for one that does not wait."""
        self._waiting.unpark_all()

    async def wait(self) -> None:
        """Returns at the next ring."""
        await self._waiting.park()


class Hub:
    """The shared window and the wish to know when it grows.

    Invariants: the window's numbers grow strictly and lie behind ``_before``; ``head`` is the number of
    the last event that was published, and every event up to it is committed; what lies between
    ``_before`` and ``head`` and is not in the window was deleted.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._events: list[StoredEvent] = []
        self._bytes = 0
        self._before = store.head
        self._head = store.head
        self._bells: set[Bell] = set()

    @property
    def head(self) -> int:
        """The number of the last event that was published."""
        return self._head

    @property
    def window_start(self) -> int:
        """The number up to which events are read from the log; it only grows."""
        return self._before

    @property
    def window(self) -> WindowMetrics:
        """How much the window holds."""
        return WindowMetrics(events=len(self._events), bytes=self._bytes)

    def publish(self, events: Sequence[StoredEvent]) -> None:
        """Adds committed events and wakes whoever waits for them."""
        for event in events:
            self._events.append(event)
            self._bytes += len(event.line)
            self._head = event.seq
        if len(self._events) > WINDOW_EVENTS_MAX or self._bytes > WINDOW_BYTES_MAX:
            self._trim()
        for bell in self._bells:
            bell.ring()

    def forget(self, session_id: str) -> None:
        """Drops a session's events from the window, as the log has."""
        self._events = [event for event in self._events if event.session_id != session_id]
        self._bytes = sum(len(event.line) for event in self._events)

    def release(self, before: str) -> None:
        """Drops what is older than a time (RFC 3339 UTC) from the window: its lines may change."""
        self._drop(bisect_left(self._events, before, key=_time))

    @contextmanager
    def following(self, bell: Bell) -> Iterator[None]:
        """While the block lasts, every publication rings ``bell``."""
        self._bells.add(bell)
        try:
            yield
        finally:
            self._bells.remove(bell)

    async def page_after(self, cursor: int, wanted: EventFilter) -> tuple[bytes, int]:
        """Returns matching lines behind ``cursor``, joined, and the cursor to go on from.

        There may be no line although the cursor moved: nothing on that stretch matched.
        """
        head = self.head
        if cursor >= head:
            return b"", cursor
        if cursor < self._before:
            return await self._stored_after(cursor, wanted, head)
        return self._window_after(cursor, wanted)

    async def _stored_after(self, cursor: int, wanted: EventFilter, head: int) -> tuple[bytes, int]:
        # What was committed but not yet published is shown when it is its turn.
        until = min(head, cursor + STRETCH_EVENTS)
        events = await self._store.events_after(
            cursor, wanted, until=until, limit=PAGE_EVENTS, bytes_max=PAGE_BYTES
        )
        return b"".join([event.line for event in events]), events[-1].seq if events else until

    def _window_after(self, cursor: int, wanted: EventFilter) -> tuple[bytes, int]:
        start = bisect_right(self._events, cursor, key=_seq)
        lines: list[bytes] = []
        room = PAGE_BYTES
        for event in self._events[start : start + PAGE_EVENTS]:
            if matches(event, wanted):
                room -= len(event.line)
                if room < 0 and lines:
                    break
                lines.append(event.line)
            cursor = event.seq
        else:
            # The last events of the window may have been deleted.
            cursor = self._head if start + PAGE_EVENTS >= len(self._events) else cursor
        return b"".join(lines), cursor

    def _trim(self) -> None:
        """Drops the oldest half, so that the cost per event is constant."""
        while self._events and (
            len(self._events) > WINDOW_EVENTS_MAX // 2 or self._bytes > WINDOW_BYTES_MAX // 2
        ):
            self._drop(max(1, len(self._events) // 8))

    def _drop(self, count: int) -> None:
        """Drops the oldest events."""
        if count:
            self._before = self._events[count - 1].seq
            self._bytes -= sum(len(event.line) for event in self._events[:count])
            del self._events[:count]


_seq: Final = attrgetter("seq")


def _time(event: StoredEvent) -> str:
    return decode_event(event.line).ts


def matches(event: StoredEvent, wanted: EventFilter) -> bool:
    """Whether a reader with that filter wants the event."""
    return (
        (wanted.types is None or event.type in wanted.types)
        and (wanted.session_id is None or event.session_id == wanted.session_id)
        and (wanted.run_id is None or event.run_id == wanted.run_id)
    )
