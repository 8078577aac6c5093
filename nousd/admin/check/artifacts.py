"""Checks and salvages the artifacts of a log, one piece at a time: chunks, or whole before schema 3."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import apsw

from nousd.admin.check.findings import Finding
from nousd.admin.reading.damaged_tables import RowReader
from nousd.admin.reading.pages import RawArtifact, RawChunk, RawInfo
from nousd.store.artifacts import Artifact, ArtifactInfo
from nousd.store.sqlite.artifacts import finish, put_whole

_UNKNOWN_TYPE = "application/octet-stream"


# --- checking --------------------------------------------------------------------------------


def faults(connection: apsw.Connection) -> Iterator[Finding]:
    """Yield the faults of the artifacts in the database that is attached as ``log``.

    Raises:
        apsw.Error: a table cannot be read.
    """
    for session_id, artifact_id in connection.execute(_MISSING):
        yield Finding("is missing", f"artifact {artifact_id} of {session_id}")
    is_whole = connection.execute(_IS_WHOLE).get is not None
    pieces = _WHOLE if is_whole else _CHUNKS
    for (artifact_id,) in connection.execute("SELECT artifact_id FROM log.artifacts"):
        if artifact_id != _id_of(data for (data,) in connection.execute(pieces, (artifact_id,))):
            yield Finding("has other bytes than its id says", f"artifact {artifact_id}")
    if is_whole:
        return
    for (artifact_id,) in connection.execute(_WRONG_SIZE):
        yield Finding("has another size than its row says", f"artifact {artifact_id}")
    for (artifact_id,) in connection.execute(_IN_PART):
        what = "is there in part: it is being put or deleted, or will be dropped at the next start"
        yield Finding(what, f"artifact {artifact_id}", "note")


_IS_WHOLE = "SELECT 1 FROM pragma_table_info('artifacts', 'log') WHERE name = 'data'"
_WHOLE = "SELECT data FROM log.artifacts WHERE artifact_id = ?"
_CHUNKS = "SELECT data FROM log.artifact_chunks WHERE artifact_id = ? ORDER BY idx"
_MISSING = """
    SELECT u.session_id, u.artifact_id FROM log.artifact_uses AS u
    LEFT JOIN log.artifacts AS a ON a.artifact_id = u.artifact_id WHERE a.artifact_id IS NULL
"""
_WRONG_SIZE = """
    SELECT artifact_id FROM log.artifacts AS a WHERE size_bytes <> (
        SELECT coalesce(sum(length(data)), 0) FROM log.artifact_chunks AS c
        WHERE c.artifact_id = a.artifact_id
    )
"""
_IN_PART = """
    SELECT DISTINCT artifact_id FROM log.artifact_chunks
    WHERE artifact_id NOT IN (SELECT artifact_id FROM log.artifacts)
"""


def _id_of(pieces: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return f"sha256:{digest.hexdigest()}"


# --- salvaging -------------------------------------------------------------------------------


def take_raw(out: apsw.Connection, raw: RawArtifact | RawChunk | RawInfo) -> None:
    """Insert an artifact, or a part of one, from a page into the new log, unless it exists."""
    match raw:
        case RawArtifact(artifact_id, media_type, data):
            put_whole(out, Artifact(artifact_id, media_type, data), "")
        case RawChunk(artifact_id, idx, data):
            _take_chunk(out, artifact_id, idx, data)
        case RawInfo(artifact_id, media_type, size_bytes, created_at):
            finish(out, ArtifactInfo(artifact_id, media_type, size_bytes, created_at))


def take_rows(out: apsw.Connection, rows: RowReader) -> None:
    """Copy the rows of all readable artifacts; chunks are verified by ``keep_whole_and_used``."""
    if not rows.has_table("artifact_chunks"):
        for artifact_id, media_type, data in rows.all(
            "artifacts", "artifact_id, media_type, data", "rowid"
        ):
            if artifact_id == _id_of(iter([data])):
                put_whole(out, Artifact(artifact_id, media_type, data), "")
        return
    for artifact_id, index, data in rows.all("artifact_chunks", "artifact_id, idx, data", "rowid"):
        _take_chunk(out, artifact_id, index, data)
    columns = "artifact_id, media_type, size_bytes, created_at"
    for row in rows.all("artifacts", columns, "rowid"):
        finish(out, ArtifactInfo(*row))


def _take_chunk(out: apsw.Connection, artifact_id: str, index: int, data: bytes) -> None:
    # Most artifacts have one chunk, which can be verified alone.
    on_conflict = "REPLACE" if artifact_id == _id_of(iter([data])) else "IGNORE"
    out.execute(
        f"INSERT OR {on_conflict} INTO artifact_chunks (artifact_id, idx, data) VALUES (?, ?, ?)",  # noqa: S608
        (artifact_id, index, data),
    )


def keep_whole_and_used(out: apsw.Connection) -> None:
    """Drop all artifacts of the new log except those that a session uses and whose bytes match their id.
    Add a row for an artifact whose row is lost.
    """
    used = out.execute("SELECT DISTINCT artifact_id FROM artifact_uses").fetchall()
    for (artifact_id,) in used:
        chunks = "SELECT data FROM artifact_chunks WHERE artifact_id = ? ORDER BY idx"
        if artifact_id != _id_of(data for (data,) in out.execute(chunks, (artifact_id,))):
            out.execute("DELETE FROM artifacts WHERE artifact_id = ?", (artifact_id,))
            continue
        size = "SELECT coalesce(sum(length(data)), 0) FROM artifact_chunks WHERE artifact_id = ?"
        size_bytes = out.execute(size, (artifact_id,)).get
        finish(out, ArtifactInfo(artifact_id, _UNKNOWN_TYPE, size_bytes, ""))
        out.execute(
            "UPDATE artifacts SET size_bytes = ? WHERE artifact_id = ?", (size_bytes, artifact_id)
        )
    out.execute(
        "DELETE FROM artifacts WHERE artifact_id NOT IN (SELECT artifact_id FROM artifact_uses)"
    )
    out.execute(
        "DELETE FROM artifact_chunks WHERE artifact_id NOT IN (SELECT artifact_id FROM artifacts)"
    )
