"""The events of a session itself: created, changed, activated, deleted."""

from __future__ import annotations

from typing import Final

from msgspec import UNSET, UnsetType

from nousd.wire.events.base import Event
from nousd.wire.objects.agents import ResumeKind
from nousd.wire.objects.entries import PermissionMode, Sampling, Thinking
from nousd.wire.objects.field_types import QueueMode
from nousd.wire.objects.mcp import McpServer
from nousd.wire.objects.session_values import SessionRules, SourceMetadata
from nousd.wire.objects.todos import Todo
from nousd.wire.objects.workers import TaskOrigin, WorkerSpec
from nousd.wire.objects.workspaces import OverrideEnd

CONTRACT_VERSION: Final = "1"
"""The version of the protocol with which sessions are created."""


class SessionCreated(Event, frozen=True, kw_only=True):
    """A session was created. A branch starts with its parent's values of that time. Only earlier
    versions wrote ``steering_mode``, ``follow_up_mode`` and ``active_tools``, which are ignored.
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
    title: str | UnsetType = UNSET
    seen_id: str | UnsetType = UNSET
    runtime: str | UnsetType = UNSET
    runtime_model: str | UnsetType = UNSET
    runtime_namespace: str | UnsetType = UNSET


class SessionUpdated(Event, frozen=True, kw_only=True):
    """Settings, leaf or metadata changed. Only changed keys are present; null unsets one. An empty
    ``session_id`` means the daemon's own settings.
    """

    name: str | UnsetType = UNSET
    leaf_id: str | UnsetType = UNSET
    steering_mode: QueueMode | UnsetType | None = UNSET
    follow_up_mode: QueueMode | UnsetType | None = UNSET
    active_tools: tuple[str, ...] | UnsetType | None = UNSET
    provider: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    thinking: Thinking | UnsetType | None = UNSET
    permission_mode: PermissionMode | UnsetType = UNSET
    granted: tuple[str, ...] | UnsetType = UNSET
    granted_in: dict[str, tuple[str, ...]] | UnsetType = UNSET
    mcp_servers: tuple[McpServer, ...] | UnsetType = UNSET
    mcp_approved: tuple[str, ...] | UnsetType = UNSET
    archived: bool | UnsetType = UNSET
    source_metadata: SourceMetadata | UnsetType | None = UNSET
    sampling: Sampling | UnsetType | None = UNSET
    rules: SessionRules | UnsetType | None = UNSET
    title: str | UnsetType = UNSET
    runtime: str | UnsetType | None = UNSET
    runtime_model: str | UnsetType | None = UNSET


class AgentSession(Event, frozen=True, kw_only=True):
    """An agent program began to serve a session, or has its transcript up to ``leaf_id``."""

    runtime: str
    agent_session_id: str
    basis: str = ""
    agent_version: str = ""
    run_id: str | UnsetType = UNSET
    resume: ResumeKind | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    leaf_id: str | UnsetType = UNSET


class SessionSeen(Event, frozen=True, kw_only=True):
    """The user has seen the session up to this entry. Its position in lists does not change."""

    entry_id: str


class SessionActivated(Event, frozen=True, kw_only=True):
    """The session became the active one."""


class SessionDeleted(Event, frozen=True, kw_only=True):
    """The session was deleted; its other events are gone from the log."""


class SessionDeletionScheduled(Event, frozen=True, kw_only=True):
    """The session will be deleted at ``delete_at`` unless it is restored. Until then it does no work."""

    delete_at: str


class SessionRestored(Event, frozen=True, kw_only=True):
    """The scheduled deletion was cancelled; the session works again."""


class SessionAttached(Event, frozen=True, kw_only=True):
    """The session moved to another workspace."""

    workspace: str
    attached_from: str
    origin_workspace: str
    reason: str | UnsetType = UNSET
    revoked: tuple[str, ...] = ()


class WorkspaceOverrideGranted(Event, frozen=True, kw_only=True):
    """Calls may request approval for paths outside the workspace until ``expires_at``."""

    ttl_seconds: int
    expires_at: str


class WorkspaceOverrideExpired(Event, frozen=True, kw_only=True):
    """Paths outside the workspace are refused again."""

    reason: OverrideEnd


class TodoUpdated(Event, frozen=True, kw_only=True):
    """The todo list of the session was replaced by this one."""

    todos: tuple[Todo, ...]
    run_id: str | UnsetType = UNSET
    turn_id: str | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET
    raw_ref: str | UnsetType = UNSET
