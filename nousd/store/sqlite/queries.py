"""Queries of events, entries, inputs and runs in the SQLite store, as plain functions of a connection.

Each runs inside a read transaction, in a worker thread; ``interface.Store`` documents the method of the
same name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import apsw
import msgspec
from msgspec import UNSET

from nousd.machine.session.settings import SessionSettings
from nousd.store.records import EventFilter, StoredEvent
from nousd.store.rows import Defaults, InputRow, Path
from nousd.store.sqlite.blocks import (
    EVENTS_OF_RUN,
    EVENTS_OF_SESSION,
    INPUTS_PENDING,
    SEQ_MAX,
    all_of_session,
)
from nousd.store.sqlite.deleting import is_deleting, is_kept
from nousd.wire.codec.late_decoder import LateDecoder
from nousd.wire.codec.upcasting import EVENT_SCHEMA_VERSION, lift
from nousd.wire.limits import PENDING_COUNTED_MAX
from nousd.wire.objects.entries import Entry, UsageTotals, parent_of
from nousd.wire.objects.inputs import QueuedInput
from nousd.wire.objects.metrics import PendingInputs
from nousd.wire.objects.run_options import RunRequest
from nousd.wire.responses.runs import RunRecord
from nousd.wire.responses.transcripts import TreeNode

_settings_decoder: Final = LateDecoder(SessionSettings)
_entry_decoder: Final[LateDecoder[Entry]] = LateDecoder(Entry)
_input_decoder: Final = LateDecoder(QueuedInput)
_defaults_decoder: Final = LateDecoder(Defaults)
_usage_decoder: Final = LateDecoder(UsageTotals)
_request_decoder: Final = LateDecoder(RunRequest)

_IS_KEPT: Final = is_kept("events")

_EVENTS_ALL: Final = f"""
    SELECT seq, type, session_id, run_id, line, schema_version FROM events
    WHERE seq > :after AND seq <= :head
    AND (:types IS NULL OR type IN (SELECT value FROM json_each(:types)))
    AND {_IS_KEPT} ORDER BY seq LIMIT :limit
"""  # noqa: S608  the names are constants
_EVENTS_OF_SESSION: Final = f"""
    SELECT seq, type, session_id, run_id, line, schema_version FROM {EVENTS_OF_SESSION}
    AND (:types IS NULL OR type IN (SELECT value FROM json_each(:types)))
    AND {_IS_KEPT} LIMIT :limit
"""  # noqa: S608  the names are constants
_EVENTS_OF_RUN: Final = f"""
    SELECT seq, type, session_id, run_id, line, schema_version FROM {EVENTS_OF_RUN}
    AND (:session_id IS NULL OR session_id = :session_id)
    AND (:types IS NULL OR type IN (SELECT value FROM json_each(:types)))
    AND {_IS_KEPT} LIMIT :limit
"""  # noqa: S608


def events_after(
    connection: apsw.Connection,
    after: int,
    event_filter: EventFilter,
    *,
    head: int,
    limit: int,
    bytes_max: int,
) -> tuple[StoredEvent, ...]:
    values = {"after": after, "head": head, "limit": limit, **_filter_values(event_filter)}
    page: list[StoredEvent] = []
    size = 0
    for seq, name, session_id, run_id, line, version in connection.execute(
        _events_query(connection, event_filter), values
    ):
        if version != EVENT_SCHEMA_VERSION:
            line = lift(line, version)  # noqa: PLW2901  a call for each event takes a tenth of a replay
        size += len(line)
        if size > bytes_max and page:
            break
        page.append(StoredEvent(seq, name, session_id, run_id, line))
    return tuple(page)


def _events_query(connection: apsw.Connection, event_filter: EventFilter) -> str:
    if event_filter.run_id is not None:
        query = _EVENTS_OF_RUN
    else:
        query = _EVENTS_ALL if event_filter.session_id is None else _EVENTS_OF_SESSION
    return _as_needed(connection, query, _IS_KEPT)


def _as_needed(connection: apsw.Connection, query: str, is_kept: str) -> str:
    """Return a query that checks each row for a deletion only while there is one: the check makes
    replaying a log, or reading a path, a tenth slower.
    """
    return query if is_deleting(connection) else query.replace(is_kept, "TRUE")


_JOINED_FROM_BEFORE: Final = f"""
    SELECT 1 FROM events INDEXED BY events_joined
    WHERE joined_from IS NOT NULL AND seq > :after AND joined_from <= :after
    AND (:session_id IS NULL OR session_id = :session_id)
    AND (:run_id IS NULL OR run_id = :run_id)
    AND (:types IS NULL OR type IN (SELECT value FROM json_each(:types)))
    AND {_IS_KEPT} LIMIT 1
"""  # noqa: S608


def is_pruned(connection: apsw.Connection, cursor: int, event_filter: EventFilter) -> bool:
    values = {"after": cursor, **_filter_values(event_filter)}
    return connection.execute(_JOINED_FROM_BEFORE, values).get is not None


def _filter_values(event_filter: EventFilter) -> dict[str, str | None]:
    types = (
        None
        if event_filter.types is None
        else msgspec.json.encode(sorted(event_filter.types)).decode()
    )
    return {"types": types, "session_id": event_filter.session_id, "run_id": event_filter.run_id}


def defaults(connection: apsw.Connection) -> Defaults:
    active, settings = connection.execute("SELECT active_session_id, defaults FROM log_state").get
    return msgspec.structs.replace(_defaults_decoder.decode(settings), active_session_id=active)


_ENTRY: Final = f"""
    SELECT entries.parent_id, entry_bodies.body FROM entries
    JOIN entry_bodies ON entry_bodies.seq = entries.seq
    WHERE entries.session_id = ? AND entries.entry_id = ? AND {is_kept("entries")}
"""  # noqa: S608


def entry(connection: apsw.Connection, session_id: str, entry_id: str) -> Entry | None:
    row = connection.execute(_ENTRY, (session_id, entry_id)).get
    return None if row is None else _entry_decoder.decode(row[1])


_IS_ENTRY_KEPT: Final = is_kept("entries")

_NEWEST_FIRST: Final = f"""
    SELECT entries.entry_id, entry_bodies.body FROM entries INDEXED BY entries_in_order
    JOIN entry_bodies ON entry_bodies.seq = entries.seq
    WHERE entries.session_id = :session_id AND {_IS_ENTRY_KEPT} AND entries.seq <= (
        SELECT seq FROM entries WHERE session_id = :session_id AND entry_id = :leaf_id
    )
    ORDER BY entries.seq DESC
"""  # noqa: S608

_BY_PARENTS: Final = f"""
    WITH RECURSIVE walked (seq, parent_id) AS (
        SELECT seq, parent_id FROM entries
        WHERE session_id = :session_id AND entry_id = :leaf_id AND {_IS_ENTRY_KEPT}
        UNION ALL
        SELECT entries.seq, entries.parent_id FROM walked
        JOIN entries ON entries.session_id = :session_id AND entries.entry_id = walked.parent_id
            AND {_IS_ENTRY_KEPT}
    )
    SELECT entry_bodies.body FROM walked JOIN entry_bodies ON entry_bodies.seq = walked.seq
"""  # noqa: S608

_PASSED_BYTES_MAX: Final = 64 * 1024
"""Bytes of entries beside a path that are read before its parents are looked up one by one."""


def path(
    connection: apsw.Connection, session_id: str, leaf_id: str, *, limit: int, bytes_max: int
) -> Path:
    """Return the path to a leaf, read row by row, so that little beyond the page is read."""
    newest_first: list[Entry] = []
    size = 0
    has_more = False
    for entry, entry_bytes in _walk_up(connection, session_id, leaf_id):
        size += entry_bytes
        if len(newest_first) == limit or (newest_first and size > bytes_max):
            has_more = True
            break
        newest_first.append(entry)
    newest_first.reverse()
    return Path(tuple(newest_first), has_more)


def _walk_up(
    connection: apsw.Connection, session_id: str, leaf_id: str
) -> Iterator[tuple[Entry, int]]:
    """Yield the entries from a leaf to the root, each with its size in bytes.

    In most sessions, each entry is the parent of the next one. Reading them in their order takes half
    the time of looking up each parent, so that is done first, while there is not more beside the path
    than on it: a tree may be much larger.
    """
    query = _as_needed(connection, _NEWEST_FIRST, _IS_ENTRY_KEPT)
    values = {"session_id": session_id, "leaf_id": leaf_id}
    wanted: str | None = leaf_id
    on_path = passed = 0
    for entry_id, body in connection.execute(query, values):
        if entry_id == wanted:
            on_path += len(body)
            entry = _entry_decoder.decode(body)
            wanted = parent_of(entry)
            yield entry, len(body)
            if wanted is None:
                return
        else:
            passed += len(body)
            if passed > on_path + _PASSED_BYTES_MAX:
                break
    query = _as_needed(connection, _BY_PARENTS, _IS_ENTRY_KEPT)
    for (body,) in connection.execute(query, {"session_id": session_id, "leaf_id": wanted}):
        yield _entry_decoder.decode(body), len(body)


_TREE: Final = f"""
    SELECT entry_id, coalesce(parent_id, ''), role, snippet FROM entries
    WHERE session_id = ? AND seq > ? AND {is_kept("entries")} ORDER BY seq LIMIT ?
"""  # noqa: S608


def tree(
    connection: apsw.Connection, session_id: str, *, after: str | None, limit: int
) -> tuple[TreeNode, ...]:
    bound = 0
    if after is not None:
        query = "SELECT seq FROM entries WHERE session_id = ? AND entry_id = ?"
        bound = connection.execute(query, (session_id, after)).get or SEQ_MAX
    return tuple(
        TreeNode(id=id, parent_id=parent_id, role=role, snippet=snippet)
        for id, parent_id, role, snippet in connection.execute(_TREE, (session_id, bound, limit))
    )


_INPUTS_PENDING: Final = f"SELECT body FROM {INPUTS_PENDING} AND {is_kept('inputs')}"  # noqa: S608


def pending_inputs(connection: apsw.Connection, session_id: str) -> tuple[QueuedInput, ...]:
    found = connection.execute(_INPUTS_PENDING, all_of_session(session_id))
    return tuple(_input_decoder.decode(body) for (body,) in found)


def pending_counts(connection: apsw.Connection) -> PendingInputs:
    query = f"""
        SELECT kind, count(*) FROM (
            SELECT CAST(body AS TEXT) ->> '$.kind' AS kind FROM inputs
            WHERE state = 'pending' AND {is_kept("inputs")} LIMIT ?
        ) GROUP BY kind
    """  # noqa: S608
    counts: dict[str, int] = dict(connection.execute(query, (PENDING_COUNTED_MAX + 1,)))
    return PendingInputs.of(counts, truncated=sum(counts.values()) > PENDING_COUNTED_MAX)


def input_by_client_id(
    connection: apsw.Connection, session_id: str, client_message_id: str
) -> InputRow | None:
    query = f"""
        SELECT body, state FROM inputs
        WHERE session_id = ? AND client_message_id = ? AND {is_kept("inputs")}
        ORDER BY seq, position LIMIT 1
    """  # noqa: S608
    row = connection.execute(query, (session_id, client_message_id)).get
    return None if row is None else _input_row(session_id, *row)


def input(connection: apsw.Connection, session_id: str, input_id: str) -> InputRow | None:
    query = f"""
        SELECT body, state FROM inputs
        WHERE input_id = ? AND session_id = ? AND {is_kept("inputs")}
    """  # noqa: S608
    row = connection.execute(query, (input_id, session_id)).get
    return None if row is None else _input_row(session_id, *row)


def _input_row(session_id: str, body: bytes, state: Any) -> InputRow:
    return InputRow(input=_input_decoder.decode(body), session_id=session_id, state=state)


_RUN_COLUMNS: Final = f"""
    SELECT run_id, session_id, status, started_at, runtime, model, turns, ended_at, error,
        usage_totals, request
    FROM runs WHERE {is_kept("runs")}
"""  # noqa: S608
_RUN_FACTS: Final = ["run_id", "session_id", "status", "started_at", "runtime", "model", "turns"]
_RUN: Final = _RUN_COLUMNS + "AND run_id = ?"
_RUNS: Final = _RUN_COLUMNS + "AND seq < ? ORDER BY seq DESC LIMIT ?"
_RUNS_OF_SESSION: Final = _RUN_COLUMNS + "AND session_id = ? AND seq < ? ORDER BY seq DESC LIMIT ?"
_RUNS_OPEN: Final = _RUN_COLUMNS + "AND status = 'running' ORDER BY seq"


def run(connection: apsw.Connection, run_id: str) -> RunRecord | None:
    row = connection.execute(_RUN, (run_id,)).get
    return None if row is None else _run_record(row)


def runs(
    connection: apsw.Connection, session_id: str | None, *, limit: int, before: str | None
) -> tuple[RunRecord, ...]:
    bound = SEQ_MAX
    if before is not None:
        bound = connection.execute("SELECT seq FROM runs WHERE run_id = ?", (before,)).get or 0
    if session_id is None:
        rows = connection.execute(_RUNS, (bound, limit))
    else:
        rows = connection.execute(_RUNS_OF_SESSION, (session_id, bound, limit))
    return tuple(_run_record(row) for row in rows)


def open_runs(connection: apsw.Connection) -> tuple[RunRecord, ...]:
    return tuple(_run_record(row) for row in connection.execute(_RUNS_OPEN))


def _run_record(row: Any) -> RunRecord:
    *facts, ended_at, error, usage, request = row
    return RunRecord(
        **dict(zip(_RUN_FACTS, facts, strict=True)),
        ended_at=UNSET if ended_at is None else ended_at,
        error=UNSET if error is None else error,
        usage=UNSET if usage is None else _usage_decoder.decode(usage),
        **msgspec.structs.asdict(_request_decoder.decode(request)),
    )
