"""Version 11: lists of sessions search titles, and filter by scheduled deletion.

Since this version, a session gets its title from its first message. Older sessions get it from their
next message, because the log has no title for them and rows are a fold over the log.
"""

from __future__ import annotations

from typing import Final

STATEMENTS: Final = (
    "ALTER TABLE sessions ADD COLUMN title TEXT AS (settings ->> '$.title')",
    "ALTER TABLE sessions ADD COLUMN delete_at TEXT AS (settings ->> '$.delete_at')",
    "DROP INDEX sessions_listed",
    """
    CREATE INDEX sessions_listed
    ON sessions (
        updated_seq, is_of_task, archived, source, parent_id, workspace, name, title, delete_at
    )
    WHERE NOT deleted
    """,
    "CREATE INDEX sessions_to_delete ON sessions (delete_at) WHERE delete_at IS NOT NULL",
)
