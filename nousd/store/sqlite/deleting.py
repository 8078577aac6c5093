"""Deletes the rows of a session, in short steps between other commits.

The commit that deletes a session runs the first step, which is the last for most sessions. A larger
session keeps a row in ``deletions`` until its last step. As long as this row exists, every read skips
the session's rows, also after a restart.

A step deletes the session's events first, each with the rows derived from it, then its entries, which
branches share, then its artifacts. An artifact that is put again meanwhile no longer belongs to the
session (``artifacts.take_back``).

The entries copied for a branch that was never created are dropped in the same way; nothing refers to
them.
"""

from __future__ import annotations

from typing import Any, Final

import apsw

from nousd.store.artifacts import PUT_STEP_BYTES
from nousd.store.sqlite.blocks import EVENTS_OF_SESSION, INPUTS_OF_SESSION, SEQ_MAX

ROWS_PER_STEP: Final = 200
"""Rows deleted in a few milliseconds. An event and the rows derived from it count as one."""

BYTES_PER_STEP: Final = 512 * 1024
"""The same limit for long rows. One row is never split, however long."""


def is_kept(table: str) -> str:
    """Return the SQL condition for rows that are not being deleted. The event of the deletion, and any
    row after it, is kept.
    """
    return f"""
        NOT EXISTS (
            SELECT 1 FROM deletions AS its
            WHERE its.session_id = {table}.session_id AND {table}.seq < its.seq
        )
    """  # noqa: S608  the names are constants


def is_deleting(connection: apsw.Connection) -> bool:
    """Return whether any session is being deleted; usually none is."""
    return bool(connection.execute("SELECT EXISTS (SELECT 1 FROM deletions)").get)


def begin(connection: apsw.Connection, session_id: str, seq: int) -> None:
    """Make a session's rows invisible, and run the first step of dropping them.

    Args:
        seq: the number of the event that deletes it.
    """
    connection.execute(
        "INSERT OR IGNORE INTO deletions (session_id, seq) VALUES (?, ?)", (session_id, seq)
    )
    drop_step(connection, session_id)


def list_unfinished(connection: apsw.Connection) -> tuple[str, ...]:
    return tuple(id for (id,) in connection.execute("SELECT session_id FROM deletions"))


def drop_all(connection: apsw.Connection) -> None:
    """Run all remaining steps. Only for a process that has the log to itself."""
    for session_id in list_unfinished(connection):
        more = True
        while more:
            with connection:
                more = drop_step(connection, session_id)


_DELETION: Final = "SELECT seq - 1, dropped_seq FROM deletions WHERE session_id = ?"
_IS_CREATED: Final = "SELECT 1 FROM sessions WHERE session_id = ?"


def drop_step(connection: apsw.Connection, session_id: str) -> bool:
    """Drop some rows of a session that is being deleted, or was never created; return whether some may
    be left.
    """
    deletion = connection.execute(_DELETION, (session_id,)).get
    if deletion is None and connection.execute(_IS_CREATED, (session_id,)).get is not None:
        return False
    head, dropped = (SEQ_MAX, SEQ_MAX) if deletion is None else deletion
    step = _Step(connection, session_id, head)
    step.drop_events(dropped)
    step.drop_up_to(_CHOSEN_ENTRIES, _DROP_ENTRIES)
    step.drop_up_to(_CHOSEN_USES, _DROP_USES)
    if step.has_room:
        connection.execute("DELETE FROM deletions WHERE session_id = ?", (session_id,))
    return not step.has_room


class _Step:
    """The remaining budget of one step, which drops rows of a session up to number ``head``."""

    def __init__(self, connection: apsw.Connection, session_id: str, head: int) -> None:
        self._connection = connection
        self._session_id = session_id
        self._head = head
        self._rows = ROWS_PER_STEP
        self._bytes = BYTES_PER_STEP

    @property
    def has_room(self) -> bool:
        return self._rows > 0 and self._bytes > 0

    def drop_events(self, after: int) -> None:
        """Drop events after ``after``, and the rows derived from them."""
        if after < self._head:
            last = self._choose(_CHOSEN_EVENTS, after=after)
            self._execute(_DROP_EVENTS, after=after, head=self._head if self.has_room else last)

    def drop_up_to(self, chosen: str, drop: tuple[str, ...]) -> None:
        last = self._choose(chosen) if self.has_room else None
        if last is not None:
            self._execute(drop, last=last)

    def _choose(self, chosen: str, **values: Any) -> Any:
        """Choose rows within the budget, which they use up; return the last one."""
        values |= {
            "session_id": self._session_id,
            "head": self._head,
            "rows": self._rows,
            "bytes": self._bytes,
        }
        count, size, last = self._connection.execute(chosen, values).get
        self._rows -= count
        self._bytes -= size
        return last

    def _execute(self, statements: tuple[str, ...], **values: Any) -> None:
        for statement in statements:
            self._connection.execute(statement, {"session_id": self._session_id, **values})


def _build_choice_query(sized: str) -> str:
    """Return the query for the count, bytes and last key of the first rows that fit into a step.

    Args:
        sized: a query that yields ``key`` and ``size`` in the order of the keys.
    """
    return f"""
        SELECT count(*), coalesce(sum(size), 0), max(key) FROM (
            SELECT key, size, sum(size) OVER (ORDER BY key) - size AS before
            FROM ({sized} LIMIT :rows)
        ) WHERE before < :bytes
    """  # noqa: S608  the names are constants


_CHOSEN_EVENTS: Final = _build_choice_query(
    f"SELECT seq AS key, length(line) AS size FROM {EVENTS_OF_SESSION}"  # noqa: S608
)
_DROP_EVENTS: Final = (
    f"DELETE FROM events WHERE seq IN (SELECT seq FROM {EVENTS_OF_SESSION})",  # noqa: S608
    f"DELETE FROM inputs WHERE rowid IN (SELECT inputs.rowid FROM {INPUTS_OF_SESSION})",  # noqa: S608
    "DELETE FROM runs WHERE session_id = :session_id AND seq > :after AND seq <= :head",
    "DELETE FROM tool_calls WHERE session_id = :session_id AND seq > :after AND seq <= :head",
    "UPDATE deletions SET dropped_seq = :head WHERE session_id = :session_id",
)

_CHOSEN_ENTRIES: Final = _build_choice_query("""
    SELECT entries.seq AS key, coalesce(length(body), 0) AS size
    FROM entries LEFT JOIN entry_bodies ON entry_bodies.seq = entries.seq
    WHERE session_id = :session_id AND entries.seq <= :head ORDER BY entries.seq
""")
_DROP_ENTRIES: Final = (
    """
    DELETE FROM entry_bodies WHERE seq IN (
        SELECT seq FROM entries AS mine
        WHERE session_id = :session_id AND seq <= :last AND NOT EXISTS (
            SELECT 1 FROM entries AS other
            WHERE other.seq = mine.seq AND other.session_id <> :session_id
        )
    )
    """,
    "DELETE FROM entries WHERE session_id = :session_id AND seq <= :last",
)

# Chunks of large artifacts stay: garbage collection drops them in steps, like those of incomplete ones.
_CHOSEN_USES: Final = _build_choice_query(f"""
    SELECT uses.artifact_id AS key, iif(size_bytes <= {PUT_STEP_BYTES}, size_bytes, 0) AS size
    FROM artifact_uses AS uses
    LEFT JOIN artifacts ON artifacts.artifact_id = uses.artifact_id
    WHERE session_id = :session_id ORDER BY uses.artifact_id
""")  # noqa: S608
_ONLY_OF_SESSION: Final = """
    SELECT artifact_id FROM artifact_uses AS mine
    WHERE session_id = :session_id AND artifact_id <= :last AND NOT EXISTS (
        SELECT 1 FROM artifact_uses AS other
        WHERE other.artifact_id = mine.artifact_id AND other.session_id <> :session_id
    )
"""
_DROP_USES: Final = (
    f"""
    DELETE FROM artifact_chunks WHERE artifact_id IN (
        SELECT artifact_id FROM artifacts
        WHERE size_bytes <= {PUT_STEP_BYTES} AND artifact_id IN ({_ONLY_OF_SESSION})
    )
    """,  # noqa: S608
    f"DELETE FROM artifacts WHERE artifact_id IN ({_ONLY_OF_SESSION})",  # noqa: S608
    "DELETE FROM artifact_uses WHERE session_id = :session_id AND artifact_id <= :last",
)
