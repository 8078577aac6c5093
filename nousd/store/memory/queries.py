"""Queries about sessions and tool calls on the rows in memory; the twins of those of ``sqlite``."""

from __future__ import annotations

from itertools import islice

from nousd.store.memory.rows import Rows
from nousd.store.rows import ToolCallRow
from nousd.store.session_list import SessionFilter, SessionPage, is_wanted


def tool_call(rows: Rows, tool_call_id: str, attempt: int | None) -> ToolCallRow | None:
    found = [
        call
        for (id, number), call in rows.tool_calls.items()
        if id == tool_call_id and attempt in (None, number)
    ]
    return max(found, key=lambda call: call.attempt, default=None)


def tool_call_by_client_id(rows: Rows, session_id: str, client_call_id: str) -> ToolCallRow | None:
    wanted = (session_id, client_call_id)
    calls = rows.tool_calls.values()
    return next((c for c in calls if (c.session_id, c.client_call_id) == wanted), None)


def tool_calls(
    rows: Rows, session_id: str | None, run_id: str | None, limit: int, before: int
) -> tuple[ToolCallRow, ...]:
    wanted = (
        call
        for call in reversed(rows.tool_calls.values())
        if call.seq < before
        and session_id in (None, call.session_id)
        and run_id in (None, call.run_id)
    )
    return tuple(islice(wanted, limit))


def unanswered_calls(rows: Rows, session_id: str | None, limit: int) -> tuple[ToolCallRow, ...]:
    asked = [
        (call.asked_seq, call)
        for call in rows.tool_calls.values()
        if call.asked_seq is not None
        and call.state == "denied"
        and call.by != "user"
        and session_id in (None, call.session_id)
    ]
    asked.sort(key=lambda each: each[0], reverse=True)
    return tuple(call for _, call in asked[:limit])


def open_client_calls(rows: Rows) -> tuple[ToolCallRow, ...]:
    calls = rows.tool_calls.values()
    return tuple(call for call in calls if call.run_id is None and call.ended_at is None)


def sessions(
    rows: Rows, wanted: SessionFilter, *, limit: int, before: str | None, offset: int
) -> SessionPage:
    touched = rows.touched
    bound = None if before is None else touched.get(before, 0)
    newest_first = sorted(
        (row for row in rows.sessions.values() if is_wanted(row, wanted)),
        key=lambda row: touched[row.session_id],
        reverse=True,
    )
    older = (row for row in newest_first if bound is None or touched[row.session_id] < bound)
    return SessionPage(tuple(islice(older, offset, offset + limit)), len(newest_first))


def children(rows: Rows, session_id: str) -> tuple[str, ...]:
    return tuple(
        row.session_id
        for row in rows.sessions.values()
        if row.origin is not None and row.origin.session_id == session_id
    )


def overridden(rows: Rows) -> tuple[str, ...]:
    overridden = (row for row in rows.sessions.values() if row.override_expires_at is not None)
    return tuple(sorted(row.session_id for row in overridden))
