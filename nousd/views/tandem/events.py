"""Events of the log as the events of Tandem's stream.

One function for each type that has a counterpart; the others are not told. A function looks at nothing
but its event, so that a stream can begin anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from nousd.views.tandem.asking import (
    answer_text,
    call_ref,
    decided_rule,
    question,
    reply_given,
    request_id,
    todo_items,
)
from nousd.views.tandem.failures import engine_code, run_error
from nousd.views.tandem.frames import FRAMES_MAX, Envelope, Frame
from nousd.views.tandem.runs import DEFERRED, RETRY_AFTER_MS, TENANT, attach_path
from nousd.views.tandem.sessions import ENVIRONMENT, project_id
from nousd.views.tandem.values import milliseconds, or_none
from nousd.wire import events
from nousd.wire.codec import decode_event
from nousd.wire.event_base import EndStatus
from nousd.wire.events import SessionAttached, WorkspaceOverrideExpired, WorkspaceOverrideGranted
from nousd.wire.subscribe import cursor_seq
from nousd.wire.tool_events import ToolCallEvent, ToolExecutionEvent


class _End(NamedTuple):
    """How the end of a run is told: ``shown`` is what the session's state then is."""

    status: str
    shown: str
    category: str | None


_ENDS: Final[dict[EndStatus, _End]] = {
    "completed": _End("completed", "idle", None),
    "cancelled": _End("cancelled", "cancelled", "user_cancelled"),
    "error": _End("error", "error", "runtime"),
    "timeout": _End("timeout", "failed", "timeout"),
    "interrupted": _End("error", "error", "runtime"),
}


class Seen(NamedTuple):
    """An event with what its line says beside the payload."""

    seq: int
    ts: str
    event: events.Event

    @property
    def joined_from(self) -> int | None:
        """The number of the first of the deltas that it stands for, if it does."""
        first = getattr(self.event, "joined_from", UNSET)
        return None if first is UNSET else cursor_seq(first)


Told = tuple[str, dict[str, Any]]
"""Type and properties of a frame."""


def frames(seen: Seen) -> list[Frame]:
    """Returns what an event becomes, in order; at most ``FRAMES_MAX`` frames, mostly one."""
    view = _VIEWS.get(type(seen.event))
    if view is None:
        return []
    told = list(view(seen, seen.event))
    assert len(told) <= FRAMES_MAX
    return [
        Frame(type_, properties, _envelope(seen, index))
        for index, (type_, properties) in enumerate(told)
    ]


def told_again(frame: Frame) -> Frame:
    """Returns the frame of joined deltas for a reader that had some of them: not as one more piece of
    the text, but as the text.
    """
    properties = {key: value for key, value in frame.properties.items() if key != "delta"}
    return Frame(frame.type, properties, frame.envelope)


def _envelope(seen: Seen, index: int) -> Envelope:
    run_id = getattr(seen.event, "run_id", UNSET)
    return Envelope(
        event_id=f"evt-{seen.seq}.{index}",
        seq=seen.seq * FRAMES_MAX + index,
        occurred_at_ms=milliseconds(seen.ts),
        session_id=seen.event.session_id or None,
        run_id=None if run_id is UNSET else run_id,
    )


# --- sessions --------------------------------------------------------------------------------


def _session_created(_seen: Seen, event: events.SessionCreated) -> Iterator[Told]:
    properties: dict[str, Any] = {"sessionID": event.session_id}
    if event.workspace is not UNSET:
        properties["projectID"] = project_id(event.workspace)
        properties["workspaceRoot"] = event.workspace
    yield "session.created", {**properties, "tenantContext": TENANT}


def _session_updated(_seen: Seen, event: events.SessionUpdated) -> Iterator[Told]:
    if event.session_id:
        title = {} if event.name is UNSET else {"title": event.name}
        yield "session.updated", {"sessionID": event.session_id, **title}


def _session_deleted(_seen: Seen, event: events.SessionDeleted) -> Iterator[Told]:
    yield "session.deleted", {"sessionID": event.session_id}


def _delete_deferred(_seen: Seen, event: events.SessionDeleteDeferred) -> Iterator[Told]:
    where = {"sessionID": event.session_id, "runID": event.run_id}
    yield "session.delete.deferred", {**where, "reason": DEFERRED, "tenantContext": TENANT}


def _session_attached(_seen: Seen, event: SessionAttached) -> Iterator[Told]:
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


def _override_granted(_seen: Seen, event: WorkspaceOverrideGranted) -> Iterator[Told]:
    where = {"sessionID": event.session_id}
    expires = milliseconds(event.expires_at)
    yield (
        "workspace.override.activated",
        {
            **where,
            "requestedTtlSeconds": event.ttl_seconds,
            "cappedTtlSeconds": event.ttl_seconds,
            "expiresAt": expires,
        },
    )
    yield (
        "session.workspace_override.granted",
        {**where, "ttlSeconds": event.ttl_seconds, "expiresAtMs": expires},
    )


def _override_expired(_seen: Seen, event: WorkspaceOverrideExpired) -> Iterator[Told]:
    yield "workspace.override.expired", {"sessionID": event.session_id, "reason": event.reason}


def _todo_updated(_seen: Seen, event: events.TodoUpdated) -> Iterator[Told]:
    properties: dict[str, Any] = {"sessionID": event.session_id, "todos": todo_items(event.todos)}
    yield "todo.updated", {**properties, **_run_of(event)}


# --- runs ------------------------------------------------------------------------------------


def _agent_start(seen: Seen, event: events.AgentStart) -> Iterator[Told]:
    yield (
        "session.run.started",
        {
            "sessionID": event.session_id,
            "runID": event.run_id,
            "startedAtMs": milliseconds(seen.ts),
            "clientID": or_none(event.client_id),
            "agentID": or_none(event.agent_id),
            "agentProfile": or_none(event.agent_profile),
            "environment": ENVIRONMENT,
            "tenantContext": TENANT,
        },
    )
    yield "session.status", {"sessionID": event.session_id, "status": "running"}


def _agent_end(seen: Seen, event: events.AgentEnd) -> Iterator[Told]:
    ended = _ENDS[event.status]
    where = {"sessionID": event.session_id}
    error = run_error(event.status, event.error)
    failed = {} if error is None else {"error": error}
    yield "session.updated", {**where, "status": ended.shown}
    # The words in which the session is idle again come first: what ends a run is told last.
    yield "session.status", {**where, "status": ended.shown, **failed}
    yield (
        "session.run.finished",
        {
            **where,
            "runID": event.run_id,
            "finishedAtMs": milliseconds(seen.ts),
            "status": ended.status,
            "error": error,
            "failureCategory": ended.category,
            "tenantContext": TENANT,
        },
    )


def _run_conflict(_seen: Seen, event: events.RunConflict) -> Iterator[Told]:
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


def _error(_seen: Seen, event: events.Error) -> Iterator[Told]:
    error = {"code": engine_code(event.code), "message": event.message}
    yield (
        "session.error",
        {"sessionID": event.session_id, "runID": event.run_id, "error": error},
    )


def _usage(_seen: Seen, event: events.UsageReported) -> Iterator[Told]:
    if event.usage is UNSET or event.run_id is UNSET:
        return
    yield (
        "provider.usage",
        {
            "sessionID": event.session_id,
            "runID": event.run_id,
            "messageID": or_none(event.message_id),
            "providerID": or_none(event.provider),
            "modelID": event.model,
            "promptTokens": event.usage.input,
            "completionTokens": event.usage.output,
            "totalTokens": event.usage.total,
            "usageSource": "provider",
        },
    )


# --- messages --------------------------------------------------------------------------------


def _message_start(seen: Seen, event: events.MessageStart) -> Iterator[Told]:
    """The user's own text comes whole; an assistant's message shows with its first piece."""
    if event.role == "user" and event.text is not UNSET:
        yield _text_part(seen, event, event.text, delta=event.text, agent="user")


def _message_update(seen: Seen, event: events.MessageUpdate) -> Iterator[Told]:
    yield _text_part(seen, event, event.delta, delta=event.delta)


def _message_end(seen: Seen, event: events.MessageEnd) -> Iterator[Told]:
    """A part without ``delta`` is the whole text. Only an answer has a reason why it ended; of one that
    is an artifact the event has not the whole, but its deltas were told.
    """
    if event.stop_reason is not UNSET and event.text and event.text_ref is UNSET:
        yield _text_part(seen, event, event.text)


_MessageEvent = events.MessageStart | events.MessageUpdate | events.MessageEnd


def _text_part(seen: Seen, event: _MessageEvent, text: str, **more: Any) -> Told:
    part = {
        "id": f"part-{seen.seq}",
        "sessionID": event.session_id,
        "messageID": event.message_id,
        "type": "text",
        "text": text,
    }
    where = {"sessionID": event.session_id, "runID": event.run_id}
    return "message.part.updated", {**where, **more, "part": part}


# --- tools -----------------------------------------------------------------------------------


def _tool_start(_seen: Seen, event: events.ToolExecutionStart) -> Iterator[Told]:
    yield _tool_part(event, state="running", args=event.args)


def _tool_end(_seen: Seen, event: events.ToolExecutionEnd) -> Iterator[Told]:
    if event.is_error:
        yield _tool_part(event, state="failed", error=event.result)
    else:
        yield _tool_part(event, state="completed", result=event.result)


def _permission_requested(seen: Seen, event: events.PermissionRequested) -> Iterator[Told]:
    yield (
        "permission.asked",
        {
            "sessionID": event.session_id,
            **_run_of(event),
            "requestID": request_id(event),
            "tool": event.tool_name,
            "args": event.args,
            "argsSource": "model",
            "argsIntegrity": "verified",
            "query": event.reason,
            "requestedAtMs": milliseconds(or_none(event.requested_at) or seen.ts),
            "expiresAtMs": milliseconds(event.expires_at),
            "actionDigest": event.input_hash,
            "tenantContext": TENANT,
        },
    )
    if event.run_id is not UNSET:
        yield _tool_part(event, state="pending", args=event.args)


def _decided(seen: Seen, event: events.ToolCallApproved | events.ToolCallDenied) -> Iterator[Told]:
    """Tells what became of a request; a call that nobody was asked about is not told."""
    where: dict[str, Any] = {"sessionID": event.session_id, "requestID": request_id(event)}
    if event.by == "timeout":
        message_id = call_ref(event).message_id
        told = {**where, "messageID": message_id, "tool": event.tool_name}
        yield "permission.wait.timeout", told
    elif event.by == "user":
        rule = decided_rule(event)
        yield (
            "permission.replied",
            {
                **where,
                "reply": reply_given(event),
                "decidedAtMs": milliseconds(seen.ts),
                "decidedBy": "user",
                "standingRuleID": rule,
                "standingRulePersisted": rule is not None,
                "actionDigest": or_none(event.input_hash),
                "tenantContext": TENANT,
            },
        )


def _tool_part(event: ToolCallEvent | ToolExecutionEvent, **more: Any) -> Told:
    part = {
        "id": event.tool_call_id,
        "sessionID": event.session_id,
        "messageID": event.tool_call_id.rpartition(".")[0],
        "type": "tool",
        "tool": event.tool_name,
        **more,
    }
    where = {"sessionID": event.session_id, **_run_of(event)}
    return "message.part.updated", {**where, "part": part}


# --- questions -------------------------------------------------------------------------------


def _question_asked(_seen: Seen, event: events.QuestionAsked) -> Iterator[Told]:
    tool = call_ref(event)
    yield (
        "question.asked",
        {
            "id": event.question_id,
            "sessionID": event.session_id,
            **_run_of(event),
            "messageID": tool.message_id,
            "questions": [question(asked) for asked in event.questions],
            "tool": tool,
            "expiresAtMs": milliseconds(event.expires_at),
            "tenantContext": TENANT,
        },
    )


def _question_answered(_seen: Seen, event: events.QuestionAnswered) -> Iterator[Told]:
    yield (
        "question.replied",
        {
            "id": event.question_id,
            "sessionID": event.session_id,
            "ok": True,
            "answer": "\n".join(map(answer_text, event.answers)),
        },
    )


def _question_rejected(_seen: Seen, event: events.QuestionRejected) -> Iterator[Told]:
    yield (
        "question.replied",
        {"id": event.question_id, "sessionID": event.session_id, "ok": False},
    )


# --- the table -------------------------------------------------------------------------------


def _run_of(event: Any) -> dict[str, str]:
    run_id = getattr(event, "run_id", UNSET)
    return {} if run_id is UNSET else {"runID": run_id}


_VIEWS: Final[dict[type[events.Event], Callable[[Seen, Any], Iterator[Told]]]] = {
    events.SessionCreated: _session_created,
    events.SessionUpdated: _session_updated,
    events.SessionDeleted: _session_deleted,
    events.SessionDeleteDeferred: _delete_deferred,
    SessionAttached: _session_attached,
    WorkspaceOverrideGranted: _override_granted,
    WorkspaceOverrideExpired: _override_expired,
    events.TodoUpdated: _todo_updated,
    events.AgentStart: _agent_start,
    events.AgentEnd: _agent_end,
    events.RunConflict: _run_conflict,
    events.Error: _error,
    events.UsageReported: _usage,
    events.MessageStart: _message_start,
    events.MessageUpdate: _message_update,
    events.MessageEnd: _message_end,
    events.ToolExecutionStart: _tool_start,
    events.ToolExecutionEnd: _tool_end,
    events.PermissionRequested: _permission_requested,
    events.ToolCallApproved: _decided,
    events.ToolCallDenied: _decided,
    events.QuestionAsked: _question_asked,
    events.QuestionAnswered: _question_answered,
    events.QuestionRejected: _question_rejected,
}
"""type of an event -> what it becomes; one that is not here is not told."""

_DECODERS: Final = {events.EVENT_TYPES[struct]: msgspec.json.Decoder(struct) for struct in _VIEWS}


TELLING: Final = frozenset(_VIEWS)
"""The events that can become frames."""


def seen(line: bytes) -> Seen | None:
    """Returns an event line as what can be told of it; None if nothing of its type is."""
    logged = decode_event(line)
    decoder = _DECODERS.get(logged.type)
    if decoder is None:
        return None
    return Seen(cursor_seq(logged.id), logged.ts, decoder.decode(logged.payload))
