"""A ``RunLog`` on a read-only connection, even to a log of an earlier version.

Lines are upcast, and only columns that all schemas have are read, so nothing is migrated. A daemon may
be running: one transaction reads one snapshot of its log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import apsw
import msgspec

from nousd.errors import StoreError
from nousd.replay.recorded import Span
from nousd.store.artifacts import Artifact
from nousd.wire.codec.decoding import json_decoder
from nousd.wire.codec.envelope import decode_event, event_in
from nousd.wire.codec.upcasting import lift
from nousd.wire.events import Event
from nousd.wire.objects.entries import Entry

_SPAN: Final = """
    SELECT session_id, min(seq), max(seq), min(schema_version) FROM events
    WHERE run_id = ?
    AND session_id NOT IN (SELECT session_id FROM sessions WHERE deleted) GROUP BY session_id
"""
_EVENTS: Final = """
    SELECT line, schema_version FROM events
    WHERE session_id IN (?, '') AND seq BETWEEN ? AND ?
    AND (?4 IS NULL OR type IN (SELECT value FROM json_each(?4))) ORDER BY seq
"""
_ENTRY: Final = """
    SELECT entry_bodies.body FROM entries
    JOIN entry_bodies ON entry_bodies.seq = entries.seq
    WHERE entries.session_id = ? AND entries.entry_id = ?
"""
_MEDIA_TYPE: Final = "SELECT media_type FROM artifacts WHERE artifact_id = ?"
_HAS_CHUNKS: Final = "SELECT count(*) FROM sqlite_schema WHERE name = 'artifact_chunks'"
_CHUNKS: Final = "SELECT data FROM artifact_chunks WHERE artifact_id = ? ORDER BY idx"
_WHOLE: Final = "SELECT data FROM artifacts WHERE artifact_id = ?"
"""Before version 3 of the schema an artifact was one row."""

_entry_decoder: Final[msgspec.json.Decoder[Entry]] = json_decoder(Entry)


@contextmanager
def open_run_log(connection: apsw.Connection) -> Iterator[SqliteLog]:
    """Provide a snapshot of the log for the block.

    Raises:
        StoreError: the log cannot be read.
    """
    try:
        connection.execute("BEGIN")
        try:
            yield SqliteLog(connection)
        finally:
            connection.execute("ROLLBACK")
    except (apsw.Error, msgspec.MsgspecError, KeyError) as error:
        raise StoreError(f"the log cannot be read: {error}") from error


class SqliteLog:
    """See ``RunLog``."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def span(self, run_id: str) -> Span | None:
        row = self._row(_SPAN, run_id)
        return None if row is None else Span(*row)

    def events(
        self, session_id: str, first: int, last: int, types: Iterable[str] | None = None
    ) -> Iterator[Event]:
        types_json = None if types is None else msgspec.json.encode(list(types)).decode()
        for line, version in self._connection.execute(
            _EVENTS, (session_id, first, last, types_json)
        ):
            yield event_in(decode_event(lift(line, version)))

    def entry(self, session_id: str, entry_id: str) -> Entry | None:
        row = self._row(_ENTRY, session_id, entry_id)
        return None if row is None else _entry_decoder.decode(row[0])

    def artifact(self, artifact_id: str) -> Artifact | None:
        row = self._row(_MEDIA_TYPE, artifact_id)
        if row is None:
            return None
        query = _CHUNKS if self._connection.execute(_HAS_CHUNKS).get else _WHOLE
        chunks = self._connection.execute(query, (artifact_id,))
        return Artifact(artifact_id, row[0], b"".join(chunk for (chunk,) in chunks))

    def _row(self, query: str, *values: str) -> Any:
        return self._connection.execute(query, values).fetchone()
