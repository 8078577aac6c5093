"""Rendering events of sessions and their runs as Tandem's frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from msgspec import UNSET

from nousd.views.tandem.failures import engine_code, failure_category, run_error
from nousd.views.tandem.frames import FrameBody, LoggedEvent, Renderers, run_of
from nousd.views.tandem.runs import DEFERRED, RETRY_AFTER_MS, TENANT, attach_path
from nousd.views.tandem.sessions import ENVIRONMENT, project_id, render_todos
from nousd.views.tandem.values import milliseconds, or_none
from nousd.wire import events
from nousd.wire.events import SessionAttached, WorkspaceOverrideExpired, WorkspaceOverrideGranted
from nousd.wire.events.base import EndStatus


class _RunEnd(NamedTuple):
    """The end of a run in Tandem's vocabulary.

    Args:
        status: the status of the run.
        shown: the status of the session after the run.
        category: the category of the failure; None without a failure, or if it depends on the error.
    """

    status: str
    shown: str
    category: str | None


_RUN_ENDS: Final[dict[EndStatus, _RunEnd]] = {
    "completed": _RunEnd("completed", "idle", None),
    "cancelled": _RunEnd("cancelled", "cancelled", "user_cancelled"),
    "error": _RunEnd("error", "error", None),
    "timeout": _RunEnd("timeout", "failed", "timeout"),
    "interrupted": _RunEnd("error", "error", "runtime"),
}


# --- sessions --------------------------------------------------------------------------------


def _render_session_created(
    _logged: LoggedEvent, event: events.SessionCreated
) -> Iterator[FrameBody]:
    properties: dict[str, Any] = {"sessionID": event.session_id}
    if event.workspace is not UNSET:
        properties["projectID"] = project_id(event.workspace)
        properties["workspaceRoot"] = event.workspace
    yield "session.created", {**properties, "tenantContext": TENANT}


def _render_session_updated(
    _logged: LoggedEvent, event: events.SessionUpdated
) -> Iterator[FrameBody]:
    if event.session_id:
        title = event.title if event.name is UNSET else event.name
        changed = {"title": title, "archived": event.archived}
        known = {name: value for name, value in changed.items() if value is not UNSET}
        yield "session.updated", {"sessionID": event.session_id, **known}


def _render_session_deleted(
    _logged: LoggedEvent, event: events.SessionDeleted | events.SessionDeletionScheduled
) -> Iterator[FrameBody]:
    yield "session.deleted", {"sessionID": event.session_id}


def _render_session_restored(
    _logged: LoggedEvent, event: events.SessionRestored
) -> Iterator[FrameBody]:
    # For clients that removed the session from their lists, it is a new session.
    yield "session.created", {"sessionID": event.session_id, "tenantContext": TENANT}


def _render_delete_deferred(
    _logged: LoggedEvent, event: events.SessionDeleteDeferred
) -> Iterator[FrameBody]:
    ids = {"sessionID": event.session_id, "runID": event.run_id}
    yield "session.delete.deferred", {**ids, "reason": DEFERRED, "tenantContext": TENANT}


def _render_session_attached(_logged: LoggedEvent, event: SessionAttached) -> Iterator[FrameBody]:
    yield (
        "session.attached",
        {
            "sessionID": event.session_id,
            "workspaceRoot": event.workspace,
            "attachedFromWorkspace": event.attached_from,
            "attachedToWorkspace": event.workspace,
            "attachReason": or_none(event.reason),
            "tenantContext": TENANT,
        },
    )


def _render_override_granted(
    _logged: LoggedEvent, event: WorkspaceOverrideGranted
) -> Iterator[FrameBody]:
    ids = {"sessionID": event.session_id}
    expires = milliseconds(event.expires_at)
    yield (
        "workspace.override.activated",
        {
            **ids,
            "requestedTtlSeconds": event.ttl_seconds,
            "cappedTtlSeconds": event.ttl_seconds,
            "expiresAt": expires,
        },
    )
    yield (
        "session.workspace_override.granted",
        {**ids, "ttlSeconds": event.ttl_seconds, "expiresAtMs": expires},
    )


def _render_override_expired(
    _logged: LoggedEvent, event: WorkspaceOverrideExpired
) -> Iterator[FrameBody]:
    yield "workspace.override.expired", {"sessionID": event.session_id, "reason": event.reason}


def _render_todo_updated(_logged: LoggedEvent, event: events.TodoUpdated) -> Iterator[FrameBody]:
    properties: dict[str, Any] = {"sessionID": event.session_id, "todos": render_todos(event.todos)}
    yield "todo.updated", {**properties, **run_of(event)}


# --- runs ------------------------------------------------------------------------------------


def _render_agent_start(logged: LoggedEvent, event: events.AgentStart) -> Iterator[FrameBody]:
    yield (
        "session.run.started",
        {
            "sessionID": event.session_id,
            "runID": event.run_id,
            "startedAtMs": milliseconds(logged.ts),
            "clientID": or_none(event.client_id),
            "agentID": or_none(event.agent_id),
            "agentProfile": or_none(event.agent_profile),
            "environment": ENVIRONMENT,
            "tenantContext": TENANT,
        },
    )
    yield "session.status", {"sessionID": event.session_id, "status": "running"}


def _render_agent_end(logged: LoggedEvent, event: events.AgentEnd) -> Iterator[FrameBody]:
    ended = _RUN_ENDS[event.status]
    ids = {"sessionID": event.session_id}
    error = run_error(event.status, event.error, event.category)
    category = failure_category(event.category) if event.status == "error" else ended.category
    failed = {} if error is None else {"error": error}
    yield "session.updated", {**ids, "status": ended.shown}
    # The frame that ends the run comes last: clients that stop reading there must already know that the
    # session is idle.
    yield "session.status", {**ids, "status": ended.shown, **failed}
    yield (
        "session.run.finished",
        {
            **ids,
            "runID": event.run_id,
            "finishedAtMs": milliseconds(logged.ts),
            "status": ended.status,
            "error": error,
            "failureCategory": category,
            "tenantContext": TENANT,
        },
    )


def _render_run_conflict(_logged: LoggedEvent, event: events.RunConflict) -> Iterator[FrameBody]:
    yield (
        "session.run.conflict",
        {
            "sessionID": event.session_id,
            "runID": event.run_id,
            "retryAfterMs": RETRY_AFTER_MS,
            "attachEventStream": attach_path(event.session_id, event.run_id),
            "tenantContext": TENANT,
        },
    )


def _render_error(_logged: LoggedEvent, event: events.Error) -> Iterator[FrameBody]:
    error = {"code": engine_code(event.code, event.category), "message": event.message}
    yield (
        "session.error",
        {"sessionID": event.session_id, "runID": event.run_id, "error": error},
    )


def _render_usage(_logged: LoggedEvent, event: events.UsageReported) -> Iterator[FrameBody]:
    if event.usage is UNSET or event.run_id is UNSET:
        return
    yield (
        "provider.usage",
        {
            "sessionID": event.session_id,
            "runID": event.run_id,
            "correlationID": or_none(event.correlation_id),
            "messageID": or_none(event.message_id),
            "providerID": or_none(event.provider),
            "modelID": event.model,
            "promptTokens": event.usage.input,
            "completionTokens": event.usage.output,
            "totalTokens": event.usage.total,
            "usageSource": "provider",
        },
    )


RENDERERS: Final[Renderers] = {
    events.SessionCreated: _render_session_created,
    events.SessionUpdated: _render_session_updated,
    events.SessionDeletionScheduled: _render_session_deleted,
    events.SessionRestored: _render_session_restored,
    events.SessionDeleted: _render_session_deleted,
    events.SessionDeleteDeferred: _render_delete_deferred,
    SessionAttached: _render_session_attached,
    WorkspaceOverrideGranted: _render_override_granted,
    WorkspaceOverrideExpired: _render_override_expired,
    events.TodoUpdated: _render_todo_updated,
    events.AgentStart: _render_agent_start,
    events.AgentEnd: _render_agent_end,
    events.RunConflict: _render_run_conflict,
    events.Error: _render_error,
    events.UsageReported: _render_usage,
}
