"""One step of pruning, the same for every store: walk on, find ends, join what lies before them.

Where the walk has come is kept with the log, so that each part of it is gone through once. It halts
before the first end that is too young, and goes on from there next time. A step is short, because the
commits of others wait for it. How events are kept is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from nousd.machine.projection.retention import ENDS, STARTS, Joined, Line, join
from nousd.store.records import Old, Pruned

EVENTS_PER_STEP: Final = 4096
DELTAS_PER_STEP: Final = 500
"""A step is over when it is past one of these: a few milliseconds. Of a message with more deltas the
newest are joined first, and further steps join the others to them."""


class LogPosition(NamedTuple):
    """An event on the way; the events ``ENDS`` have a run."""

    seq: int
    type: str
    run_id: str | None


class EventTable(Protocol):
    """The events of a store, inside of a transaction."""

    def positions_after(self, seq: int, until: int, limit: int) -> Sequence[LogPosition]:
        """Return the next events behind ``seq``, in order, up to number ``until``."""
        ...

    def time_of(self, seq: int) -> str:
        """Return the ``ts`` of an event."""
        ...

    def deltas_before(self, run_id: str | None, seq: int) -> Iterable[Line]:
        """Provide a run's events of the types ``STARTS`` and ``DELTA_EVENTS`` before ``seq``, the newest
        first, as far as somebody asks.
        """
        ...

    def replace(self, joined: Joined) -> None:
        """Put one line in the place of many."""
        ...


def walk(events: EventTable, pruned_seq: int, old: Old) -> tuple[Pruned, int]:
    """Do one step; takes how far the walk had come, and return also how far it has now."""
    deltas = 0
    places = events.positions_after(pruned_seq, old.until, EVENTS_PER_STEP)
    for position in places:
        if position.type in ENDS:
            if events.time_of(position.seq) >= old.ended_before:
                return Pruned(deltas, more=False), pruned_seq
            if deltas >= DELTAS_PER_STEP:
                return Pruned(deltas, more=True), pruned_seq
            found, are_all = _deltas_of(events, position)
            for joined in join(found):
                events.replace(joined)
                deltas += len(joined.gone)
            if not are_all:
                return Pruned(deltas, more=True), pruned_seq
        pruned_seq = position.seq
    return Pruned(deltas, more=len(places) == EVENTS_PER_STEP), pruned_seq


def _deltas_of(events: EventTable, end: LogPosition) -> tuple[list[Line], bool]:
    """Return the newest deltas of the message that ended there, and whether they are all."""
    found: list[Line] = []
    for event in events.deltas_before(end.run_id, end.seq):
        if event.type in STARTS:
            break
        if len(found) == DELTAS_PER_STEP:
            return found, False
        found.append(event)
    return found, True
