"""The settings of a session: the one place where each of them is declared.

The session state (``SessionState``), the rows of both stores, the settings that new sessions start with
and those that a branch copies are derived from the structs here. To add a setting, add a field to the
struct for its scope, and a field of the same name to the wire structs that carry it: the events
``session_created`` and ``session_updated``, the commands ``new_session``, ``update_session`` and
``list_sessions``, and the responses. Handlers copy the fields that two structs share. A setting that
null can unset has None as its default. To filter session lists by it, also add a field to
``store.session_list.SessionFilter``, and a generated column with its index in a new migration
(``store.schema``).

This module does not validate values: commands are checked before they become events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET

from nousd.wire import events
from nousd.wire.objects.agents import AgentSessionFacts
from nousd.wire.objects.entries import PermissionMode, Sampling, Thinking
from nousd.wire.objects.field_types import QueueMode
from nousd.wire.objects.mcp import McpServer
from nousd.wire.objects.session_values import SessionRules, SourceMetadata
from nousd.wire.objects.todos import Todo
from nousd.wire.objects.workers import TaskOrigin, WorkerSpec


class SharedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings with one value for the daemon, and a separate one for each session where a command
    set it; ``in_force`` tells which applies. No session copies them from another.

    ``active_tools`` lists the built-in tools that are offered to models.
    """

    steering_mode: QueueMode | None = None
    follow_up_mode: QueueMode | None = None
    active_tools: tuple[str, ...] | None = None


class SettingsInForce(msgspec.Struct, frozen=True, kw_only=True):
    """The shared settings that apply to a session. ``active_tools`` None means every tool."""

    steering_mode: QueueMode
    follow_up_mode: QueueMode
    active_tools: tuple[str, ...] | None


def in_force(own: SharedSettings, shared: SharedSettings) -> SettingsInForce:
    """Return the settings that apply to a session with its ``own``, in a daemon with ``shared``."""
    tools = own.active_tools
    return SettingsInForce(
        steering_mode=own.steering_mode or shared.steering_mode or "one-at-a-time",
        follow_up_mode=own.follow_up_mode or shared.follow_up_mode or "one-at-a-time",
        active_tools=shared.active_tools if tools is None else tools,
    )


class LastingSettings(SharedSettings, frozen=True, kw_only=True):
    """The shared settings, and those that a new session takes from the session where they were last set.

    ``model`` None means the provider's default, and so does a ``model`` that was set for another
    ``provider``.
    """

    provider: str | None = None
    model: str | None = None
    thinking: Thinking | None = None


class DefaultSettings(LastingSettings, frozen=True, kw_only=True):
    """The settings that a ``session_updated`` without a session can change.

    ``granted_in`` are the rules that the user granted permanently, by workspace; ``granted`` are those
    of an earlier version, which apply in every workspace. ``mcp_servers`` are the servers that were
    added while the daemon ran.
    """

    granted: tuple[str, ...] = ()
    granted_in: dict[str, tuple[str, ...]] = {}
    mcp_servers: tuple[McpServer, ...] = ()


class InheritedSettings(LastingSettings, frozen=True, kw_only=True):
    """The settings that a branch copies from its parent.

    ``permission_mode`` None means the daemon's. ``worker`` is the worker for the task that the session
    was created for. ``workspace`` None means the daemon's default workspace. ``title`` is the beginning
    of the first message, unless the session had a name by then. ``seen_id`` is the last entry that the
    user has seen. ``runtime`` None means the native one. ``runtime_model`` is the runtime's own name of
    a model, None its default; the native runtime uses ``model``. ``runtime_namespace`` None means the
    user's own login.
    """

    permission_mode: PermissionMode | None = None
    worker: WorkerSpec | None = None
    todos: tuple[Todo, ...] = ()
    workspace: str | None = None
    source: str | None = None
    source_metadata: SourceMetadata | None = None
    sampling: Sampling | None = None
    rules: SessionRules | None = None
    title: str | None = None
    seen_id: str | None = None
    runtime: str | None = None
    runtime_model: str | None = None
    runtime_namespace: str | None = None


class SessionSettings(InheritedSettings, frozen=True, kw_only=True):
    """All settings of one session, including the inherited ones.

    ``granted`` are the rules that the user granted to this session; ``mcp_approved`` are the hashes of
    the session's own MCP servers that the user approved; ``origin`` is the ``task`` call that created
    it. ``origin_workspace`` and the next three fields come from the last ``attach_session``,
    ``override_expires_at`` and ``override_seconds`` from a current ``override_workspace``.
    ``agent_session`` is the session of the agent program that served this one last. ``delete_at`` is the
    time of the scheduled deletion, if there is one.
    """

    name: str | None = None
    granted: tuple[str, ...] = ()
    mcp_approved: tuple[str, ...] = ()
    origin: TaskOrigin | None = None
    origin_workspace: str | None = None
    attached_from: str | None = None
    attached_at: str | None = None
    attach_reason: str | None = None
    override_expires_at: str | None = None
    override_seconds: int | None = None
    archived: bool = False
    agent_session: AgentSessionFacts | None = None
    delete_at: str | None = None


SHARED: Final = SharedSettings.__struct_fields__
LASTING: Final = tuple(name for name in LastingSettings.__struct_fields__ if name not in SHARED)
INHERITED: Final = tuple(name for name in InheritedSettings.__struct_fields__ if name not in SHARED)
SETTINGS: Final = SessionSettings.__struct_fields__

ChangedSettings = dict[str, Any]
"""The settings that an event changes, by name. None unsets a setting; other values replace it whole."""


def settings_among(struct: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the names of the settings that are fields of a struct, in the order of its fields."""
    return tuple(name for name in struct.__struct_fields__ if name in SETTINGS)


def extract_changed_settings(event: events.Event, ts: str) -> ChangedSettings:
    """Return the settings that ``event``, logged at ``ts``, changes."""
    return CHANGED_BY[type(event)](event, ts)


def extract_changed_defaults(event: events.SessionUpdated) -> ChangedSettings:
    """Return the settings of new sessions that an event changes."""
    # New sessions do not take the tools and modes of a session, nor permissions that it was granted.
    names = LASTING if event.session_id else DefaultSettings.__struct_fields__
    return _extract_present(event, names)


def _extract_present(event: events.Event, names: tuple[str, ...]) -> ChangedSettings:
    return {name: value for name in names if (value := getattr(event, name)) is not UNSET}


def _build_field_fold(
    struct: type[events.Event], *, but: tuple[str, ...] = ()
) -> Callable[[Any, str], ChangedSettings]:
    # Computed once, not for every event.
    names = tuple(name for name in settings_among(struct) if name not in but)
    return lambda event, _: _extract_present(event, names)


def _apply_session_attached(event: events.SessionAttached, ts: str) -> ChangedSettings:
    return {
        "workspace": event.workspace,
        "origin_workspace": event.origin_workspace,
        "attached_from": event.attached_from,
        "attached_at": ts,
        "attach_reason": None if event.reason is UNSET else event.reason,
    }


def _apply_session_seen(event: events.SessionSeen, _: str) -> ChangedSettings:
    return {"seen_id": event.entry_id}


def _apply_agent_session(event: events.AgentSession, _: str) -> ChangedSettings:
    facts = AgentSessionFacts(
        runtime=event.runtime,
        agent_session_id=event.agent_session_id,
        basis=event.basis,
        leaf_id=event.leaf_id,
    )
    return {"agent_session": facts}


def _apply_session_restored(_: events.SessionRestored, __: str) -> ChangedSettings:
    return {"delete_at": None}


def _apply_override_granted(event: events.WorkspaceOverrideGranted, _: str) -> ChangedSettings:
    return {"override_expires_at": event.expires_at, "override_seconds": event.ttl_seconds}


def _apply_override_expired(_: events.WorkspaceOverrideExpired, __: str) -> ChangedSettings:
    return {"override_expires_at": None, "override_seconds": None}


CHANGED_BY: Final[dict[type[events.Event], Callable[[Any, str], ChangedSettings]]] = {
    **{struct: _build_field_fold(struct) for struct in (events.SessionUpdated, events.TodoUpdated)},
    # Earlier versions copied the shared settings into each new session; such copies count as not set.
    events.SessionCreated: _build_field_fold(events.SessionCreated, but=SHARED),
    events.SessionSeen: _apply_session_seen,
    events.AgentSession: _apply_agent_session,
    events.SessionDeletionScheduled: _build_field_fold(events.SessionDeletionScheduled),
    events.SessionRestored: _apply_session_restored,
    events.SessionAttached: _apply_session_attached,
    events.WorkspaceOverrideGranted: _apply_override_granted,
    events.WorkspaceOverrideExpired: _apply_override_expired,
}
"""event -> the settings it changes; other events change none."""
