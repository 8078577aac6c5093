"""The newest events of a log, in memory, and the readers that wait for new ones.

Theory of operation. A reader is a position in the log, not a queue: it takes the events after its
position from the window that all readers share or, once it has fallen behind the window, a page from the
log. So a slow reader costs nothing, blocks no other reader and is never dropped, and the boundary
between history and live events is a comparison of numbers. A reader with nothing left to read waits for
a topic, and only events of that topic wake it: a thousand readers of idle sessions cost a busy session
nothing.

The daemon's hub keeps the lines of the log here, the bridge's hub the events that its streams send. This
module does not know the log itself, the meaning of an event, or sockets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import trio


class WindowEvent(Protocol):
    """The interface of an event in the window.

    ``seq`` is its number in the log, ``size`` the number of bytes that it counts as.
    """

    @property
    def seq(self) -> int: ...
    @property
    def session_id(self) -> str: ...
    @property
    def run_id(self) -> str | None: ...
    @property
    def size(self) -> int: ...


E = TypeVar("E", bound=WindowEvent)


class Topic(NamedTuple):
    """The events that wake a reader: those of a session, of a run, or all if neither is given."""

    session_id: str | None = None
    run_id: str | None = None


ALL_EVENTS: Final = Topic()


class Notifier:
    """Wakes one reader, if it is waiting at that moment; otherwise the notification is lost.

    So a reader must check for events in the same step of the event loop in which it begins to wait, and
    again after each notification.

    ``woken_by`` is the number of the event that woke it; None if it was woken for another reason.
    """

    def __init__(self) -> None:
        self._parked = trio.lowlevel.ParkingLot()
        self.woken_by: int | None = None

    def notify(self, seq: int | None = None) -> None:
        """Wake the reader if it waits."""
        self.woken_by = seq
        self._parked.unpark_all()

    async def wait(self) -> None:
        """Wait for the next notification."""
        await self._parked.park()


class EventWindow(Generic[E]):
    """A bounded sequence of the newest events.

    Invariants: the numbers in the window grow strictly and are greater than ``start``; ``head`` is the
    number of the newest event; numbers between the two that are not in the window need not be read,
    because their events were deleted or never belonged here.
    """

    def __init__(self, head: int = 0) -> None:
        self._events: list[E] = []
        self._waiting: dict[Topic, dict[Notifier, None]] = {}
        self.size = 0
        self.start = head
        self.head = head

    @property
    def events(self) -> Sequence[E]:
        """The events in the window, oldest first."""
        return self._events

    # --- writing -----------------------------------------------------------------------------

    def publish(self, events: Iterable[E]) -> None:
        """Add events and wake the readers that wait for them."""
        for event in events:
            self._events.append(event)
            self.size += event.size
            self.head = event.seq
            if self._waiting:
                for topic in (ALL_EVENTS, Topic(event.session_id), Topic(None, event.run_id)):
                    if topic in self._waiting:
                        self._wake(topic, event.seq)

    def skip_to(self, head: int) -> None:
        """Move ``head`` past events that do not belong here, without waking any reader."""
        self.head = head

    def trim(self, events_max: int, bytes_max: int) -> None:
        """Drop the oldest events if the window exceeds a bound."""
        if len(self._events) <= events_max and self.size <= bytes_max:
            return
        # Trim to half of the bounds, so that the cost per event is constant.
        while self._events and (len(self._events) > events_max // 2 or self.size > bytes_max // 2):
            self.drop(max(1, len(self._events) // 8))

    def drop(self, count: int) -> None:
        """Drop the oldest events; a reader behind them reads from the log."""
        if count:
            self.start = self._events[count - 1].seq
            self.size -= sum(event.size for event in self._events[:count])
            del self._events[:count]

    def forget(self, session_id: str) -> None:
        """Drop the events of a deleted session, as the log did."""
        self._events = [event for event in self._events if event.session_id != session_id]
        self.size = sum(event.size for event in self._events)

    def restart(self, head: int) -> None:
        """Empty the window, continue after ``head``, and wake every reader."""
        self._events = []
        self.size = 0
        self.head = self.start = head
        self.wake_all()

    # --- reading -----------------------------------------------------------------------------

    def after(self, position: int, limit: int) -> tuple[list[E], int]:
        """Return events after a position that is not below ``start``, and the number up to which the
        events are complete.
        """
        first = bisect_right(self._events, position, key=_seq)
        events = self._events[first : first + limit]
        # The newest events may have been forgotten, or may never have belonged here.
        is_last = first + limit >= len(self._events)
        return events, self.head if is_last else events[-1].seq

    async def wait(self, notifier: Notifier, topic: Topic = ALL_EVENTS) -> None:
        """Wait for the next event of the topic, or for another notification of the reader."""
        self._waiting.setdefault(topic, {})[notifier] = None
        try:
            await notifier.wait()
        finally:
            # An event removes all readers that wait for its topic; others may have begun to wait since.
            others = self._waiting.get(topic, {})
            others.pop(notifier, None)
            if not others:
                self._waiting.pop(topic, None)

    def wake_all(self) -> None:
        """Wake every waiting reader, whatever its topic."""
        for topic in list(self._waiting):
            self._wake(topic, None)

    def _wake(self, topic: Topic, seq: int | None) -> None:
        for notifier in self._waiting.pop(topic, ()):
            notifier.notify(seq)


def fill_page(
    events: Iterable[E], until: int, data_of: Callable[[E], bytes], bytes_max: int
) -> tuple[bytes, int]:
    """Join a reader's bytes of events, up to a bound, which a single event may exceed.

    Args:
        until: the number up to which ``events`` is complete.
        data_of: returns the reader's bytes of an event; none if the reader does not want it.

    Returns:
        The bytes, and the number up to which they are complete.
    """
    chunks: list[bytes] = []
    room = bytes_max
    reached = until
    for event in events:
        data = data_of(event)
        if data:
            room -= len(data)
            if room < 0 and chunks:
                return b"".join(chunks), reached
            chunks.append(data)
        reached = event.seq
    return b"".join(chunks), until


_seq: Final = attrgetter("seq")
