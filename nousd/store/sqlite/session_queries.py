"""Rows of sessions to answers: the reads of the SQLite store that are about sessions as such.

As in ``_queries``: plain functions on a connection, inside a read transaction.
"""

from __future__ import annotations

from typing import Any, Final

import apsw
import msgspec

from nousd.machine.session.settings import SessionSettings
from nousd.store.rows import SessionRow
from nousd.store.session_list import EXACT_FILTERS, SessionFilter, SessionPage, folded
from nousd.wire.objects.entries import UsageTotals

_settings_decoder: Final = msgspec.json.Decoder(SessionSettings)
_usage_decoder: Final = msgspec.json.Decoder(UsageTotals)

_COLUMNS: Final = "session_id, created_at, updated_at, parent_id, leaf_id, settings, usage_totals"

_SESSION: Final = f"SELECT {_COLUMNS} FROM sessions WHERE NOT deleted AND session_id = ?"  # noqa: S608

_EXACT: Final = " ".join(f"AND (:{name} IS NULL OR {name} = :{name})" for name in EXACT_FILTERS)
# All columns are in the index: a session that is not wanted is never read.
_WANTED: Final = f"""
    FROM sessions INDEXED BY sessions_listed
    WHERE NOT deleted AND updated_seq < :bound
    AND (:children OR NOT is_of_task)
    AND (:workspace IS NULL OR coalesce(workspace, :unnamed_workspace) = :workspace)
    {_EXACT}
    AND (:text IS NULL OR instr(folded(name), :text)
        OR instr(folded(coalesce(workspace, :unnamed_workspace)), :text))
"""
_OF_PARENT: Final = """
    AND (parent_id = :parent_id OR rowid IN (
        SELECT rowid FROM sessions INDEXED BY sessions_of_tasks
        WHERE settings ->> '$.origin.session_id' = :parent_id))
"""
_PAGE: Final = "ORDER BY updated_seq DESC LIMIT :limit OFFSET :offset"

_SESSIONS: Final = f"SELECT {_COLUMNS} {_WANTED} {_PAGE}"
_COUNT: Final = f"SELECT count(*) {_WANTED}"
_SESSIONS_OF_PARENT: Final = f"SELECT {_COLUMNS} {_WANTED} {_OF_PARENT} {_PAGE}"
_COUNT_OF_PARENT: Final = f"SELECT count(*) {_WANTED} {_OF_PARENT}"

_CHILDREN: Final = """
    SELECT session_id FROM sessions
    WHERE NOT deleted AND settings ->> '$.origin.session_id' = ? ORDER BY rowid
"""

_OVERRIDDEN: Final = """
    SELECT session_id FROM sessions INDEXED BY sessions_overridden
    WHERE settings ->> '$.override_expires_at' IS NOT NULL ORDER BY session_id
"""
_SEQ_MAX: Final = 2**63 - 1


def session(connection: apsw.Connection, session_id: str) -> SessionRow | None:
    row = connection.execute(_SESSION, (session_id,)).get
    return None if row is None else _session_row(row)


def sessions(
    connection: apsw.Connection,
    wanted: SessionFilter,
    *,
    limit: int,
    before: str | None,
    offset: int,
) -> SessionPage:
    text = None if wanted.text is None else folded(wanted.text)
    values = {**msgspec.structs.asdict(wanted), "text": text, "bound": _SEQ_MAX}
    is_of_all = wanted.parent_id is None
    count = connection.execute(_COUNT if is_of_all else _COUNT_OF_PARENT, values).get
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
    session_id, created_at, updated_at, parent_id, leaf_id, settings, usage = row
    return SessionRow(
        session_id=session_id,
        created_at=created_at,
        updated_at=updated_at,
        parent_id=parent_id,
        leaf_id=leaf_id,
        usage=None if usage is None else _usage_decoder.decode(usage),
        **msgspec.structs.asdict(_settings_decoder.decode(settings)),
    )
