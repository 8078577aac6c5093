"""Hides sessions that are being deleted, because a log may still have some of their rows.

A daemon is deleting them, or was killed and does so at its next start (``nousd.store.sqlite.deleting``).
"""

from __future__ import annotations

from typing import Final

import apsw

_SINCE: Final = 10
"""The version of the schema that deletes sessions in steps."""

EVENT_IS_KEPT: Final = """
    NOT EXISTS (
        SELECT 1 FROM temp.doomed
        WHERE doomed.session_id = events.session_id AND events.seq < doomed.seq
    )
"""
"""The condition for visible rows of ``events``; ``find_doomed`` must have been called before."""

_MAKE: Final = (
    "CREATE TEMP TABLE doomed (session_id TEXT NOT NULL PRIMARY KEY, seq INTEGER NOT NULL)",
    "CREATE TEMP TABLE doomed_bodies (seq INTEGER NOT NULL PRIMARY KEY)",
)
_FILL: Final = (
    "INSERT INTO temp.doomed SELECT session_id, seq FROM {log}.deletions",
    """
    INSERT INTO temp.doomed_bodies SELECT DISTINCT seq FROM {log}.entries AS mine
    WHERE session_id IN (SELECT session_id FROM temp.doomed) AND NOT EXISTS (
        SELECT 1 FROM {log}.entries AS other
        WHERE other.seq = mine.seq AND other.session_id NOT IN (SELECT session_id FROM temp.doomed)
    )
    """,
)


def find_doomed(connection: apsw.Connection, log: str) -> tuple[str, ...]:
    """Create the temporary tables ``doomed``, of sessions that are being deleted, and ``doomed_bodies``,
    of entries that no other session has. Return the ids of the sessions.

    Args:
        log: the name of the log's database on this connection; it may be of an earlier version.
    """
    for statement in _MAKE:
        connection.execute(statement)
    if connection.pragma("user_version", schema=log) >= _SINCE:
        for statement in _FILL:
            connection.execute(statement.format(log=log))
    return tuple(id for (id,) in connection.execute("SELECT session_id FROM temp.doomed"))
