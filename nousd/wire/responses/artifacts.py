"""Responses about artifacts: uploads in pieces, and parts that are read."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from nousd.wire.responses.base import Response


class Upload(Response, frozen=True, kw_only=True):
    """A piece was stored; more are to come."""

    upload_id: str
    received: int


class Artifact(Response, frozen=True, kw_only=True):
    """An artifact that was stored or, with the last three keys, a part of one that is read."""

    artifact_id: str
    media_type: str
    size_bytes: int
    offset: int | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    eof: bool | UnsetType = UNSET
