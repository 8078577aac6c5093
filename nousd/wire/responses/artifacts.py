"""Responses about artifacts: unfinished uploads, and artifacts that are stored or read."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from nousd.wire.responses.base import Response


class Upload(Response, frozen=True, kw_only=True):
    """A piece was stored; the upload is not finished."""

    upload_id: str
    received: int


class Artifact(Response, frozen=True, kw_only=True):
    """A stored artifact or, with the last three keys, a part of one."""

    artifact_id: str
    media_type: str
    size_bytes: int
    offset: int | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    eof: bool | UnsetType = UNSET
