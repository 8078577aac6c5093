"""Workspaces on the wire: moving a session to another folder, and overrides, by which it may for a
while ask about what lies outside.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from nousd.wire.command_base import AnsweredBy, Folder, Name
from nousd.wire.event_base import Event
from nousd.wire.limits import OVERRIDE_SECONDS_MAX, REASON_CHARS_MAX
from nousd.wire.response_base import Response

OverrideEnd = Literal["expired", "ended", "replaced", "attached"]
"""Why an override is over: its time, the user, a newer override, or a move to another workspace."""


# --- commands ----------------------------------------------------------------------------------


class AttachSession(AnsweredBy["Attached"], frozen=True, kw_only=True):
    """Moves an idle session to another workspace; ``reason`` says why, for people and programs."""

    workspace: Folder
    session_id: Name | None = None
    reason: Annotated[str, Meta(min_length=1, max_length=REASON_CHARS_MAX)] | None = None


class OverrideWorkspace(AnsweredBy["WorkspaceOverride"], frozen=True, kw_only=True):
    """For so many seconds, calls that lead out of the workspace are asked about instead of refused.

    One that holds is replaced; 0 ends it.
    """

    ttl_seconds: Annotated[int, Meta(ge=0, le=OVERRIDE_SECONDS_MAX)]
    session_id: Name | None = None


# --- answers -----------------------------------------------------------------------------------


class OverrideInForce(msgspec.Struct, frozen=True, kw_only=True):
    """An override that holds until ``expires_at``, RFC 3339 UTC, and for ``ttl_seconds`` at most."""

    ttl_seconds: int
    expires_at: str


class Attached(Response, frozen=True, kw_only=True):
    """Where the session works now, and did before; ``revoked`` are the rules that no longer hold."""

    session_id: str
    workspace: str
    attached_from: str
    origin_workspace: str
    attached_at: str
    reason: str | UnsetType = UNSET
    revoked: tuple[str, ...] = ()


class WorkspaceOverride(Response, frozen=True, kw_only=True):
    """What took effect; without ``override`` none holds."""

    session_id: str
    override: OverrideInForce | UnsetType = UNSET


# --- events ------------------------------------------------------------------------------------


class SessionAttached(Event, frozen=True, kw_only=True):
    """The session works in ``workspace`` from here on, and did in ``attached_from``.

    ``origin_workspace`` is the first that it ever had. ``revoked`` are the rules that allowed calls in
    this session alone: they were meant for the other folder, and no longer hold.
    """

    workspace: str
    attached_from: str
    origin_workspace: str
    reason: str | UnsetType = UNSET
    revoked: tuple[str, ...] = ()


class WorkspaceOverrideGranted(Event, frozen=True, kw_only=True):
    """Until ``expires_at``, calls of the session that lead out of its workspace are asked about."""

    ttl_seconds: int
    expires_at: str


class WorkspaceOverrideExpired(Event, frozen=True, kw_only=True):
    """What leads out of the workspace is refused again. Each override that was granted has one of these,
    unless its session was deleted.
    """

    reason: OverrideEnd
