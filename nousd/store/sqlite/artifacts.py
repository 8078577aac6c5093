"""Artifacts as rows: reading them, and storing or dropping one in short steps.

Plain functions of a connection; those that write are called inside a transaction. An artifact exists
when it has a row in ``artifacts``; chunks alone belong to an artifact that is being stored or dropped,
or was never completed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import apsw

from nousd.errors import StoreFull
from nousd.store.artifacts import (
    CHUNK_BYTES,
    FREE_BYTES_KEPT,
    PUT_STEP_BYTES,
    Artifact,
    ArtifactInfo,
)

_STORED: Final = """
    SELECT artifact_id, media_type, size_bytes, created_at FROM artifacts WHERE artifact_id = ?
"""
_INFO: Final = f"""
    {_STORED} AND NOT (
        EXISTS (SELECT 1 FROM artifact_uses AS uses WHERE uses.artifact_id = artifacts.artifact_id)
        AND NOT EXISTS (
            SELECT 1 FROM artifact_uses AS uses
            WHERE uses.artifact_id = artifacts.artifact_id AND NOT EXISTS (
                SELECT 1 FROM deletions AS its WHERE its.session_id = uses.session_id
            )
        )
    )
"""  # noqa: S608  the names are constants
"""An artifact is invisible if only sessions that are being deleted refer to it."""

_CHUNKS: Final = """
    SELECT data FROM artifact_chunks WHERE artifact_id = ? AND idx BETWEEN ? AND ? ORDER BY idx
"""

_COUNT_CHUNKS: Final = "SELECT count(*) FROM artifact_chunks WHERE artifact_id = ?"

# --- reading ---------------------------------------------------------------------------------


def info(connection: apsw.Connection, artifact_id: str) -> ArtifactInfo | None:
    row = connection.execute(_INFO, (artifact_id,)).get
    return None if row is None else ArtifactInfo(*row)


def find_stored(connection: apsw.Connection, artifact_id: str) -> ArtifactInfo | None:
    """Return the metadata of an artifact, even if only sessions that are being deleted refer to it."""
    row = connection.execute(_STORED, (artifact_id,)).get
    return None if row is None else ArtifactInfo(*row)


def part(connection: apsw.Connection, artifact_id: str, offset: int, length: int) -> bytes:
    found = info(connection, artifact_id)
    end = min(offset + length, 0 if found is None else found.size_bytes)
    if offset >= end:
        return b""
    first, last = offset // CHUNK_BYTES, (end - 1) // CHUNK_BYTES
    data = b"".join(chunk for (chunk,) in connection.execute(_CHUNKS, (artifact_id, first, last)))
    return data[offset - first * CHUNK_BYTES : end - first * CHUNK_BYTES]


def whole(connection: apsw.Connection, artifact_id: str) -> Artifact | None:
    found = info(connection, artifact_id)
    if found is None:
        return None
    return Artifact(found.id, found.media_type, part(connection, found.id, 0, found.size_bytes))


_UNUSED: Final = """
    SELECT artifact_id FROM artifacts
    WHERE created_at < :put_before AND NOT EXISTS (
        SELECT 1 FROM artifact_uses AS uses WHERE uses.artifact_id = artifacts.artifact_id
    )
    UNION ALL
    SELECT DISTINCT artifact_id FROM artifact_chunks AS chunks
    WHERE NOT EXISTS (SELECT 1 FROM artifacts WHERE artifacts.artifact_id = chunks.artifact_id)
    LIMIT :limit
"""


def list_unused(connection: apsw.Connection, put_before: str, *, limit: int) -> tuple[str, ...]:
    values: dict[str, str | int] = {"put_before": put_before, "limit": limit}
    return tuple(artifact_id for (artifact_id,) in connection.execute(_UNUSED, values))


# --- writing ---------------------------------------------------------------------------------


_TAKE_BACK: Final = """
    DELETE FROM artifact_uses
    WHERE artifact_id = ? AND session_id IN (SELECT session_id FROM deletions)
"""


def take_back(connection: apsw.Connection, artifact_id: str) -> None:
    """Detach an artifact that is put again from the sessions that are being deleted."""
    connection.execute(_TAKE_BACK, (artifact_id,))


def put_whole(connection: apsw.Connection, artifact: Artifact, created_at: str) -> None:
    """Store a small artifact in one step, unless it exists."""
    take_back(connection, artifact.id)
    if info(connection, artifact.id) is None:
        put_chunks(connection, artifact.id, 0, artifact.data)
        size = len(artifact.data)
        finish(connection, ArtifactInfo(artifact.id, artifact.media_type, size, created_at))


def begin(
    connection: apsw.Connection, artifact_id: str, size_bytes: int, now: str
) -> ArtifactInfo | None:
    """Return the artifact if it exists, after counting it as put ``now``.

    Raises:
        StoreFull: the disk lacks space for it.
    """
    take_back(connection, artifact_id)
    known = renew(connection, artifact_id, now)
    if known is None and size_bytes > PUT_STEP_BYTES:
        _require_space(connection, size_bytes)
    return known


def _require_space(connection: apsw.Connection, size_bytes: int) -> None:
    disk = os.statvfs(Path(connection.filename).parent)
    in_file = connection.pragma("freelist_count") * connection.pragma("page_size")
    missing = size_bytes + FREE_BYTES_KEPT - disk.f_bavail * disk.f_frsize - in_file
    if missing > 0:
        raise StoreFull(f"the disk has not the space for an artifact of {size_bytes} bytes")


def put_chunks(connection: apsw.Connection, artifact_id: str, offset: int, data: bytes) -> None:
    """Store bytes from the start of a chunk on, replacing chunks left by an earlier attempt."""
    connection.executemany(
        "INSERT OR REPLACE INTO artifact_chunks (artifact_id, idx, data) VALUES (?, ?, ?)",
        [
            (artifact_id, (offset + at) // CHUNK_BYTES, data[at : at + CHUNK_BYTES])
            for at in range(0, len(data), CHUNK_BYTES)
        ],
    )


def put_step(connection: apsw.Connection, artifact_id: str, offset: int, data: bytes) -> None:
    """Store a part of an artifact, unless another caller has stored the artifact meanwhile."""
    if info(connection, artifact_id) is None:
        put_chunks(connection, artifact_id, offset, data)


def finish_steps(connection: apsw.Connection, put: ArtifactInfo) -> ArtifactInfo | None:
    """Complete an artifact that was stored in steps; return None if some of its chunks are gone."""
    take_back(connection, put.id)
    chunks = connection.execute(_COUNT_CHUNKS, (put.id,)).get
    if chunks < -(-put.size_bytes // CHUNK_BYTES):
        return None
    return finish(connection, put)


def finish(connection: apsw.Connection, put: ArtifactInfo) -> ArtifactInfo:
    """Complete an artifact whose chunks are all stored."""
    connection.execute(
        """
        INSERT OR IGNORE INTO artifacts (artifact_id, media_type, size_bytes, created_at)
        VALUES (?, ?, ?, ?)
        """,
        (put.id, put.media_type, put.size_bytes, put.created_at),
    )
    return info(connection, put.id) or put


def renew(connection: apsw.Connection, artifact_id: str, now: str) -> ArtifactInfo | None:
    if info(connection, artifact_id) is None:
        return None
    connection.execute(
        "UPDATE artifacts SET created_at = ? WHERE artifact_id = ?", (now, artifact_id)
    )
    return info(connection, artifact_id)


_IS_USED: Final = "SELECT 1 FROM artifact_uses WHERE artifact_id = ?"
_DROP_CHUNKS: Final = """
    DELETE FROM artifact_chunks WHERE artifact_id = :id AND idx IN (
        SELECT idx FROM artifact_chunks WHERE artifact_id = :id ORDER BY idx LIMIT :count
    )
"""


def drop(connection: apsw.Connection, artifact_id: str, put_before: str) -> bool:
    """Drop a part of an unused artifact; return whether chunks of it are left."""
    found = find_stored(connection, artifact_id)
    if found is not None:
        is_used = connection.execute(_IS_USED, (artifact_id,)).get is not None
        if is_used or found.created_at >= put_before:
            return False
        connection.execute("DELETE FROM artifacts WHERE artifact_id = ?", (artifact_id,))
    return drop_chunks(connection, artifact_id)


def drop_chunks(connection: apsw.Connection, artifact_id: str) -> bool:
    """Drop a few chunks that belong to no artifact; return whether more are left."""
    count = PUT_STEP_BYTES // CHUNK_BYTES
    connection.execute(_DROP_CHUNKS, {"id": artifact_id, "count": count})
    return connection.changes() == count


def drop_all_unused(connection: apsw.Connection, put_before: str) -> Iterator[str]:
    """Drop all unused artifacts; yield the artifact's id after each step. Only for a process that has
    the log to itself.
    """
    for artifact_id in list_unused(connection, put_before, limit=-1):
        more = True
        while more:
            with connection:
                more = drop(connection, artifact_id, put_before)
            yield artifact_id
