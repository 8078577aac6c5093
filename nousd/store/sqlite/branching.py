"""The entries of a large session for a branch of it, copied before the branch is created.

The commit that creates a branch gives it all entries of its parent: half a second for 100,000 of them,
and other commits wait for it. So most are copied before, in short steps that let others in between.
Until the session is created nothing leads to the copies. What a killed process left of them is known by
that: they belong to a session that was never created. ``deleting`` drops them.
"""

from __future__ import annotations

from typing import Final

import apsw

ENTRIES_PER_STEP: Final = 200
"""A few milliseconds."""

_AFTER: Final = "(SELECT coalesce(max(seq), 0) FROM entries WHERE session_id = :branch)"
"""Entries are appended in the order of their numbers, so a copy has all up to its newest."""

COPY: Final = f"""
    INSERT OR IGNORE INTO entries (session_id, entry_id, parent_id, seq, role, snippet)
    SELECT :branch, entry_id, parent_id, seq, role, snippet FROM entries
    WHERE session_id = :parent AND seq > {_AFTER}
"""  # noqa: S608  the names are ours
"""Copies what a branch does not have yet."""

_COPY_STEP: Final = f"{COPY} ORDER BY seq LIMIT :count"

_MUCH_IS_LEFT: Final = f"""
    SELECT 1 FROM entries WHERE session_id = :parent AND seq > {_AFTER}
    ORDER BY seq LIMIT 1 OFFSET :count
"""  # noqa: S608  the names are ours


def copy_step(connection: apsw.Connection, parent_id: str, branch_id: str) -> bool:
    """Copy a part of a parent's entries; return False, and copy nothing, if the rest is a small one."""
    values: dict[str, str | int] = {
        "parent": parent_id,
        "branch": branch_id,
        "count": ENTRIES_PER_STEP,
    }
    if connection.execute(_MUCH_IS_LEFT, values).get is None:
        return False
    connection.execute(_COPY_STEP, values)
    return True


_UNCREATED: Final = """
    WITH RECURSIVE ids (id) AS (
        SELECT min(session_id) FROM entries
        UNION ALL
        SELECT (SELECT min(session_id) FROM entries WHERE session_id > ids.id) FROM ids
        WHERE ids.id IS NOT NULL
    )
    SELECT id FROM ids
    WHERE id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM sessions WHERE session_id = ids.id)
"""


def list_uncreated(connection: apsw.Connection) -> tuple[str, ...]:
    return tuple(session_id for (session_id,) in connection.execute(_UNCREATED))
