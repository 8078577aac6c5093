"""Rows to answers: the reads about tool calls, as plain functions on a connection; see ``_queries``."""

from __future__ import annotations

from typing import Any, Final

import apsw

from nousd.store.rows import ToolCallRow

_CALLS: Final = """
    SELECT tool_call_id, attempt, session_id, run_id, seq, last_seq, tool_name, input_hash,
        client_call_id, state, requested_at, started, ended_at, is_error, decided_by, asked_seq
    FROM tool_calls
"""
_LAST: Final = _CALLS + "WHERE tool_call_id = ? ORDER BY attempt DESC LIMIT 1"
_ATTEMPT: Final = _CALLS + "WHERE tool_call_id = ? AND attempt = ?"
_OF_CLIENT: Final = _CALLS + "WHERE session_id = ? AND client_call_id = ? ORDER BY seq LIMIT 1"
_ALL: Final = _CALLS + "WHERE seq < :before ORDER BY seq DESC LIMIT :limit"
_OF_SESSION: Final = _CALLS + (
    "WHERE session_id = :session_id AND seq < :before ORDER BY seq DESC LIMIT :limit"
)
_OF_RUN: Final = _CALLS + (
    "WHERE run_id = :run_id AND seq < :before "
    "AND (:session_id IS NULL OR session_id = :session_id) ORDER BY seq DESC LIMIT :limit"
)
_UNANSWERED: Final = _CALLS + (
    "WHERE asked_seq IS NOT NULL AND state = 'denied' AND decided_by <> 'user' "
    "AND (:session_id IS NULL OR session_id = :session_id) ORDER BY asked_seq DESC LIMIT :limit"
)
_OPEN: Final = _CALLS + "WHERE run_id IS NULL AND ended_at IS NULL ORDER BY seq"


def tool_call(
    connection: apsw.Connection, tool_call_id: str, attempt: int | None
) -> ToolCallRow | None:
    if attempt is None:
        return _call(connection.execute(_LAST, (tool_call_id,)).fetchone())
    return _call(connection.execute(_ATTEMPT, (tool_call_id, attempt)).fetchone())


def tool_call_by_client_id(
    connection: apsw.Connection, session_id: str, client_call_id: str
) -> ToolCallRow | None:
    return _call(connection.execute(_OF_CLIENT, (session_id, client_call_id)).fetchone())


def tool_calls(
    connection: apsw.Connection,
    session_id: str | None,
    run_id: str | None,
    limit: int,
    before: int,
) -> tuple[ToolCallRow, ...]:
    query = _OF_RUN if run_id is not None else _ALL if session_id is None else _OF_SESSION
    values = {"session_id": session_id, "run_id": run_id, "limit": limit, "before": before}
    return tuple(_row(row) for row in connection.execute(query, values))


def unanswered_calls(
    connection: apsw.Connection, session_id: str | None, limit: int
) -> tuple[ToolCallRow, ...]:
    values = {"session_id": session_id, "limit": limit}
    return tuple(_row(row) for row in connection.execute(_UNANSWERED, values))


def open_client_calls(connection: apsw.Connection) -> tuple[ToolCallRow, ...]:
    return tuple(_row(row) for row in connection.execute(_OPEN))


def _call(row: Any) -> ToolCallRow | None:
    return None if row is None else _row(row)


def _row(row: Any) -> ToolCallRow:
    named = dict(zip(ToolCallRow.__struct_fields__, row, strict=True))
    is_error = named["is_error"]
    return ToolCallRow(
        **named
        | {
            "started": bool(named["started"]),
            "is_error": None if is_error is None else bool(is_error),
        }
    )
