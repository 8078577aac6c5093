"""Rendering events of messages, tool calls and questions as Tandem's frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec import UNSET

from nousd.views.tandem.frames import FrameBody, LoggedEvent, Renderers, run_of
from nousd.views.tandem.permissions import find_decided_rule, request_id, user_reply
from nousd.views.tandem.questions import call_ref, join_answer, render_question
from nousd.views.tandem.runs import TENANT
from nousd.views.tandem.values import milliseconds, or_none
from nousd.wire import events
from nousd.wire.events.tools import ToolCallEvent, ToolExecutionEvent

# --- messages --------------------------------------------------------------------------------


def _render_message_start(logged: LoggedEvent, event: events.MessageStart) -> Iterator[FrameBody]:
    """Render a user's message as a whole; an assistant's message appears with its first delta."""
    if event.role == "user" and event.text is not UNSET:
        yield _text_part(logged, event, event.text, delta=event.text, agent="user")


def _render_message_update(logged: LoggedEvent, event: events.MessageUpdate) -> Iterator[FrameBody]:
    yield _text_part(logged, event, event.delta, delta=event.delta)


def _render_message_end(logged: LoggedEvent, event: events.MessageEnd) -> Iterator[FrameBody]:
    """Render the whole text, in a part without ``delta``."""
    # Only an answer has a stop reason. With ``text_ref`` the event has only the beginning of the text,
    # but the reader has the whole text from the deltas.
    if event.stop_reason is not UNSET and event.text and event.text_ref is UNSET:
        yield _text_part(logged, event, event.text)


_MessageEvent = events.MessageStart | events.MessageUpdate | events.MessageEnd


def _text_part(logged: LoggedEvent, event: _MessageEvent, text: str, **more: Any) -> FrameBody:
    part = {
        "id": f"part-{logged.seq}",
        "sessionID": event.session_id,
        "messageID": event.message_id,
        "type": "text",
        "text": text,
    }
    ids = {"sessionID": event.session_id, "runID": event.run_id}
    return "message.part.updated", {**ids, **more, "part": part}


# --- tools -----------------------------------------------------------------------------------


def _render_tool_start(
    _logged: LoggedEvent, event: events.ToolExecutionStart
) -> Iterator[FrameBody]:
    yield _tool_part(event, state="running", args=event.args)


def _render_tool_end(_logged: LoggedEvent, event: events.ToolExecutionEnd) -> Iterator[FrameBody]:
    if event.is_error:
        yield _tool_part(event, state="failed", error=event.result)
    else:
        yield _tool_part(event, state="completed", result=event.result)


def _render_permission_requested(
    logged: LoggedEvent, event: events.PermissionRequested
) -> Iterator[FrameBody]:
    yield (
        "permission.asked",
        {
            "sessionID": event.session_id,
            **run_of(event),
            "requestID": request_id(event),
            "tool": event.tool_name,
            "args": event.args,
            "argsSource": "model",
            "argsIntegrity": "verified",
            "query": event.reason,
            "requestedAtMs": milliseconds(or_none(event.requested_at) or logged.ts),
            "expiresAtMs": milliseconds(event.expires_at),
            "actionDigest": event.input_hash,
            "tenantContext": TENANT,
        },
    )
    if event.run_id is not UNSET:
        yield _tool_part(event, state="pending", args=event.args)


def _render_decision(
    logged: LoggedEvent, event: events.ToolCallApproved | events.ToolCallDenied
) -> Iterator[FrameBody]:
    """Render the decision on an approval request; a call decided without a request has no frame."""
    ids: dict[str, Any] = {"sessionID": event.session_id, "requestID": request_id(event)}
    if event.by == "timeout":
        message_id = call_ref(event).message_id
        body = {**ids, "messageID": message_id, "tool": event.tool_name}
        yield "permission.wait.timeout", body
    elif event.by == "user":
        rule = find_decided_rule(event)
        yield (
            "permission.replied",
            {
                **ids,
                "reply": user_reply(event),
                "decidedAtMs": milliseconds(logged.ts),
                "decidedBy": "user",
                "standingRuleID": rule,
                "standingRulePersisted": rule is not None,
                "actionDigest": or_none(event.input_hash),
                "tenantContext": TENANT,
            },
        )


def _tool_part(event: ToolCallEvent | ToolExecutionEvent, **more: Any) -> FrameBody:
    part = {
        "id": event.tool_call_id,
        "sessionID": event.session_id,
        "messageID": event.tool_call_id.rpartition(".")[0],
        "type": "tool",
        "tool": event.tool_name,
        **more,
    }
    ids = {"sessionID": event.session_id, **run_of(event)}
    return "message.part.updated", {**ids, "part": part}


# --- questions -------------------------------------------------------------------------------


def _render_question_asked(
    _logged: LoggedEvent, event: events.QuestionAsked
) -> Iterator[FrameBody]:
    tool = call_ref(event)
    yield (
        "question.asked",
        {
            "id": event.question_id,
            "sessionID": event.session_id,
            **run_of(event),
            "messageID": tool.message_id,
            "questions": [render_question(asked) for asked in event.questions],
            "tool": tool,
            "expiresAtMs": milliseconds(event.expires_at),
            "tenantContext": TENANT,
        },
    )


def _render_question_answered(
    _logged: LoggedEvent, event: events.QuestionAnswered
) -> Iterator[FrameBody]:
    yield _build_question_reply(event, ok=True, answer="\n".join(map(join_answer, event.answers)))


def _render_question_rejected(
    _logged: LoggedEvent, event: events.QuestionRejected
) -> Iterator[FrameBody]:
    yield _build_question_reply(event, ok=False)


def _build_question_reply(
    event: events.QuestionAnswered | events.QuestionRejected, **reply: Any
) -> FrameBody:
    ids = {"id": event.question_id, "sessionID": event.session_id}
    return "question.replied", {**ids, **reply}


RENDERERS: Final[Renderers] = {
    events.MessageStart: _render_message_start,
    events.MessageUpdate: _render_message_update,
    events.MessageEnd: _render_message_end,
    events.ToolExecutionStart: _render_tool_start,
    events.ToolExecutionEnd: _render_tool_end,
    events.PermissionRequested: _render_permission_requested,
    events.ToolCallApproved: _render_decision,
    events.ToolCallDenied: _render_decision,
    events.QuestionAsked: _render_question_asked,
    events.QuestionAnswered: _render_question_answered,
    events.QuestionRejected: _render_question_rejected,
}
