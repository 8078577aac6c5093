"""Version 6: rows of a session or a run are found in blocks of consecutive event numbers.

An index that begins with the session touches a page for each session, and a group of commits for many
sessions writes all of these pages. With the block number first, rows written at about the same time are
adjacent, whichever session they belong to; a reader does one lookup per block
(``nousd.store.sqlite.blocks``). The ids of inputs sort by time, so they precede the session id in the
primary key for the same reason.
"""

from __future__ import annotations

from typing import Final

EVENTS_PER_BLOCK: Final = 1024

BLOCK: Final = f"seq / {EVENTS_PER_BLOCK}"
"""The number of an event's block. SQLite uses an index only if a query repeats it exactly."""

STATEMENTS: Final = (
    "DROP INDEX events_by_session",
    "DROP INDEX events_by_run",
    f"CREATE INDEX events_by_session ON events ({BLOCK}, session_id)",
    f"CREATE INDEX events_by_run ON events ({BLOCK}, run_id) WHERE run_id IS NOT NULL",
    "ALTER TABLE inputs RENAME TO inputs_before",
    """
    CREATE TABLE inputs (
        input_id TEXT NOT NULL,
        session_id TEXT NOT NULL,
        namespace TEXT NOT NULL DEFAULT 'default',
        state TEXT NOT NULL,
        seq INTEGER NOT NULL,
        position INTEGER NOT NULL,
        client_message_id TEXT,
        body BLOB NOT NULL,
        PRIMARY KEY (input_id, session_id)
    ) STRICT
    """,
    """
    INSERT INTO inputs
        (input_id, session_id, namespace, state, seq, position, client_message_id, body)
    SELECT input_id, session_id, namespace, state, seq, position, client_message_id, body
    FROM inputs_before ORDER BY rowid
    """,
    "DROP TABLE inputs_before",
    f"CREATE INDEX inputs_by_session ON inputs ({BLOCK}, session_id)",
    f"""
    CREATE INDEX inputs_pending ON inputs ({BLOCK}, session_id, seq, position)
    WHERE state = 'pending'
    """,
    """
    CREATE INDEX inputs_by_client_id ON inputs (session_id, client_message_id, seq, position)
    WHERE client_message_id IS NOT NULL
    """,
)
