"""One step of pruning, for every store: walk forward, find end events, join the deltas before them.

The position of the walk is stored with the log, so that each event is visited once. The walk stops
before the first end event that is too recent, and continues from there next time. A step is short,
because other commits wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple, Protocol

from nousd.machine.projection.retention import ENDS, JoinedDeltas, Line, deltas_of, has_deltas, join
from nousd.store.records import OldDeltas, PruneResult
from nousd.wire.codec.envelope import decode_event

EVENTS_PER_STEP: Final = 4096
DELTAS_PER_STEP: Final = 500
"""A step ends once it exceeds one of these limits, after a few milliseconds. If a message has more
deltas, its newest are joined first, and further steps join the older ones to them."""


class LogPosition(NamedTuple):
    """The number, type and run of an event. Events of the types ``ENDS`` have a run."""

    seq: int
    type: str
    run_id: str | None


class EventTable(Protocol):
    """The events of a store, accessed inside a transaction."""

    def positions_after(self, seq: int, until: int, limit: int) -> Sequence[LogPosition]:
        """Return the next events after ``seq``, in order, up to number ``until``."""
        ...

    def line_of(self, seq: int) -> bytes:
        """Return the line of an event."""
        ...

    def deltas_before(self, run_id: str | None, seq: int) -> Iterable[Line]:
        """Yield a run's events of the types ``STARTS`` and ``DELTA_EVENTS`` before ``seq``, newest
        first.
        """
        ...

    def replace(self, joined: JoinedDeltas) -> None:
        """Replace many lines with one."""
        ...


def walk(events: EventTable, pruned_seq: int, old: OldDeltas) -> tuple[PruneResult, int]:
    """Run one step from the position ``pruned_seq``; return the result and the new position."""
    deltas = 0
    places = events.positions_after(pruned_seq, old.until, EVENTS_PER_STEP)
    for position in places:
        if position.type in ENDS:
            end = Line(position.seq, position.type, events.line_of(position.seq))
            if decode_event(end.line).ts >= old.ended_before:
                return PruneResult(deltas, more=False), pruned_seq
            if deltas >= DELTAS_PER_STEP:
                return PruneResult(deltas, more=True), pruned_seq
            found, are_all = _deltas_of(events, end, position.run_id)
            for joined in join(found):
                events.replace(joined)
                deltas += len(joined.removed)
            if not are_all:
                return PruneResult(deltas, more=True), pruned_seq
        pruned_seq = position.seq
    return PruneResult(deltas, more=len(places) == EVENTS_PER_STEP), pruned_seq


def _deltas_of(events: EventTable, end: Line, run_id: str | None) -> tuple[list[Line], bool]:
    """Return the newest deltas of the message or call that ``end`` ends, and whether they are all."""
    if not has_deltas(end):
        return [], True
    newest_first = deltas_of(end, events.deltas_before(run_id, end.seq))
    found = list(islice(newest_first, DELTAS_PER_STEP))
    return found, next(newest_first, None) is None
