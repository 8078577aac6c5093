"""Pruning in memory: gives the walk access to the list of events."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from nousd.machine.projection.retention import STARTS, JoinedDeltas, Line
from nousd.store.memory.rows import Rows
from nousd.store.pruning import LogPosition, walk
from nousd.store.records import OldDeltas, PruneResult, StoredEvent
from nousd.wire.events import DELTA_EVENTS


def prune(rows: Rows, old: OldDeltas) -> PruneResult:
    """Run one step; see ``store.pruning.walk``."""
    pruned, rows.pruned_seq = walk(_Events(rows), rows.pruned_seq, old)
    return pruned


class _Events:
    """See ``store.pruning.EventTable``."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def positions_after(self, seq: int, until: int, limit: int) -> Sequence[LogPosition]:
        events = self._rows.events
        start = bisect_right(events, seq, key=_seq)
        end = min(start + limit, bisect_right(events, until, key=_seq))
        return [LogPosition(event.seq, event.type, event.run_id) for event in events[start:end]]

    def line_of(self, seq: int) -> bytes:
        return self._rows.events[self._index(seq)].line

    def deltas_before(self, run_id: str | None, seq: int) -> Iterator[Line]:
        for event in reversed(self._rows.events[: self._index(seq)]):
            if event.run_id == run_id and event.type in DELTA_EVENTS | STARTS:
                yield Line(event.seq, event.type, event.line)

    def replace(self, joined: JoinedDeltas) -> None:
        rows = self._rows
        index = self._index(joined.seq)
        rows.events[index] = msgspec.structs.replace(rows.events[index], line=joined.line)
        rows.joined_from[joined.seq] = joined.first
        removed = set(joined.removed)
        rows.events = [event for event in rows.events if event.seq not in removed]

    def _index(self, seq: int) -> int:
        return bisect_left(self._rows.events, seq, key=_seq)


def _seq(event: StoredEvent) -> int:
    return event.seq
