"""Version 10: deleted sessions that still have rows.

The rows of a large session are deleted in steps, after the commit that deletes it. While the session is
in this table, no read returns its rows (``nousd.store.sqlite.deleting``). ``seq`` is the number of the
event that deleted it; of its events before that, those up to ``dropped_seq`` are gone.
"""

from __future__ import annotations

from typing import Final

STATEMENTS: Final = (
    """
    CREATE TABLE deletions (
        session_id TEXT NOT NULL PRIMARY KEY,
        namespace TEXT NOT NULL DEFAULT 'default',
        seq INTEGER NOT NULL,
        dropped_seq INTEGER NOT NULL DEFAULT 0
    ) STRICT, WITHOUT ROWID
    """,
)
