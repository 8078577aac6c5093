"""Version 5: sessions are listed by workspace, source and whether they are archived, and a run records
its request (``wire.objects.run_options.RunRequest``).

The columns that lists filter by are generated from ``settings``. The index contains all of them after
the sort key, so that neither a page nor a count reads a session that does not match.
"""

from __future__ import annotations

from typing import Final

STATEMENTS: Final = (
    "ALTER TABLE sessions ADD COLUMN name TEXT AS (settings ->> '$.name')",
    "ALTER TABLE sessions ADD COLUMN workspace TEXT AS (settings ->> '$.workspace')",
    "ALTER TABLE sessions ADD COLUMN source TEXT AS (settings ->> '$.source')",
    """
    ALTER TABLE sessions
    ADD COLUMN archived INTEGER AS (coalesce(settings ->> '$.archived', 0))
    """,
    """
    ALTER TABLE sessions
    ADD COLUMN is_of_task INTEGER AS (settings ->> '$.origin' IS NOT NULL)
    """,
    "ALTER TABLE runs ADD COLUMN request TEXT NOT NULL DEFAULT '{}'",
    # The daemon needs these sessions when it starts, without reading all others.
    """
    CREATE INDEX sessions_overridden
    ON sessions (session_id) WHERE settings ->> '$.override_expires_at' IS NOT NULL
    """,
    "DROP INDEX sessions_by_update",
    """
    CREATE INDEX sessions_listed
    ON sessions (updated_seq, is_of_task, archived, source, parent_id, workspace, name)
    WHERE NOT deleted
    """,
)
