"""Pruning in SQLite: gives the walk access to the events, on the writing connection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import apsw
import msgspec

from nousd.machine.projection.retention import STARTS, JoinedDeltas, Line
from nousd.store.pruning import LogPosition, walk
from nousd.store.records import OldDeltas, PruneResult
from nousd.store.schema.m006_blocks_of_events import BLOCK
from nousd.store.sqlite.blocks import blocks_of_runs_down_from
from nousd.wire.codec.upcasting import EVENT_SCHEMA_VERSION, lift
from nousd.wire.events import DELTA_EVENTS


def prune(connection: apsw.Connection, old: OldDeltas) -> PruneResult:
    """Run one step, inside the open transaction; see ``store.pruning.walk``."""
    begun_at = connection.execute("SELECT pruned_seq FROM log_state").get
    pruned, new_position = walk(_Events(connection), begun_at, old)
    if new_position != begun_at:
        connection.execute("UPDATE log_state SET pruned_seq = ?", (new_position,))
    return pruned


POSITIONS: Final = (
    "SELECT seq, type, run_id FROM events WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"
)
LINE: Final = "SELECT line, schema_version FROM events WHERE seq = ?"
DELTAS: Final = f"""
    SELECT seq, type, line, schema_version FROM events INDEXED BY events_by_run
    WHERE {BLOCK} = :block AND run_id = :run_id AND seq < :seq
    AND type IN (SELECT value FROM json_each(:types))
    ORDER BY seq DESC
"""  # noqa: S608  the names are constants
_TYPES: Final = msgspec.json.encode(sorted(DELTA_EVENTS | STARTS)).decode()
_DELETE: Final = "DELETE FROM events WHERE seq = ?"
_REPLACE: Final = "UPDATE events SET line = ?, joined_from = ?, schema_version = ? WHERE seq = ?"


class _Events:
    """See ``store.pruning.EventTable``."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def positions_after(self, seq: int, until: int, limit: int) -> Sequence[LogPosition]:
        return [
            LogPosition(*row) for row in self._connection.execute(POSITIONS, (seq, until, limit))
        ]

    def line_of(self, seq: int) -> bytes:
        line, version = self._connection.execute(LINE, (seq,)).get
        return lift(line, version)

    def deltas_before(self, run_id: str | None, seq: int) -> Iterator[Line]:
        values = {"run_id": run_id, "seq": seq, "types": _TYPES}
        for block in blocks_of_runs_down_from(self._connection, seq):
            rows = self._connection.execute(DELTAS, {**values, "block": block})
            for delta_seq, type_, line, version in rows:
                yield Line(delta_seq, type_, lift(line, version))

    def replace(self, joined: JoinedDeltas) -> None:
        self._connection.executemany(_DELETE, [(seq,) for seq in joined.removed])
        values = (joined.line, joined.first, EVENT_SCHEMA_VERSION, joined.seq)
        self._connection.execute(_REPLACE, values)
