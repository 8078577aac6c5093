"""The schema of the SQLite store, as the ordered list of what made it.

A migration is a plain function on a connection, applied once, in the transaction that also changes the
number of those that were (``PRAGMA user_version``). Never change one that was released: append another.
What a schema means is said once, beside its first migration; how a file is opened is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import apsw

from nousd.errors import StoreError

APPLICATION_ID: Final = int.from_bytes(b"nous", "big")
"""Stands in the header of every database of ours (``PRAGMA application_id``)."""

Migration = Callable[[apsw.Connection], None]


def m001_log_and_rows(connection: apsw.Connection) -> None:
    """The log and its projections.

    ``namespace`` is constant here; it is a column of every table so that one database can hold the
    logs of many users. ``schema_version`` is that of the line. An entry's body is kept once, under
    the number of the event that appended it; ``entries`` says which sessions hold it.
    """
    for statement in _LOG_AND_ROWS:
        connection.execute(statement)


_LOG_AND_ROWS: Final = (
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


def m002_joined_deltas(connection: apsw.Connection) -> None:
    """Old deltas are joined, and the lines of events have a second version.

    ``joined_from`` is set where a line stands for several: the number of the first event that it stands
    for. ``pruned_seq`` is how far the joining has come. Of the lines' versions see
    ``nousd.wire.lifting``; no line is changed here.
    """
    for statement in _JOINED_DELTAS:
        connection.execute(statement)


_JOINED_DELTAS: Final = (
    "ALTER TABLE events ADD COLUMN joined_from INTEGER",
    "CREATE INDEX events_joined ON events (seq, joined_from) WHERE joined_from IS NOT NULL",
    "ALTER TABLE log_state ADD COLUMN pruned_seq INTEGER NOT NULL DEFAULT 0",
)


def m003_what_models_saw(connection: apsw.Connection) -> None:
    """The lines of events have a third version (``nousd.wire.lifting``), artifacts lie in chunks, and
    runs and sessions have the sums of their model calls (``wire.entries.UsageTotals``).

    An artifact is there when its row in ``artifacts`` is. Chunks without one are of an artifact that is
    being put or dropped, or was not put to its end. All chunks but the last have ``CHUNK_BYTES``.
    """
    for statement in (*_ARTIFACTS_IN_CHUNKS, *_SUMS_OF_USAGE):
        connection.execute(statement)


_ARTIFACTS_IN_CHUNKS: Final = (
    "ALTER TABLE artifacts RENAME TO whole_artifacts",
    """
    CREATE TABLE artifacts (
        artifact_id TEXT NOT NULL PRIMARY KEY,
        namespace TEXT NOT NULL DEFAULT 'default',
        media_type TEXT NOT NULL,
        size_bytes INTEGER NOT NULL,
        created_at TEXT NOT NULL
    ) STRICT
    """,
    """
    CREATE TABLE artifact_chunks (
        artifact_id TEXT NOT NULL,
        namespace TEXT NOT NULL DEFAULT 'default',
        idx INTEGER NOT NULL,
        data BLOB NOT NULL,
        PRIMARY KEY (artifact_id, idx)
    ) STRICT
    """,
    """
    INSERT INTO artifacts (artifact_id, namespace, media_type, size_bytes, created_at)
    SELECT artifact_id, namespace, media_type, length(data), strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
    FROM whole_artifacts
    """,
    """
    INSERT INTO artifact_chunks (artifact_id, namespace, idx, data)
    WITH RECURSIVE chunks (artifact_id, idx) AS (
        SELECT artifact_id, 0 FROM whole_artifacts WHERE length(data) > 0
        UNION ALL
        SELECT artifact_id, idx + 1 FROM chunks JOIN artifacts USING (artifact_id)
        WHERE (idx + 1) * 262144 < size_bytes
    )
    SELECT artifact_id, namespace, idx, substr(data, idx * 262144 + 1, 262144)
    FROM chunks JOIN whole_artifacts USING (artifact_id)
    """,
    "DROP TABLE whole_artifacts",
)

_SUMS_OF_USAGE: Final = (
    "ALTER TABLE sessions ADD COLUMN usage_totals TEXT",
    "ALTER TABLE runs ADD COLUMN usage_totals TEXT",
    "ALTER TABLE runs DROP COLUMN usage",
    """
    CREATE TEMP TABLE told AS
    SELECT session_id, run_id, json_extract(CAST(line AS TEXT), '$.payload.usage') AS usage
    FROM events WHERE type = 'usage_reported'
    """,
    *(
        f"""
        UPDATE {table} SET usage_totals = sums.totals
        FROM (
            SELECT {id}, json_patch('{{}}', json_object(
                'calls', count(*),
                'input', sum(usage ->> 'input'),
                'output', sum(usage ->> 'output'),
                'total', sum(usage ->> 'total'),
                'duration_ms', 0,
                'cache_read', nullif(sum(usage ->> 'cache_read'), 0),
                'cache_write', nullif(sum(usage ->> 'cache_write'), 0),
                'reasoning', nullif(sum(usage ->> 'reasoning'), 0),
                'unpriced_calls', count(*)
            )) AS totals
            FROM told GROUP BY {id}
        ) AS sums
        WHERE {table}.{id} = sums.{id}
        """  # noqa: S608  the names are ours
        for table, id in (("sessions", "session_id"), ("runs", "run_id"))
    ),
    "DROP TABLE temp.told",
)


def m004_tool_calls(connection: apsw.Connection) -> None:
    """The lines of events have a fourth version (``nousd.wire.lifting``), and each attempt at a tool
    call has a row (``store.interface.ToolCallRow``). Sessions of tasks are found by who made them.

    ``seq`` is the number of the event that requested it. A client's own calls have no run; of their
    events the column ``run_id`` holds the call's id, so that they are found by it. Calls of which the
    log tells no request, because its first version did not, have no row.
    """
    for statement in _TOOL_CALLS:
        connection.execute(statement)


_TOOL_CALLS: Final = (
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


def m005_sessions_that_are_found(connection: apsw.Connection) -> None:
    """Sessions are listed by workspace, by where they come from and whether they are archived. A run
    says how it was asked for (``wire.run_options.RunRequest``).

    What is asked for stands in ``settings`` and is a column made of it. The index has all of it behind
    the order of the list, so that neither a page nor a count reads a session that is not wanted.
    """
    for statement in _SESSIONS_THAT_ARE_FOUND:
        connection.execute(statement)


_SESSIONS_THAT_ARE_FOUND: Final = (
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
    # Those of which a start has to know, without reading all others.
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


MIGRATIONS: Final[Sequence[Migration]] = (
    m001_log_and_rows,
    m002_joined_deltas,
    m003_what_models_saw,
    m004_tool_calls,
    m005_sessions_that_are_found,
)
"""In the order in which they are applied; the schema's version is how many were."""


def migrate(connection: apsw.Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Applies what is missing, as one transaction: a new log costs the syncs of one.

    They run with a rollback journal, not with a WAL: so the version in the file's own header is
    always the true one, and can be read without opening the database (``_database.inspect``).

    Raises:
        StoreError: one failed; nothing was changed.
        apsw.Error: none failed, but their commit; nothing was changed.
    """
    done: int = connection.pragma("user_version")
    if done >= len(migrations):
        return
    connection.pragma("journal_mode", "DELETE")
    connection.pragma("synchronous", "EXTRA")
    with connection:
        for version, migration in enumerate(migrations[done:], done + 1):
            try:
                migration(connection)
                connection.pragma("user_version", version)
            except apsw.Error as error:
                raise StoreError(f"migration {version} of the database failed: {error}") from error
