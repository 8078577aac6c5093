"""Queries about sessions on the rows in memory; the same answers as ``sqlite.session_queries``."""

from __future__ import annotations

from itertools import islice

from nousd.store.memory.rows import Rows
from nousd.store.session_list import SessionFilter, SessionPage, is_wanted


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
