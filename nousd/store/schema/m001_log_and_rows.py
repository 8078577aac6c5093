"""Version 1: the log and its projections.

``namespace`` is constant; every table has the column so that one database could hold the logs of many
users. ``schema_version`` is the version of the line. An entry's body is stored once, under the number of
the event that appended it; ``entries`` lists the sessions that contain the entry.
"""

from __future__ import annotations

from typing import Final

APPLICATION_ID: Final = int.from_bytes(b"nous", "big")
"""Identifies a database of nousd in the file header (``PRAGMA application_id``)."""

STATEMENTS: Final = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    """
    CREATE TABLE log_state (
        namespace TEXT NOT NULL PRIMARY KEY,
        next_seq INTEGER NOT NULL,
        active_session_id TEXT,
        defaults TEXT NOT NULL
    ) STRICT
    """,
    "INSERT INTO log_state VALUES ('default', 1, NULL, '{}')",
    """
    CREATE TABLE events (
        seq INTEGER NOT NULL PRIMARY KEY,
        namespace TEXT NOT NULL DEFAULT 'default',
        schema_version INTEGER NOT NULL DEFAULT 1,
        type TEXT NOT NULL,
        session_id TEXT NOT NULL,
        run_id TEXT,
        line BLOB NOT NULL
    ) STRICT
    """,
    "CREATE INDEX events_by_session ON events (session_id)",
    "CREATE INDEX events_by_run ON events (run_id) WHERE run_id IS NOT NULL",
    """
    CREATE TABLE sessions (
        session_id TEXT NOT NULL PRIMARY KEY,
        namespace TEXT NOT NULL DEFAULT 'default',
        created_at TEXT NOT NULL,
        updated_at TEXT NOT NULL,
        updated_seq INTEGER NOT NULL,
        parent_id TEXT,
        leaf_id TEXT,
        settings TEXT NOT NULL,
        deleted INTEGER NOT NULL DEFAULT 0
    ) STRICT
    """,
    "CREATE INDEX sessions_by_update ON sessions (updated_seq) WHERE NOT deleted",
    """
    CREATE TABLE entries (
        session_id TEXT NOT NULL,
        entry_id TEXT NOT NULL,
        namespace TEXT NOT NULL DEFAULT 'default',
        parent_id TEXT,
        seq INTEGER NOT NULL,
        role TEXT NOT NULL,
        snippet TEXT NOT NULL,
        PRIMARY KEY (session_id, entry_id)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX entries_in_order ON entries (session_id, seq)",
    "CREATE INDEX entries_by_body ON entries (seq)",
    """
    CREATE TABLE entry_bodies (
        seq INTEGER NOT NULL PRIMARY KEY,
        namespace TEXT NOT NULL DEFAULT 'default',
        body BLOB NOT NULL
    ) STRICT
    """,
    """
    CREATE TABLE inputs (
        session_id TEXT NOT NULL,
        input_id TEXT NOT NULL,
        namespace TEXT NOT NULL DEFAULT 'default',
        state TEXT NOT NULL,
        seq INTEGER NOT NULL,
        position INTEGER NOT NULL,
        client_message_id TEXT,
        body BLOB NOT NULL,
        PRIMARY KEY (session_id, input_id)
    ) STRICT
    """,
    """
    CREATE INDEX inputs_pending ON inputs (session_id, seq, position) WHERE state = 'pending'
    """,
    """
    CREATE INDEX inputs_by_client_id ON inputs (session_id, client_message_id, seq, position)
    WHERE client_message_id IS NOT NULL
    """,
    """
    CREATE TABLE runs (
        run_id TEXT NOT NULL PRIMARY KEY,
        namespace TEXT NOT NULL DEFAULT 'default',
        session_id TEXT NOT NULL,
        seq INTEGER NOT NULL,
        status TEXT NOT NULL DEFAULT 'running',
        started_at TEXT NOT NULL,
        runtime TEXT NOT NULL,
        model TEXT NOT NULL,
        turns INTEGER NOT NULL DEFAULT 0,
        ended_at TEXT,
        error TEXT,
        usage TEXT
    ) STRICT
    """,
    "CREATE INDEX runs_in_order ON runs (seq)",
    "CREATE INDEX runs_by_session ON runs (session_id, seq)",
    "CREATE INDEX runs_open ON runs (seq) WHERE status = 'running'",
    """
    CREATE TABLE artifacts (
        artifact_id TEXT NOT NULL PRIMARY KEY,
        namespace TEXT NOT NULL DEFAULT 'default',
        media_type TEXT NOT NULL,
        data BLOB NOT NULL
    ) STRICT
    """,
    """
    CREATE TABLE artifact_uses (
        session_id TEXT NOT NULL,
        artifact_id TEXT NOT NULL,
        namespace TEXT NOT NULL DEFAULT 'default',
        PRIMARY KEY (session_id, artifact_id)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE INDEX artifact_uses_by_artifact ON artifact_uses (artifact_id)",
)
