"""Every read of the SQLite store, as a plain function of a connection.

Each is called inside a read transaction, in a worker thread; ``interface.Store`` documents the method of
the same name and parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import apsw
import msgspec
from msgspec import UNSET

from nousd.machine.session.settings import SessionSettings
from nousd.store.records import EventFilter, StoredEvent
from nousd.store.rows import Defaults, InputRow, Path, SessionRow, ToolCallRow
from nousd.store.session_list import (
    EVERY_SESSION,
    EXACT_FILTERS,
    SessionFilter,
    SessionPage,
    folded,
)
from nousd.store.session_search import SEARCHED_ROLES, Searched, SearchPage, SearchPlace
from nousd.store.session_search import search as _search
from nousd.store.sqlite.blocks import (
    EVENTS_OF_RUN,
    EVENTS_OF_SESSION,
    INPUTS_PENDING,
    SEQ_MAX,
    all_of_session,
)
from nousd.store.sqlite.deleting import is_kept
from nousd.wire.codec.late_decoder import LateDecoder
from nousd.wire.codec.upcasting import lift
from nousd.wire.limits import PENDING_COUNTED_MAX
from nousd.wire.objects.entries import Entry, UsageTotals
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

_EVENTS_ALL: Final = f"""
    SELECT seq, type, session_id, run_id, line, schema_version FROM events
    WHERE seq > :after AND seq <= :head
    AND (:types IS NULL OR type IN (SELECT value FROM json_each(:types)))
    AND {is_kept("events")} ORDER BY seq LIMIT :limit
"""  # noqa: S608  the names are ours
_EVENTS_OF_SESSION: Final = f"""
    SELECT seq, type, session_id, run_id, line, schema_version FROM {EVENTS_OF_SESSION}
    AND (:types IS NULL OR type IN (SELECT value FROM json_each(:types)))
    AND {is_kept("events")} LIMIT :limit
"""  # noqa: S608  the names are ours
_EVENTS_OF_RUN: Final = f"""
    SELECT seq, type, session_id, run_id, line, schema_version FROM {EVENTS_OF_RUN}
    AND (:session_id IS NULL OR session_id = :session_id)
    AND (:types IS NULL OR type IN (SELECT value FROM json_each(:types)))
    AND {is_kept("events")} LIMIT :limit
"""  # noqa: S608


def events_after(
    connection: apsw.Connection,
    after: int,
    wanted: EventFilter,
    *,
    head: int,
    limit: int,
    bytes_max: int,
) -> tuple[StoredEvent, ...]:
    values = {"after": after, "head": head, "limit": limit, **_filter_values(wanted)}
    page: list[StoredEvent] = []
    size = 0
    for seq, name, session_id, run_id, line, version in connection.execute(
        _events_query(wanted), values
    ):
        event = StoredEvent(seq, name, session_id, run_id, lift(line, version))
        size += len(event.line)
        if page and size > bytes_max:
            break
        page.append(event)
    return tuple(page)


def _events_query(wanted: EventFilter) -> str:
    if wanted.run_id is not None:
        return _EVENTS_OF_RUN
    return _EVENTS_ALL if wanted.session_id is None else _EVENTS_OF_SESSION


_JOINED_FROM_BEFORE: Final = f"""
    SELECT 1 FROM events INDEXED BY events_joined
    WHERE joined_from IS NOT NULL AND seq > :after AND joined_from <= :after
    AND (:session_id IS NULL OR session_id = :session_id)
    AND (:run_id IS NULL OR run_id = :run_id)
    AND (:types IS NULL OR type IN (SELECT value FROM json_each(:types)))
    AND {is_kept("events")} LIMIT 1
"""  # noqa: S608


def is_pruned(connection: apsw.Connection, cursor: int, wanted: EventFilter) -> bool:
    values = {"after": cursor, **_filter_values(wanted)}
    return connection.execute(_JOINED_FROM_BEFORE, values).get is not None


def _filter_values(wanted: EventFilter) -> dict[str, str | None]:
    types = None if wanted.types is None else msgspec.json.encode(sorted(wanted.types)).decode()
    return {"types": types, "session_id": wanted.session_id, "run_id": wanted.run_id}


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


_PATH: Final = f"""
    WITH RECURSIVE walked (seq, parent_id) AS (
        SELECT seq, parent_id FROM entries
        WHERE session_id = :session_id AND entry_id = :leaf_id AND {is_kept("entries")}
        UNION ALL
        SELECT entries.seq, entries.parent_id FROM walked
        JOIN entries ON entries.session_id = :session_id AND entries.entry_id = walked.parent_id
            AND {is_kept("entries")}
    )
    SELECT entry_bodies.body FROM walked JOIN entry_bodies ON entry_bodies.seq = walked.seq
"""  # noqa: S608


def path(
    connection: apsw.Connection, session_id: str, leaf_id: str, *, limit: int, bytes_max: int
) -> Path:
    """Walk up by the parents' ids, so that only the path is read, however large the tree; step by step,
    so that nothing beyond the page is read.
    """
    bodies: list[bytes] = []
    size = 0
    has_more = False
    for (body,) in connection.execute(_PATH, {"session_id": session_id, "leaf_id": leaf_id}):
        size += len(body)
        if len(bodies) == limit or (bodies and size > bytes_max):
            has_more = True
            break
        bodies.append(body)
    bodies.reverse()
    return Path(tuple(map(_entry_decoder.decode, bodies)), has_more)


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
    *facts, ended_at, error, usage, asked = row
    return RunRecord(
        **dict(zip(_RUN_FACTS, facts, strict=True)),
        ended_at=UNSET if ended_at is None else ended_at,
        error=UNSET if error is None else error,
        usage=UNSET if usage is None else _usage_decoder.decode(usage),
        **msgspec.structs.asdict(_request_decoder.decode(asked)),
    )


# --- sessions ------------------------------------------------------------------------------------

_SESSION_COLUMNS: Final = (
    "session_id, created_at, updated_at, parent_id, leaf_id, settings, usage_totals, queue_revision"
)

_SESSION: Final = f"SELECT {_SESSION_COLUMNS} FROM sessions WHERE NOT deleted AND session_id = ?"  # noqa: S608

_EXACT_FILTERS: Final = " ".join(
    f"AND (:{name} IS NULL OR {name} = :{name})" for name in EXACT_FILTERS
)
# All columns are in the index: a session that is not wanted is never read.
_WANTED_SESSIONS: Final = f"""
    FROM sessions INDEXED BY sessions_listed
    WHERE NOT deleted AND updated_seq < :bound
    AND (:children OR NOT is_of_task)
    AND (:workspace IS NULL OR coalesce(workspace, :unnamed_workspace) = :workspace)
    {_EXACT_FILTERS}
    AND (:to_delete IS NULL OR (delete_at IS NOT NULL) = :to_delete)
    AND (:text IS NULL OR instr(folded(coalesce(name, title)), :text)
        OR instr(folded(coalesce(workspace, :unnamed_workspace)), :text))
"""
_OF_PARENT: Final = """
    AND (parent_id = :parent_id OR rowid IN (
        SELECT rowid FROM sessions INDEXED BY sessions_of_tasks
        WHERE settings ->> '$.origin.session_id' = :parent_id))
"""
_PAGE_OF_SESSIONS: Final = "ORDER BY updated_seq DESC LIMIT :limit OFFSET :offset"

_SESSIONS: Final = f"SELECT {_SESSION_COLUMNS} {_WANTED_SESSIONS} {_PAGE_OF_SESSIONS}"
_SESSION_COUNT: Final = f"SELECT count(*) {_WANTED_SESSIONS}"
_SESSIONS_OF_PARENT: Final = (
    f"SELECT {_SESSION_COLUMNS} {_WANTED_SESSIONS} {_OF_PARENT} {_PAGE_OF_SESSIONS}"
)
_SESSION_COUNT_OF_PARENT: Final = f"SELECT count(*) {_WANTED_SESSIONS} {_OF_PARENT}"

_SEARCHED_SESSIONS: Final = f"""
    SELECT {_SESSION_COLUMNS} {_WANTED_SESSIONS} ORDER BY updated_seq DESC
"""
_SEARCHED_MESSAGES: Final = """
    SELECT entries.seq, entries.entry_id, entries.role, entry_bodies.body
    FROM entries INDEXED BY entries_in_order
    JOIN entry_bodies ON entry_bodies.seq = entries.seq
    WHERE entries.session_id = ? AND entries.seq < ? AND entries.role IN ({roles})
    ORDER BY entries.seq DESC
""".format(roles=", ".join(f"'{role}'" for role in SEARCHED_ROLES))  # noqa: S608

_CHILDREN: Final = """
    SELECT session_id FROM sessions
    WHERE NOT deleted AND settings ->> '$.origin.session_id' = ? ORDER BY rowid
"""

_OVERRIDDEN: Final = """
    SELECT session_id FROM sessions INDEXED BY sessions_overridden
    WHERE settings ->> '$.override_expires_at' IS NOT NULL ORDER BY session_id
"""


class _Body(msgspec.Struct, frozen=True):
    """The part of a message that is searched."""

    text: str


_body_decoder: Final = LateDecoder(_Body)


def search(
    connection: apsw.Connection,
    wanted: SessionFilter,
    text: str,
    *,
    limit: int,
    after: SearchPlace | None,
) -> SearchPage:
    values = {**msgspec.structs.asdict(wanted), "bound": SEQ_MAX}
    if after is not None:
        query = "SELECT updated_seq FROM sessions WHERE session_id = ?"
        updated_seq = connection.execute(query, (after.session_id,)).get or 0
        values["bound"] = updated_seq + (after.seq is not None)
    # Read while they are searched, so that no more are read than are.
    rows = map(_session_row, connection.execute(_SEARCHED_SESSIONS, values))

    def messages(session_id: str, below: int | None) -> Iterator[Searched]:
        bound = SEQ_MAX if below is None else below
        for seq, entry_id, role, body in connection.execute(
            _SEARCHED_MESSAGES, (session_id, bound)
        ):
            yield Searched(seq, entry_id, role, _body_decoder.decode(body).text)

    return _search(rows, messages, text, limit=limit, after=after)


_NEXT_DELETION: Final = """
    SELECT session_id, delete_at FROM sessions INDEXED BY sessions_to_delete
    WHERE delete_at IS NOT NULL ORDER BY delete_at LIMIT 1
"""


def next_deletion(connection: apsw.Connection) -> tuple[str, str] | None:
    row: tuple[str, str] | None = connection.execute(_NEXT_DELETION).fetchone()
    return row


def session(connection: apsw.Connection, session_id: str) -> SessionRow | None:
    row = connection.execute(_SESSION, (session_id,)).get
    return None if row is None else _session_row(row)


def sessions(
    connection: apsw.Connection,
    wanted: SessionFilter = EVERY_SESSION,
    *,
    limit: int,
    before: str | None,
    offset: int = 0,
) -> SessionPage:
    text = None if wanted.text is None else folded(wanted.text)
    values = {**msgspec.structs.asdict(wanted), "text": text, "bound": SEQ_MAX}
    is_of_all = wanted.parent_id is None
    count = connection.execute(
        _SESSION_COUNT if is_of_all else _SESSION_COUNT_OF_PARENT, values
    ).get
    if before is not None:
        query = "SELECT updated_seq FROM sessions WHERE session_id = ?"
        values["bound"] = connection.execute(query, (before,)).get or 0
    page = _SESSIONS if is_of_all else _SESSIONS_OF_PARENT
    rows = connection.execute(page, {**values, "limit": limit, "offset": offset})
    return SessionPage(tuple(_session_row(row) for row in rows), count)


def children(connection: apsw.Connection, session_id: str) -> tuple[str, ...]:
    return tuple(child for (child,) in connection.execute(_CHILDREN, (session_id,)))


def overridden(connection: apsw.Connection) -> tuple[str, ...]:
    return tuple(session_id for (session_id,) in connection.execute(_OVERRIDDEN))


def _session_row(row: Any) -> SessionRow:
    session_id, created_at, updated_at, parent_id, leaf_id, settings, usage, revision = row
    return SessionRow(
        session_id=session_id,
        created_at=created_at,
        updated_at=updated_at,
        parent_id=parent_id,
        leaf_id=leaf_id,
        queue_revision=revision,
        usage=None if usage is None else _usage_decoder.decode(usage),
        **msgspec.structs.asdict(_settings_decoder.decode(settings)),
    )


# --- tool calls ----------------------------------------------------------------------------------

_CALLS: Final = f"""
    SELECT tool_call_id, attempt, session_id, run_id, seq, last_seq, tool_name, input_hash,
        client_call_id, state, requested_at, started, ended_at, is_error, decided_by, asked_seq
    FROM tool_calls WHERE {is_kept("tool_calls")}
"""  # noqa: S608
_CALL_LAST: Final = _CALLS + "AND tool_call_id = ? ORDER BY attempt DESC LIMIT 1"
_CALL_ATTEMPT: Final = _CALLS + "AND tool_call_id = ? AND attempt = ?"
_CALL_OF_CLIENT: Final = _CALLS + "AND session_id = ? AND client_call_id = ? ORDER BY seq LIMIT 1"
_CALLS_ALL: Final = _CALLS + "AND seq < :before ORDER BY seq DESC LIMIT :limit"
_CALLS_OF_SESSION: Final = _CALLS + (
    "AND session_id = :session_id AND seq < :before ORDER BY seq DESC LIMIT :limit"
)
_CALLS_OF_RUN: Final = _CALLS + (
    "AND run_id = :run_id AND seq < :before "
    "AND (:session_id IS NULL OR session_id = :session_id) ORDER BY seq DESC LIMIT :limit"
)
_CALLS_UNANSWERED: Final = _CALLS + (
    "AND asked_seq IS NOT NULL AND state = 'denied' AND decided_by <> 'user' "
    "AND (:session_id IS NULL OR session_id = :session_id) ORDER BY asked_seq DESC LIMIT :limit"
)
_CALLS_OPEN: Final = _CALLS + "AND run_id IS NULL AND ended_at IS NULL ORDER BY seq"


def tool_call(
    connection: apsw.Connection, tool_call_id: str, attempt: int | None
) -> ToolCallRow | None:
    if attempt is None:
        return _call(connection.execute(_CALL_LAST, (tool_call_id,)).fetchone())
    return _call(connection.execute(_CALL_ATTEMPT, (tool_call_id, attempt)).fetchone())


def tool_call_by_client_id(
    connection: apsw.Connection, session_id: str, client_call_id: str
) -> ToolCallRow | None:
    return _call(connection.execute(_CALL_OF_CLIENT, (session_id, client_call_id)).fetchone())


def tool_calls(
    connection: apsw.Connection,
    session_id: str | None,
    run_id: str | None,
    *,
    limit: int,
    before: int,
) -> tuple[ToolCallRow, ...]:
    query = (
        _CALLS_OF_RUN
        if run_id is not None
        else _CALLS_ALL
        if session_id is None
        else _CALLS_OF_SESSION
    )
    values = {"session_id": session_id, "run_id": run_id, "limit": limit, "before": before}
    return tuple(_call_row(row) for row in connection.execute(query, values))


def unanswered_calls(
    connection: apsw.Connection, session_id: str | None, *, limit: int
) -> tuple[ToolCallRow, ...]:
    values = {"session_id": session_id, "limit": limit}
    return tuple(_call_row(row) for row in connection.execute(_CALLS_UNANSWERED, values))


def open_client_calls(connection: apsw.Connection) -> tuple[ToolCallRow, ...]:
    return tuple(_call_row(row) for row in connection.execute(_CALLS_OPEN))


def _call(row: Any) -> ToolCallRow | None:
    return None if row is None else _call_row(row)


def _call_row(row: Any) -> ToolCallRow:
    named = dict(zip(ToolCallRow.__struct_fields__, row, strict=True))
    is_error = named["is_error"]
    return ToolCallRow(
        **named
        | {
            "started": bool(named["started"]),
            "is_error": None if is_error is None else bool(is_error),
        }
    )
