"""Artifacts: bytes too big for an event, stored in chunks under their hash."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

CHUNK_BYTES: Final = 256 * 1024
"""Size of every chunk of an artifact but its last. It is part of the schema: never change it."""

PUT_STEP_BYTES: Final = 4 * CHUNK_BYTES
"""Bytes that one step of storing or dropping an artifact moves, in a few milliseconds of the writer."""

FREE_BYTES_KEPT: Final = 64 * 1024 * 1024
"""Disk space that storing a large artifact must leave for the log: more than a full WAL."""


class Artifact(msgspec.Struct, frozen=True):
    """Bytes too large for an event; ``id`` is ``sha256:`` and the hex digest of ``data``."""

    id: str
    media_type: str
    data: bytes


class ArtifactInfo(msgspec.Struct, frozen=True):
    """The metadata of an artifact. ``created_at`` is the time when it was last put."""

    id: str
    media_type: str
    size_bytes: int
    created_at: str


class ArtifactSource(Protocol):
    """The content of an artifact to be stored, which may not fit in memory. It must not change."""

    @property
    def artifact_id(self) -> str:
        """``sha256:`` and the hex digest of all bytes."""
        ...

    @property
    def size_bytes(self) -> int: ...

    async def read(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes from ``offset`` on, or fewer at the end."""
        ...
