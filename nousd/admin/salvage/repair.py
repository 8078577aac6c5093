"""Completes a salvaged log with the events and rows that follow from those that were found.

Lost events whose content is in rows get their old numbers again (``restore_events``): a row has the
number of the event that made it. Any other state that a daemon cannot use is repaired by new events
(``build_repair_events``), because rows follow only from events.

If SQLite could not read all of the WAL, the rows may be older than the events. So they are trusted only
for facts that never revert: that something existed, or was deleted, consumed or ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import apsw
import msgspec
from msgspec import UNSET

from nousd.admin.check.run_audit import RunWalker
from nousd.admin.reading.damaged_tables import RowReader
from nousd.admin.reading.lines import STORED_LINE, LoggedEvent, StoredLine, read_line
from nousd.machine.session.lifecycle import Phase
from nousd.machine.session.settings import SETTINGS, SessionSettings, settings_among
from nousd.store.sqlite.blocks import EVENTS_OF_SESSION, all_of_session
from nousd.wire import events
from nousd.wire.codec.decoding import json_decoder
from nousd.wire.codec.envelope import encode_event_tail, number_event
from nousd.wire.codec.unset import or_unset
from nousd.wire.codec.upcasting import EVENT_SCHEMA_VERSION
from nousd.wire.events import EVENT_TYPES, Event
from nousd.wire.events import sessions as session_events
from nousd.wire.objects.entries import Entry
from nousd.wire.objects.inputs import PendingCounts, QueuedInput
from nousd.wire.objects.run_options import NOTHING_ASKED, RunRequest

_entry_decoder: Final[msgspec.json.Decoder[Entry]] = json_decoder(Entry)
_input_decoder: Final = json_decoder(QueuedInput)
_settings_decoder: Final = json_decoder(SessionSettings)
_request_decoder: Final = json_decoder(RunRequest)

# --- lost events restored from rows ------------------------------------------------------------


def restore_events(out: apsw.Connection, rows: RowReader) -> Iterator[LoggedEvent]:
    """Yield the lost events that can be restored, except those of deleted sessions.

    Args:
        out: the new log, with the events that were found and without rows.
        rows: the rows of the damaged log.
    """
    deleted = _find_deleted_sessions(out, rows)
    births = {row[0]: row[1] for row in _births_in(out)}
    for restored in (_entries(rows, births), _inputs(rows), _runs(rows)):
        for seq, event, ts in restored:
            if event.session_id not in deleted and not _is_there(out, seq):
                logged = build_logged_event(seq, event, ts)
                if logged is not None:
                    yield logged


def build_logged_event(seq: int, event: Event, ts: str) -> LoggedEvent | None:
    """Return the event with that number as this version writes it; None if the result is invalid."""
    line = number_event(seq, encode_event_tail(event, ts))
    unread = LoggedEvent(seq, EVENT_SCHEMA_VERSION, EVENT_TYPES[type(event)], event, ts, line)
    logged = read_line(StoredLine(seq, EVENT_SCHEMA_VERSION, unread.columns, line))
    return None if isinstance(logged, str) else logged


Restored = Iterator[tuple[int, Event, str]]


def _entries(rows: RowReader, births: dict[str, int]) -> Restored:
    """Yield appended entries, except those that a branch inherited: its parent's events made them."""
    parents = {row[0]: row[1] for row in rows.all("sessions", "session_id, parent_id", "rowid")}
    for session_id, entry_id, seq in rows.all(
        "entries", "session_id, entry_id, seq", "session_id, entry_id"
    ):
        birth = births.get(session_id, 0 if parents.get(session_id) is None else seq)
        body = rows.one("entry_bodies", "body", "seq = ?", (seq,)) if seq > birth else None
        entry = None if body is None else _decode_or_none(_entry_decoder, body[0])
        if entry is not None and entry.id == entry_id:
            appended = events.EntryAppended(
                session_id=session_id, entry=entry, run_id=entry.run_id or UNSET
            )
            yield seq, appended, entry.created_at


def _inputs(rows: RowReader) -> Restored:
    """Yield accepted inputs; one event may accept several."""
    bodies = {
        (session_id, seq, position): body
        for session_id, seq, position, body in rows.all(
            "inputs", "session_id, seq, position, body", "rowid"
        )
    }
    for (session_id, seq), group in groupby(sorted(bodies), key=lambda key: key[:2]):
        inputs = [_decode_or_none(_input_decoder, bodies[key]) for key in group]
        readable = tuple(queued for queued in inputs if queued is not None)
        if readable:
            accepted_at = readable[0].accepted_at
            ts = _UNKNOWN_TIME if accepted_at is UNSET else accepted_at
            yield seq, _queue_update(session_id, "accepted", readable), ts


def _runs(rows: RowReader) -> Restored:
    columns = "seq, run_id, session_id, runtime, model, started_at"
    # Logs of earlier versions do not store the request of a run.
    columns += ", request" if rows.has_column("runs", "request") else ""
    for seq, run_id, session_id, runtime, model, started_at, *rest in rows.all(
        "runs", columns, "rowid"
    ):
        request = _decode_or_none(_request_decoder, rest[0]) if rest else None
        start = events.AgentStart(
            session_id=session_id,
            run_id=run_id,
            runtime=runtime,
            model=model,
            **msgspec.structs.asdict(request or NOTHING_ASKED),
        )
        yield seq, start, started_at


def adopt(out: apsw.Connection, rows: RowReader, branch: str, first: int) -> None:
    """Copy the entries and artifact uses that a branch shares with a missing parent."""
    columns = "entry_id, parent_id, seq, role, snippet"
    of_branch = "session_id = ? AND seq < ?"
    for entry_id, parent_id, seq, role, snippet in rows.some(
        "entries", columns, of_branch, (branch, first)
    ):
        body = rows.one("entry_bodies", "body", "seq = ?", (seq,))
        entry = None if body is None else _decode_or_none(_entry_decoder, body[0])
        if body is None or entry is None or entry.id != entry_id:
            continue
        out.execute("INSERT OR IGNORE INTO entry_bodies (seq, body) VALUES (?, ?)", (seq, body[0]))
        out.execute(
            f"INSERT OR IGNORE INTO entries (session_id, {columns}) VALUES (?, ?, ?, ?, ?, ?)",  # noqa: S608
            (branch, entry_id, parent_id, seq, role, snippet),
        )
    for (artifact_id,) in rows.some("artifact_uses", "artifact_id", "session_id = ?", (branch,)):
        out.execute(
            "INSERT OR IGNORE INTO artifact_uses (session_id, artifact_id) VALUES (?, ?)",
            (branch, artifact_id),
        )


# --- new events --------------------------------------------------------------------------------


def build_repair_events(out: apsw.Connection, rows: RowReader, runs: RunWalker) -> Iterator[Event]:
    """Yield the events to append. Each is applied to ``out`` before the next is requested.

    Args:
        runs: the walker that has followed all events of ``out``.
    """
    yield from _tombstones(out, rows)
    yield from _births(out, rows)
    yield from _settle_inputs(out, rows)
    yield from _ends(out, rows, runs)
    yield from _leaves(out)
    yield from _activation(out, rows)


def _tombstones(out: apsw.Connection, rows: RowReader) -> Iterator[Event]:
    known = {row[0] for row in out.execute("SELECT session_id FROM sessions WHERE deleted")}
    deleted = {row[0] for row in rows.all("sessions", "session_id, deleted", "rowid") if row[1]}
    for session_id in sorted(deleted - known):
        yield events.SessionDeleted(session_id=session_id)


def _births(out: apsw.Connection, rows: RowReader) -> Iterator[Event]:
    """Yield the creation of sessions that have events or rows left, but no session row."""
    without_row = {row[0] for row in out.execute(_SESSIONS_WITHOUT_ROW)}
    columns = "session_id, created_at, parent_id, leaf_id, settings, deleted"
    stored = {row[0]: row for row in rows.all("sessions", columns, "rowid") if not row[5]}
    known = {row[0] for row in out.execute("SELECT session_id FROM sessions")}
    for session_id in sorted(without_row | stored.keys() - known):
        _, created_at, parent_id, leaf_id, settings, _ = stored.get(session_id, _NO_ROW)
        last = out.execute(_LAST_ENTRY, (session_id,)).get
        leaf = leaf_id if leaf_id is not None and _has_entry(out, session_id, leaf_id) else last
        kept_settings = _decode_or_none(_settings_decoder, settings) if settings else None
        fields = {} if kept_settings is None else _set_in(kept_settings)
        yield events.SessionCreated(
            session_id=session_id,
            created_at=created_at or _first_time(out, session_id),
            contract_version=session_events.CONTRACT_VERSION,
            parent_id=or_unset(parent_id),
            leaf_id=or_unset(leaf),
            **{name: fields[name] for name in _CREATION_FIELDS if name in fields},
        )
        yield from _after_birth(session_id, fields)


_CREATION_FIELDS: Final = settings_among(events.SessionCreated)
_DEFAULT_SETTINGS: Final = SessionSettings()


def _set_in(settings: SessionSettings) -> dict[str, Any]:
    """Return the settings that differ from their defaults."""
    return {
        name: value
        for name in SETTINGS
        if (value := getattr(settings, name)) != getattr(_DEFAULT_SETTINGS, name)
    }


def _after_birth(session_id: str, fields: dict[str, Any]) -> Iterator[Event]:
    """Yield events for the settings that the creation of a session does not contain.

    Permissions granted since are not restored, because they may have been revoked.
    """
    if fields.get("archived"):
        yield events.SessionUpdated(session_id=session_id, archived=True)
    if "delete_at" in fields:
        yield events.SessionDeletionScheduled(session_id=session_id, delete_at=fields["delete_at"])
    if "attached_from" in fields:
        yield events.SessionAttached(
            session_id=session_id,
            workspace=fields["workspace"],
            attached_from=fields["attached_from"],
            origin_workspace=fields["origin_workspace"],
            reason=or_unset(fields.get("attach_reason")),
        )


def _settle_inputs(out: apsw.Connection, rows: RowReader) -> Iterator[Event]:
    """Yield updates for pending inputs that a lost event consumed or cleared."""
    columns = "session_id, input_id, state"
    for session_id, input_id, state in rows.all("inputs", columns, "rowid"):
        body = out.execute(_PENDING_INPUT, (session_id, input_id)).get
        queued = None if body is None else _decode_or_none(_input_decoder, body)
        if state != "pending" and queued is not None:
            yield _queue_update(session_id, state, (queued,))


def _ends(out: apsw.Connection, rows: RowReader, runs: RunWalker) -> Iterator[Event]:
    """Yield the ends of runs whose end alone is lost, and of runs that a daemon could not recover.

    The next start of the daemon ends the other open runs.
    """
    open_runs = list(out.execute("SELECT run_id, session_id FROM runs WHERE status = 'running'"))
    for run_id, session_id in open_runs:
        tracker = runs.tracker_of(run_id)
        stored = rows.one("runs", "status, error", "run_id = ?", (run_id,)) or ("running", None)
        status: Any
        status, error = stored if stored[0] != "running" else ("interrupted", None)
        if tracker is None or (stored[0] != "running" and tracker.phase is Phase.RUN):
            yield events.AgentEnd(
                session_id=session_id, run_id=run_id, status=status, error=or_unset(error)
            )


def _leaves(out: apsw.Connection) -> Iterator[Event]:
    """Yield updates that move sessions with a lost leaf to their last entry."""
    for session_id, leaf_id in list(out.execute(_LEAVES)):
        last = out.execute(_LAST_ENTRY, (session_id,)).get
        if last is not None and not _has_entry(out, session_id, leaf_id):
            yield events.SessionUpdated(session_id=session_id, leaf_id=last)


def _activation(out: apsw.Connection, rows: RowReader) -> Iterator[Event]:
    stored = rows.one("log_state", "active_session_id", "1", ())
    active = out.execute("SELECT active_session_id FROM log_state").get
    if active is None and stored is not None and stored[0] is not None:
        query = "SELECT 1 FROM sessions WHERE session_id = ? AND NOT deleted"
        if out.execute(query, stored).get is not None:
            yield events.SessionActivated(session_id=stored[0])


# --- queries -----------------------------------------------------------------------------------

_UNKNOWN_TIME: Final = "1970-01-01T00:00:00.000000Z"

_NO_ROW: Final = (None,) * 6

_SESSIONS_WITHOUT_ROW: Final = """
    SELECT session_id FROM (
        SELECT session_id FROM events UNION SELECT session_id FROM entries
        UNION SELECT session_id FROM inputs UNION SELECT session_id FROM runs
    ) WHERE session_id NOT IN (SELECT session_id FROM sessions)
"""
_LAST_ENTRY: Final = "SELECT entry_id FROM entries WHERE session_id = ? ORDER BY seq DESC LIMIT 1"
_FIRST_OF_SESSION: Final = f"SELECT {STORED_LINE} FROM {EVENTS_OF_SESSION} LIMIT 1"  # noqa: S608
_PENDING_INPUT: Final = """
    SELECT body FROM inputs WHERE session_id = ? AND input_id = ? AND state = 'pending'
"""
_LEAVES: Final = """
    SELECT session_id, leaf_id FROM sessions WHERE NOT deleted AND leaf_id IS NOT NULL
"""


def _find_deleted_sessions(out: apsw.Connection, rows: RowReader) -> frozenset[str]:
    query = "SELECT session_id FROM events WHERE type = ?"
    buried = out.execute(query, (EVENT_TYPES[events.SessionDeleted],))
    in_rows = rows.all("sessions", "session_id, deleted", "rowid")
    return frozenset([row[0] for row in buried] + [row[0] for row in in_rows if row[1]])


def _births_in(out: apsw.Connection) -> Iterator[Sequence[Any]]:
    query = "SELECT session_id, seq FROM events WHERE type = ?"
    return out.execute(query, (EVENT_TYPES[events.SessionCreated],))


def _is_there(out: apsw.Connection, seq: int) -> bool:
    return out.execute("SELECT 1 FROM events WHERE seq = ?", (seq,)).get is not None


def _has_entry(out: apsw.Connection, session_id: str, entry_id: str) -> bool:
    query = "SELECT 1 FROM entries WHERE session_id = ? AND entry_id = ?"
    return out.execute(query, (session_id, entry_id)).get is not None


def _first_time(out: apsw.Connection, session_id: str) -> str:
    """Return the time of the first remaining event of a session."""
    row = out.execute(_FIRST_OF_SESSION, all_of_session(session_id)).fetchone()
    logged = "" if row is None else read_line(StoredLine(*row))
    return _UNKNOWN_TIME if isinstance(logged, str) else logged.ts


def _queue_update(
    session_id: str, change: Any, inputs: tuple[QueuedInput, ...]
) -> events.QueueUpdate:
    """Return a queue event. The original counts are lost; only the inputs matter."""
    counts = PendingCounts(steer=0, follow_up=0)
    return events.QueueUpdate(
        session_id=session_id, change=change, inputs=inputs, pending_counts=counts
    )


def _decode_or_none(decoder: msgspec.json.Decoder[Any], body: Any) -> Any:
    """Return the decoded JSON of a row; None if it is damaged."""
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeError, TypeError):
        return None
