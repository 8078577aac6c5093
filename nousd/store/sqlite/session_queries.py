"""Queries of sessions in the SQLite store, as plain functions of a connection; see ``queries``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import apsw
import msgspec

from nousd.machine.session.settings import SessionSettings
from nousd.store.rows import SessionRow
from nousd.store.session_list import (
    EVERY_SESSION,
    EXACT_FILTERS,
    SessionFilter,
    SessionPage,
    fold_text,
)
from nousd.store.session_search import SEARCHED_ROLES, SearchedMessage, SearchPage, SearchPlace
from nousd.store.session_search import search as _search
from nousd.store.sqlite.blocks import SEQ_MAX
from nousd.wire.codec.late_decoder import LateDecoder
from nousd.wire.objects.entries import UsageTotals

_settings_decoder: Final = LateDecoder(SessionSettings)
_usage_decoder: Final = LateDecoder(UsageTotals)

_SESSION_COLUMNS: Final = (
    "session_id, created_at, updated_at, parent_id, leaf_id, settings, usage_totals, queue_revision"
)

_SESSION: Final = f"SELECT {_SESSION_COLUMNS} FROM sessions WHERE NOT deleted AND session_id = ?"  # noqa: S608

_EXACT_FILTERS: Final = " ".join(
    f"AND (:{name} IS NULL OR {name} = :{name})" for name in EXACT_FILTERS
)
# The index has all of these columns, so that a session that does not match is never read.
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
    """The part of an entry's body that is searched."""

    text: str


_body_decoder: Final = LateDecoder(_Body)


def search(
    connection: apsw.Connection,
    session_filter: SessionFilter,
    text: str,
    *,
    limit: int,
    after: SearchPlace | None,
) -> SearchPage:
    values = {**msgspec.structs.asdict(session_filter), "bound": SEQ_MAX}
    if after is not None:
        query = "SELECT updated_seq FROM sessions WHERE session_id = ?"
        updated_seq = connection.execute(query, (after.session_id,)).get or 0
        values["bound"] = updated_seq + (after.seq is not None)
    # A lazy iterator: sessions are read only as far as they are searched.
    rows = map(_session_row, connection.execute(_SEARCHED_SESSIONS, values))

    def messages(session_id: str, below: int | None) -> Iterator[SearchedMessage]:
        bound = SEQ_MAX if below is None else below
        for seq, entry_id, role, body in connection.execute(
            _SEARCHED_MESSAGES, (session_id, bound)
        ):
            yield SearchedMessage(seq, entry_id, role, _body_decoder.decode(body).text)

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
    session_filter: SessionFilter = EVERY_SESSION,
    *,
    limit: int,
    before: str | None,
    offset: int = 0,
) -> SessionPage:
    text = None if session_filter.text is None else fold_text(session_filter.text)
    values = {**msgspec.structs.asdict(session_filter), "text": text, "bound": SEQ_MAX}
    is_of_all = session_filter.parent_id is None
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


def list_overridden_sessions(connection: apsw.Connection) -> tuple[str, ...]:
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
