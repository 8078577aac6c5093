"""Version 4: a row per attempt at a tool call (``store.rows.ToolCallRow``), an index from sessions
of tasks to their origin, and the fourth version of event lines (``nousd.wire.codec.upcasting``).

``seq`` is the number of the event that requested the call. A client's own calls have no run; the events
of such a call have its id in the column ``run_id``, for lookup. Calls whose request was not logged, as
in version 1, have no row.
"""

from __future__ import annotations

from typing import Final

STATEMENTS: Final = (
    """
    CREATE INDEX sessions_of_tasks ON sessions (settings ->> '$.origin.session_id')
    WHERE settings ->> '$.origin.session_id' IS NOT NULL
    """,
    """
    CREATE TABLE tool_calls (
        seq INTEGER NOT NULL PRIMARY KEY,
        namespace TEXT NOT NULL DEFAULT 'default',
        last_seq INTEGER NOT NULL,
        tool_call_id TEXT NOT NULL,
        attempt INTEGER NOT NULL,
        session_id TEXT NOT NULL,
        run_id TEXT,
        tool_name TEXT NOT NULL,
        input_hash TEXT,
        client_call_id TEXT,
        state TEXT NOT NULL,
        requested_at TEXT NOT NULL,
        started INTEGER NOT NULL DEFAULT 0,
        ended_at TEXT,
        is_error INTEGER,
        decided_by TEXT,
        asked_seq INTEGER
    ) STRICT
    """,
    "CREATE UNIQUE INDEX tool_calls_by_id ON tool_calls (tool_call_id, attempt)",
    "CREATE INDEX tool_calls_by_session ON tool_calls (session_id)",
    "CREATE INDEX tool_calls_by_run ON tool_calls (run_id) WHERE run_id IS NOT NULL",
    """
    CREATE INDEX tool_calls_by_client_id ON tool_calls (session_id, client_call_id)
    WHERE client_call_id IS NOT NULL
    """,
    """
    CREATE INDEX tool_calls_open ON tool_calls (seq) WHERE run_id IS NULL AND ended_at IS NULL
    """,
    "CREATE INDEX tool_calls_asked ON tool_calls (asked_seq) WHERE asked_seq IS NOT NULL",
    """
    CREATE TEMP TABLE told AS
    SELECT
        seq, type, session_id, run_id,
        json_extract(CAST(line AS TEXT), '$.ts') AS ts,
        json_extract(CAST(line AS TEXT), '$.payload.tool_call_id') AS tool_call_id,
        json_extract(CAST(line AS TEXT), '$.payload.tool_name') AS tool_name,
        json_extract(CAST(line AS TEXT), '$.payload.by') AS decided_by,
        json_extract(CAST(line AS TEXT), '$.payload.is_error') AS is_error
    FROM events WHERE type IN (
        'tool_call_requested', 'tool_call_approved', 'tool_call_denied', 'tool_call_started',
        'tool_execution_end'
    )
    """,
    "CREATE INDEX temp.told_by_call ON told (tool_call_id, type)",
    """
    INSERT INTO tool_calls
        (seq, last_seq, tool_call_id, attempt, session_id, run_id, tool_name, state, requested_at,
         started, ended_at, is_error, decided_by)
    SELECT
        asked.seq,
        max(asked.seq, coalesce(decided.seq, 0), coalesce(begun.seq, 0), coalesce(ended.seq, 0)),
        asked.tool_call_id, 1, asked.session_id, asked.run_id, asked.tool_name,
        CASE
            WHEN decided.type = 'tool_call_denied' THEN 'denied'
            WHEN begun.seq IS NOT NULL THEN iif(ended.seq IS NULL, 'started', 'completed')
            WHEN decided.seq IS NOT NULL THEN iif(ended.seq IS NULL, 'approved', 'not_started')
            ELSE 'requested'
        END,
        asked.ts, begun.seq IS NOT NULL, ended.ts, ended.is_error, decided.decided_by
    FROM told AS asked
    LEFT JOIN told AS decided ON decided.tool_call_id = asked.tool_call_id
        AND decided.type IN ('tool_call_approved', 'tool_call_denied')
    LEFT JOIN told AS begun ON begun.tool_call_id = asked.tool_call_id
        AND begun.type = 'tool_call_started'
    LEFT JOIN told AS ended ON ended.tool_call_id = asked.tool_call_id
        AND ended.type = 'tool_execution_end'
    WHERE asked.type = 'tool_call_requested'
    """,
    "DROP TABLE temp.told",
)
