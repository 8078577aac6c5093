"""Version 3: artifacts are stored in chunks, runs and sessions have usage totals of their model calls
(``wire.objects.entries.UsageTotals``), and event lines have a third version (``wire.codec.upcasting``).

An artifact exists when it has a row in ``artifacts``. Chunks without one belong to an artifact that is
being put or dropped, or was never completed. All chunks but the last have ``CHUNK_BYTES``.
"""

from __future__ import annotations

from typing import Final

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
        """  # noqa: S608  the names are constants
        for table, id in (("sessions", "session_id"), ("runs", "run_id"))
    ),
    "DROP TABLE temp.told",
)

STATEMENTS: Final = (*_ARTIFACTS_IN_CHUNKS, *_SUMS_OF_USAGE)
