"""Version 11: session lists are searched by title as well.

A session has a title from its first message since this version; those of earlier ones get theirs from
the next message, because the log has none for them and rows are a fold over the log.
"""

from __future__ import annotations

from typing import Final

STATEMENTS: Final = (
    "ALTER TABLE sessions ADD COLUMN title TEXT AS (settings ->> '$.title')",
    "DROP INDEX sessions_listed",
    """
    CREATE INDEX sessions_listed
    ON sessions (updated_seq, is_of_task, archived, source, parent_id, workspace, name, title)
    WHERE NOT deleted
    """,
)
