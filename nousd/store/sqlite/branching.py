"""Copies the entries of a large session to a branch, before the branch is created.

The commit that creates a branch gives it all entries of its parent. For 100,000 entries this takes half
a second, and other commits wait for it. So most are copied beforehand, in short steps between other
commits. Until the session is created, nothing refers to the copies. If the process is killed, the next
one recognizes them because their session was never created; ``deleting`` drops them.
"""

from __future__ import annotations

from typing import Final

import apsw

ENTRIES_PER_STEP: Final = 200
"""Entries copied in a few milliseconds."""

_AFTER: Final = "(SELECT coalesce(max(seq), 0) FROM entries WHERE session_id = :branch)"
"""Entries are appended in the order of their numbers, so a branch has all up to its newest one."""

COPY: Final = f"""
    INSERT OR IGNORE INTO entries (session_id, entry_id, parent_id, seq, role, snippet)
    SELECT :branch, entry_id, parent_id, seq, role, snippet FROM entries
    WHERE session_id = :parent AND seq > {_AFTER}
"""  # noqa: S608  the names are constants
"""Copies the entries that a branch does not have yet."""

_COPY_STEP: Final = f"{COPY} ORDER BY seq LIMIT :count"

_MORE_THAN_A_STEP: Final = f"""
    SELECT 1 FROM entries WHERE session_id = :parent AND seq > {_AFTER}
    ORDER BY seq LIMIT 1 OFFSET :count
"""  # noqa: S608  the names are constants


def copy_step(connection: apsw.Connection, parent_id: str, branch_id: str) -> bool:
    """Copy a part of a parent's entries; return False, and copy nothing, if only few are missing."""
    values: dict[str, str | int] = {
        "parent": parent_id,
        "branch": branch_id,
        "count": ENTRIES_PER_STEP,
    }
    if connection.execute(_MORE_THAN_A_STEP, values).get is None:
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
