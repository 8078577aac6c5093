"""The events of a session itself: created, changed, activated, deleted."""

from __future__ import annotations

from typing import Final

from msgspec import UNSET, UnsetType

from nousd.wire.events.base import Event
from nousd.wire.objects.entries import PermissionMode, Sampling, Thinking
from nousd.wire.objects.mcp import McpServer
from nousd.wire.objects.session_settings import SessionRules, SourceMetadata
from nousd.wire.objects.todos import Todo
from nousd.wire.objects.words import QueueMode
from nousd.wire.objects.workers import TaskOrigin, WorkerSpec
from nousd.wire.objects.workspaces import OverrideEnd

CONTRACT_VERSION: Final = "1"
"""The version of the protocol that sessions are created under."""


class SessionCreated(Event, frozen=True, kw_only=True):
    """A branch names its parent and holds, from the start, everything the parent held. One with a parent
    and without ``leaf_id`` begins empty.

    ``contract_version`` is that of the protocol the session was created under. ``origin`` is of a
    session that a call of ``task`` made, ``worker`` who carries that task out. ``workspace`` is the real
    path of the folder that the session works in; logs of earlier versions do not have it.
    """

    created_at: str
    contract_version: str
    name: str | UnsetType = UNSET
    parent_id: str | UnsetType = UNSET
    leaf_id: str | UnsetType = UNSET
    steering_mode: QueueMode | UnsetType = UNSET
    follow_up_mode: QueueMode | UnsetType = UNSET
    active_tools: tuple[str, ...] | UnsetType = UNSET
    provider: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    thinking: Thinking | UnsetType = UNSET
    permission_mode: PermissionMode | UnsetType = UNSET
    origin: TaskOrigin | UnsetType = UNSET
    worker: WorkerSpec | UnsetType = UNSET
    todos: tuple[Todo, ...] | UnsetType = UNSET
    workspace: str | UnsetType = UNSET
    source: str | UnsetType = UNSET
    source_metadata: SourceMetadata | UnsetType = UNSET
    sampling: Sampling | UnsetType = UNSET
    rules: SessionRules | UnsetType = UNSET


class SessionUpdated(Event, frozen=True, kw_only=True):
    """Only what changed is present; null takes back what was set.

    ``granted`` are all the rules by which the user allows calls in this session alone. ``mcp_servers``
    are all that were added since, and stand where ``session_id`` is "".
    """

    name: str | UnsetType = UNSET
    leaf_id: str | UnsetType = UNSET
    steering_mode: QueueMode | UnsetType = UNSET
    follow_up_mode: QueueMode | UnsetType = UNSET
    active_tools: tuple[str, ...] | UnsetType = UNSET
    provider: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    thinking: Thinking | UnsetType | None = UNSET
    permission_mode: PermissionMode | UnsetType = UNSET
    granted: tuple[str, ...] | UnsetType = UNSET
    mcp_servers: tuple[McpServer, ...] | UnsetType = UNSET
    archived: bool | UnsetType = UNSET
    source_metadata: SourceMetadata | UnsetType | None = UNSET
    sampling: Sampling | UnsetType | None = UNSET
    rules: SessionRules | UnsetType | None = UNSET


class SessionActivated(Event, frozen=True, kw_only=True):
    """This session is the daemon's active one from here on."""


class SessionDeleted(Event, frozen=True, kw_only=True):
    """The tombstone: the session's other events are gone from the log."""


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


class TodoUpdated(Event, frozen=True, kw_only=True):
    """From here on the session's list is this one, set by that run, turn and call."""

    todos: tuple[Todo, ...]
    run_id: str | UnsetType = UNSET
    turn_id: str | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET
