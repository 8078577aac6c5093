"""Commands that store and read artifacts."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from nousd.wire.commands.base import AnsweredBy
from nousd.wire.limits import ARTIFACT_RANGE_BYTES_MAX
from nousd.wire.objects.field_types import ArtifactOffset, MediaType, Name
from nousd.wire.responses import Artifact, Upload


class PutArtifact(AnsweredBy[Artifact | Upload], frozen=True, kw_only=True):
    """Store bytes of any size, in pieces that each fit into a line; ``final`` completes the artifact."""

    data: bytes
    media_type: MediaType
    upload_id: Name | None = None
    offset: ArtifactOffset | None = None
    final: bool = False


class GetArtifact(AnsweredBy[Artifact], frozen=True, kw_only=True):
    """Read a part of an artifact."""

    artifact_id: Name
    offset: ArtifactOffset = 0
    length: Annotated[int, Meta(ge=1, le=ARTIFACT_RANGE_BYTES_MAX)] = 1024 * 1024
