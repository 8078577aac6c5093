"""The newest frames, made once for all readers, and the way back into the log for who is behind.

Theory of operation. One subscription follows the daemon's log. Each event becomes its frames once, as
bytes, in a window that all readers share. A reader is a place in the log, not a queue: it takes what is
behind its place from the window, or, when it has fallen out of the window, a page from the log. So a
reader that is slow costs nothing and hurts nobody, and where history ends and live begins is a
comparison of numbers. Who waits is woken by what is for him: a thousand readers of quiet sessions cost a
busy one nothing.

It is the daemon's hub once more for another language; it knows nothing of HTTP.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import anyio
from msgspec import UNSET

from nousd.client.answers import ReceivedEvent
from nousd.client.client import Client
from nousd.client.resuming import Backoff, Retry
from nousd.errors import ClientError, Refused
from nousd.views.tandem.events import frames, seen, told_again
from nousd.views.tandem.frames import FRAMES_MAX, Frame, Place, encoded, frame_id
from nousd.views.tandem.runs import as_of_run
from nousd.views.tandem.values import or_none
from nousd.views.tandem.view_types import Seen
from nousd.wire.commands import GetEvents
from nousd.wire.commands.subscribe import Subscribe, cursor, cursor_seq
from nousd.wire.events import AgentEnd, SessionDeleted

WINDOW_EVENTS_MAX: Final = 8192
WINDOW_BYTES_MAX: Final = 12 * 1024 * 1024
"""The window's bound; a reader that falls out of it reads from the log."""

PAGE_EVENTS: Final = 1024
"""Events that a reader looks through at once."""

PAGE_BYTES: Final = 64 * 1024
"""What a reader gets at once, at most, but for one event that is longer."""

LOGGED_EVENTS: Final = 128
"""Events of one read of the log: about as many as make a page, since what is left over is read again."""

_logger: Final = logging.getLogger(__name__)


class Wanted(NamedTuple):
    """Which frames a reader is to have; with a run they are told as those of a run.

    Args:
        only_run: whether what belongs to no run is left out, but for the session's deletion.
    """

    session_id: str | None = None
    run_id: str | None = None
    only_run: bool = False

    def takes(self, told: Told) -> bool:
        """Whether an event is wanted. One of no run passes for a run's only if its session is named."""
        if self.session_id is not None and told.session_id != self.session_id:
            return False
        if self.run_id is None or told.run_id == self.run_id:
            return True
        is_of_session = told.run_id is None and self.session_id is not None
        return is_of_session and (told.is_deletion or not self.only_run)

    @property
    def alarm(self) -> Alarm:
        """What an event must belong to, to wake this reader."""
        return (self.session_id, None) if self.session_id is not None else (None, self.run_id)


Alarm = tuple[str | None, str | None]
"""A session, or a run, or neither for all events."""


class Told:
    """An event that is told, with its frames as bytes. Those for a run are made when first wanted."""

    __slots__ = (
        "_line",
        "_of_run",
        "_plain",
        "ends_run",
        "is_deletion",
        "joined_from",
        "run_id",
        "seq",
        "session_id",
    )

    def __init__(self, line: bytes, seen: Seen, told: list[Frame]) -> None:
        event = seen.event
        self.seq = seen.seq
        self.session_id = event.session_id
        self.run_id = or_none(getattr(event, "run_id", UNSET))
        self.ends_run = isinstance(event, AgentEnd)
        self.is_deletion = isinstance(event, SessionDeleted)
        self.joined_from = seen.joined_from
        self._line = line
        self._plain = _lines(seen.seq, told)
        self._of_run: list[bytes] | None = None

    @property
    def size(self) -> int:
        """Its bytes, those for a run as if they were made."""
        return len(self._line) + 2 * sum(map(len, self._plain))

    def lines(self, *, of_run: bool) -> list[bytes]:
        """Returns its frames as bytes of a stream."""
        if not of_run:
            return self._plain
        if self._of_run is None:
            self._of_run = _lines(self.seq, map(as_of_run, self._frames()))
        return self._of_run

    def lines_again(self, *, of_run: bool) -> list[bytes]:
        """Returns the same for a reader that had some of the deltas that this event stands for."""
        told = map(told_again, self._frames())
        return _lines(self.seq, map(as_of_run, told) if of_run else told)

    def _frames(self) -> list[Frame]:
        event = seen(self._line)
        return [] if event is None else frames(event)


def _lines(seq: int, told: Iterable[Frame]) -> list[bytes]:
    return [encoded(frame, frame_id(seq, index)) for index, frame in enumerate(told)]


class Page(NamedTuple):
    """Bytes of whole frames, and the place behind them; none if nothing on that stretch is wanted.

    ``has_end``: the end of a run is among them, or that of its session.
    """

    data: bytes
    place: Place
    has_end: bool


class _Waiting:
    """Readers with the same alarm. ``woken_by``: the number of the event that woke them."""

    def __init__(self) -> None:
        self.readers = 0
        self.woken = anyio.Event()
        self.woken_by: int | None = None


class Window:
    """The newest frames of a daemon's log, while ``follow`` runs.

    Invariants: the numbers of what is told grow strictly and lie behind ``_before``; what lies behind
    that and up to ``head`` and is not in the window is never told.

    Args:
        retry: for how long to come back to a daemon that is not there.
        observe: is shown every event once, in order; it must not raise.

    ``has_begun``: whether the daemon was reached. ``has_ended``: nothing will be added any more.
    """

    def __init__(
        self,
        daemon: Client,
        retry: Retry,
        observe: Callable[[ReceivedEvent], None] = lambda _received: None,
    ) -> None:
        self._daemon = daemon
        self._retry = retry
        self._observe = observe
        self._told: list[Told] = []
        self._seqs: list[int] = []
        self._bytes = 0
        self._before = 0
        self._head = 0
        self._waiting: dict[Alarm, _Waiting] = {}
        self._changed = anyio.Event()
        self.has_begun = False
        self.has_ended = False

    @property
    def head(self) -> int:
        """The number of the newest event that was seen."""
        return self._head

    async def follow(self) -> None:
        """Follows the log until its daemon is gone for good."""
        backoff = Backoff(self._retry)
        try:
            while True:
                try:
                    await self._follow_from_now(backoff)
                except Refused as refused:
                    # Its log is another one, and shorter: what was told is nobody's any more.
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
            self._begin(cursor_seq(following.cursor))
            async for received in following:
                self._take(received)

    def _begin(self, head: int) -> None:
        self._told, self._seqs, self._bytes = [], [], 0
        self._head = self._before = head
        self.has_begun = True
        self._wake_all()

    def _take(self, received: ReceivedEvent) -> None:
        self._head = cursor_seq(received.id)
        self._observe(received)
        told = told_of(received.line)
        if told is not None:
            self._add(told)
            self._wake(told)

    def _add(self, told: Told) -> None:
        if told.is_deletion:
            self._forget(told.session_id)
        self._told.append(told)
        self._seqs.append(told.seq)
        self._bytes += told.size
        if len(self._told) > WINDOW_EVENTS_MAX or self._bytes > WINDOW_BYTES_MAX:
            self._drop_oldest()

    def _forget(self, session_id: str) -> None:
        """Drops what was told of a session, as the log has."""
        self._told = [told for told in self._told if told.session_id != session_id]
        self._seqs = [told.seq for told in self._told]
        self._bytes = sum(told.size for told in self._told)

    def _drop_oldest(self) -> None:
        """Drops half, so that the cost per event is constant."""
        count = max(1, len(self._told) // 2)
        self._before = self._seqs[count - 1]
        self._bytes -= sum(told.size for told in self._told[:count])
        del self._told[:count]
        del self._seqs[:count]

    def _wake(self, told: Told) -> None:
        """Wakes whoever waits for what may be this."""
        self._wake_one((None, None), told.seq)
        self._wake_one((told.session_id, None), told.seq)
        if told.run_id is not None:
            self._wake_one((None, told.run_id), told.seq)

    def _wake_one(self, alarm: Alarm, seq: int | None) -> None:
        waiting = self._waiting.pop(alarm, None)
        if waiting is not None:
            waiting.woken_by = seq
            waiting.woken.set()

    def _wake_all(self) -> None:
        for alarm in list(self._waiting):
            self._wake_one(alarm, None)
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def end(self) -> None:
        """Lets every reader end once it has what there is."""
        self.has_ended = True
        self._wake_all()

    async def ended(self) -> None:
        """Returns once nothing will be added any more."""
        while not self.has_ended:
            await self._changed.wait()

    async def begun(self) -> None:
        """Returns once the daemon was reached, or never will be."""
        while not (self.has_begun or self.has_ended):
            await self._changed.wait()

    async def wait_behind(self, place: Place, wanted: Wanted, seconds: float) -> Place:
        """Waits for an event that may be wanted, at most so long, and not if one lies behind ``place``
        already. Returns the place moved over what was not wanted meanwhile.
        """
        if self.has_ended or self._head > place.after:
            return place
        alarm = wanted.alarm
        waiting = self._waiting.setdefault(alarm, _Waiting())
        waiting.readers += 1
        try:
            with anyio.move_on_after(seconds):
                await waiting.woken.wait()
        finally:
            waiting.readers -= 1
            if not waiting.readers and self._waiting.get(alarm) is waiting:
                del self._waiting[alarm]
        seen = self._head if waiting.woken_by is None else waiting.woken_by - 1
        return max(place, Place(seen, FRAMES_MAX))

    async def page_behind(self, place: Place, wanted: Wanted) -> Page:
        """Returns the wanted frames behind a place; the place moves also over what is not wanted.

        Raises:
            ClientError: the log cannot be read.
        """
        if place.after > self._head:
            # The log is another one, such as a restored backup: the reader goes on with what is new.
            return Page(b"", Place(self._head, FRAMES_MAX), has_end=False)
        if place.after < self._before:
            return await self._logged_behind(place, wanted)
        start = bisect_right(self._seqs, place.after)
        told = self._told[start : start + PAGE_EVENTS]
        is_all = start + PAGE_EVENTS >= len(self._told)
        return _page(told, place, wanted, self._head if is_all else told[-1].seq)

    async def _logged_behind(self, place: Place, wanted: Wanted) -> Page:
        answer = await self._daemon.ask(
            GetEvents(
                after=cursor(place.after),
                session_id=wanted.session_id,
                run_id=wanted.run_id if wanted.session_id is None else None,
                types="all",
                limit=LOGGED_EVENTS,
            ),
        )
        told = (event for line in answer.events if (event := told_of(bytes(line))) is not None)
        return _page(told, place, wanted, cursor_seq(answer.next))


def told_of(line: bytes) -> Told | None:
    """Returns what is told of an event line; None if nothing is."""
    event = seen(line)
    told = [] if event is None else frames(event)
    return Told(line, event, told) if event is not None and told else None


def _page(told: Iterable[Told], place: Place, wanted: Wanted, until: int) -> Page:
    """Joins frames behind a place, up to the bound.

    Args:
        until: the number up to which ``told`` has all there is.
    """
    lines: list[bytes] = []
    has_end = False
    room = PAGE_BYTES
    for event in told:
        if not wanted.takes(event):
            continue
        new = _lines_behind(place, event, of_run=wanted.run_id is not None)
        room -= sum(map(len, new))
        if room < 0 and lines:
            break
        lines += new
        has_end |= event.ends_run or event.is_deletion
        place = Place(event.seq, FRAMES_MAX)
    else:
        place = max(place, Place(until, FRAMES_MAX))
    return Page(b"".join(lines), place, has_end)


def _lines_behind(place: Place, event: Told, *, of_run: bool) -> list[bytes]:
    if place.seq == event.seq:
        return event.lines(of_run=of_run)[place.seen :]
    if event.joined_from is not None and place.seq >= event.joined_from:
        return event.lines_again(of_run=of_run)
    return event.lines(of_run=of_run)
