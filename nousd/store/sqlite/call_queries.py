"""Queries of tool calls in the SQLite store, as plain functions of a connection; see ``queries``."""

from __future__ import annotations

from typing import Any, Final

import apsw

from nousd.store.rows import ToolCallRow
from nousd.store.sqlite.deleting import is_kept

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


def list_unanswered_calls(
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
