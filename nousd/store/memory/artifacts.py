"""Artifacts in memory, stored whole."""

from __future__ import annotations

import hashlib
from itertools import islice

from nousd.errors import StoreError
from nousd.store.artifacts import PUT_STEP_BYTES, Artifact, ArtifactInfo, ArtifactSource
from nousd.store.memory.rows import Rows, StoredArtifact


async def read_whole(source: ArtifactSource) -> bytes:
    """Return the bytes of a source after checking them against its id."""
    data = b"".join(
        [
            await source.read(offset, PUT_STEP_BYTES)
            for offset in range(0, source.size_bytes, PUT_STEP_BYTES)
        ]
    )
    if source.artifact_id != f"sha256:{hashlib.sha256(data).hexdigest()}":
        raise StoreError(f"{source.artifact_id} changed while it was put")
    return data


def put_whole(rows: Rows, artifact: Artifact, created_at: str) -> None:
    info = ArtifactInfo(artifact.id, artifact.media_type, len(artifact.data), created_at)
    rows.artifacts.setdefault(artifact.id, StoredArtifact(info, artifact.data))


def renew(rows: Rows, artifact_id: str, now: str) -> ArtifactInfo | None:
    """Return the metadata of an artifact, after counting it as put ``now``."""
    stored = rows.artifacts.get(artifact_id)
    if stored is None:
        return None
    info = ArtifactInfo(artifact_id, stored.info.media_type, stored.info.size_bytes, now)
    rows.artifacts[artifact_id] = StoredArtifact(info, stored.data)
    return info


def info(rows: Rows, artifact_id: str) -> ArtifactInfo | None:
    stored = rows.artifacts.get(artifact_id)
    return None if stored is None else stored.info


def part(rows: Rows, artifact_id: str, offset: int, length: int) -> bytes:
    stored = rows.artifacts.get(artifact_id)
    return b"" if stored is None else stored.data[offset : offset + length]


def whole(rows: Rows, artifact_id: str) -> Artifact | None:
    stored = rows.artifacts.get(artifact_id)
    return stored and Artifact(stored.info.id, stored.info.media_type, stored.data)


def list_unused(rows: Rows, put_before: str, *, limit: int) -> tuple[str, ...]:
    used = set().union(*rows.artifact_uses.values())
    found = (
        artifact_id
        for artifact_id, stored in rows.artifacts.items()
        if artifact_id not in used and stored.info.created_at < put_before
    )
    return tuple(islice(found, limit))
