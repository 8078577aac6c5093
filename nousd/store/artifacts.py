"""Artifacts: bytes too big for an event, stored in chunks under their hash."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

CHUNK_BYTES: Final = 256 * 1024
"""Every chunk of an artifact but its last has this size. It is a part of the schema: never change it."""

PUT_STEP_BYTES: Final = 4 * CHUNK_BYTES
"""What one step of putting or dropping an artifact moves: a few milliseconds of the writer."""

FREE_BYTES_KEPT: Final = 64 * 1024 * 1024
"""Space of the disk that an artifact that takes many steps leaves to the log: a full WAL, and more."""


class Artifact(msgspec.Struct, frozen=True):
    """Bytes too big for an event; ``id`` is ``sha256:`` and the hex digest of ``data``."""

    id: str
    media_type: str
    data: bytes


class ArtifactInfo(msgspec.Struct, frozen=True):
    """Facts about an artifact without its bytes. ``created_at`` is when it was last put."""

    id: str
    media_type: str
    size_bytes: int
    created_at: str


class ArtifactSource(Protocol):
    """Bytes that are to become an artifact and are too many for memory. They must not change."""

    @property
    def artifact_id(self) -> str:
        """``sha256:`` and the hex digest of all of them."""
        ...

    @property
    def size_bytes(self) -> int: ...

    async def read(self, offset: int, length: int) -> bytes:
        """Return the bytes from ``offset`` on, as many as ``length`` unless they end before."""
        ...
