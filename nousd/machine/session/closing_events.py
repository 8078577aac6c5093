"""The events that close everything a run has open, and the entries that they add to the transcript.

There is one way to end a run early, whether it is stopped from outside or its process was killed.
``lifecycle.LifecycleTracker`` knows what is open; the caller gives the reason. After a kill, the log has
the steps of the calls that waited for their brackets, and the brackets are built from these steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET

from nousd.machine.session.appending import leaf_after
from nousd.machine.session.lifecycle import (
    OUTSIDE_OF_TURNS,
    STOP_REASONS,
    LifecycleTracker,
    OpenTool,
    Phase,
)
from nousd.wire import events
from nousd.wire.codec.unset import or_unset
from nousd.wire.events.base import CutOff, EndStatus
from nousd.wire.objects.entries import MessageEntry, StopReason, ToolCall, TurnKind
from nousd.wire.objects.policy import PolicySnapshot, PolicySource


def closing_events(
    tracker: LifecycleTracker,
    status: EndStatus,
    *,
    leaf_id: str | None,
    now: str,
    error: str | None = None,
    category: str | None = None,
) -> tuple[events.Event, ...]:
    """Return the events that close everything the run has open: the open bracket, then the brackets of
    waiting calls, then turn and run.

    Args:
        leaf_id: the session's leaf, the parent of a kept partial answer or tool result.
        now: the time for those entries.
        error: the error message for the run's end.
        category: why a model call failed, if one did.
    """
    ends = open_ends(tracker, status, leaf_id=leaf_id, now=now, error=error)
    ends += _late_brackets(tracker, status, leaf_after(ends, leaf_id), now)
    if tracker.phase not in OUTSIDE_OF_TURNS:
        ends.append(events.TurnEnd(**tracker.where))
    ends.append(
        events.AgentEnd(
            session_id=tracker.session_id,
            run_id=tracker.run_id,
            status=status,
            error=UNSET if error is None else error,
            category=or_unset(category),
        )
    )
    return tuple(ends)


def open_ends(
    tracker: LifecycleTracker,
    status: EndStatus,
    *,
    leaf_id: str | None,
    now: str,
    error: str | None = None,
) -> list[events.Event]:
    """Return the events that close the open bracket, and the open requests of tasks; see
    ``closing_events``.
    """
    ends: list[events.Event] = []
    if tracker.message is not None:
        ends += _message_ends(tracker, STOP_REASONS[status], leaf_id, now, error)
    if tracker.task_requests:
        ends += _ends_of_tasks(tracker, STOP_REASONS[status])
    if tracker.tool is not None:
        ends += _tool_ends(tracker, tracker.tool, STOP_REASONS[status], leaf_id, now)
    return ends


def _message_ends(
    tracker: LifecycleTracker, reason: StopReason, leaf_id: str | None, now: str, error: str | None
) -> list[events.Event]:
    message = tracker.message
    assert message is not None
    end = events.MessageEnd(
        **tracker.where, message_id=message.message_id, text=message.text, stop_reason=reason
    )
    entry = MessageEntry(
        id=message.message_id,
        parent_id=or_unset(leaf_id),
        role="assistant",
        text=message.text,
        run_id=tracker.run_id,
        turn_kind=tracker.turn_kind,
        created_at=now,
        model=tracker.model,
        reasoning=message.reasoning or UNSET,
        tool_calls=_waiting_calls(tracker, message.message_id) or UNSET,
        stop_reason=reason,
        error=or_unset(error),
    )
    return [end, _build_entry_event(tracker, entry)]


def _ends_of_tasks(tracker: LifecycleTracker, reason: CutOff) -> list[events.Event]:
    open_requests = tracker.task_requests.values()
    questions = [each for each in open_requests if isinstance(each, events.QuestionAsked)]
    requests = [each for each in open_requests if isinstance(each, events.PermissionRequested)]
    return [
        *[build_rejection(question, reason) for question in questions],
        *[_build_denial(request, reason) for request in requests],
    ]


def _tool_ends(
    tracker: LifecycleTracker, tool: OpenTool, reason: CutOff, leaf_id: str | None, now: str
) -> list[events.Event]:
    call: Any = tracker.where | tool.keys
    ends: list[events.Event] = [
        build_rejection(question, reason) for question in tool.questions.values()
    ]
    phase = tracker.phase_of(tool)
    if phase is Phase.REQUESTED:
        ends.append(events.ToolCallDenied(**call, by="stop", reason=reason))
    elif phase is Phase.EXECUTING:
        own = {"result": f"tool_error: {reason}"} if tool.has_waited else {}
        ends.append(build_interrupted_end(call, tool.sources, tool.started, reason, **own))
    end = events.ToolExecutionEnd(
        **call, **_result_of(tool, reason), executed=tool.started is not None
    )
    entry = tool_result_entry(
        end, parent_id=leaf_id, turn_kind=tracker.turn_kind, text=end.result, now=now
    )
    return [*ends, end, _build_entry_event(tracker, entry)]


def _result_of(tool: OpenTool, reason: CutOff) -> dict[str, Any]:
    """Return a call's own result if it completed while it waited for its bracket, else an error."""
    own = tool.completed
    if own is None or own.result is UNSET:
        return {"result": f"tool_error: {reason}", "is_error": True}
    names = ("result", "is_error", "artifact_id", "changed_by", "text_ref", "text_bytes")
    return {name: getattr(own, name) for name in names}


def _late_brackets(
    tracker: LifecycleTracker, status: EndStatus, leaf_id: str | None, now: str
) -> list[events.Event]:
    """Return the brackets of the calls that wait for them, and the messages that announce these calls if
    the log lacks them.
    """
    ends: list[events.Event] = []
    announced = set(tracker.messages)
    if tracker.message is not None:
        announced.add(tracker.message.message_id)
    for tool in tracker.tools.values():
        if tool.phase is None:
            continue
        message_id = message_of(tool.tool_call_id)
        if message_id not in announced and tool.keys["attempt"] == 1:
            announced.add(message_id)
            calls = _waiting_calls(tracker, message_id)
            ends += announcement(tracker, calls, leaf_id=leaf_after(ends, leaf_id), now=now)
        ends.append(_late_start(tracker, tool))
        leaf = leaf_after(ends, leaf_id)
        ends += _tool_ends(tracker, tool, STOP_REASONS[status], leaf, now)
    return ends


def _late_start(tracker: LifecycleTracker, tool: OpenTool) -> events.ToolExecutionStart:
    requested = tool.requested
    assert requested is not None
    return events.ToolExecutionStart(
        **tracker.where,
        **tool.keys,
        args=requested.args,
        runtime_tool_call_id=requested.runtime_tool_call_id,
        args_ref=requested.args_ref,
        args_bytes=requested.args_bytes,
    )


def _waiting_calls(tracker: LifecycleTracker, message_id: str) -> tuple[ToolCall, ...]:
    """Return the calls of a message that wait for their bracket."""
    return tuple(
        call_of(tool.requested)
        for tool in tracker.tools.values()
        if tool.phase is not None
        and tool.requested is not None
        and message_of(tool.tool_call_id) == message_id
    )


def build_interrupted_end(
    call: Mapping[str, Any],
    sources: Sequence[PolicySource],
    started: events.ToolCallStarted | None,
    reason: CutOff,
    **more: Any,
) -> events.ToolCallCompleted:
    """Return the end of a call that was interrupted with an unknown outcome.

    Args:
        sources: the policy decisions on the call.
        started: the event of its start; None if it did not start.
    """
    return events.ToolCallCompleted(
        **call,
        is_error=True,
        stop_reason=reason,
        executed_by=UNSET if started is None else started.executed_by,
        execution_env="unknown",
        policy_snapshot=PolicySnapshot(
            sources=tuple(sources),
            permission_mode=UNSET if started is None else started.permission_mode,
        ),
        **more,
    )


def _build_denial(request: events.PermissionRequested, reason: str) -> events.ToolCallDenied:
    """Return the denial that ends the approval request of a task when its call is stopped."""
    return events.ToolCallDenied(
        session_id=request.session_id,
        run_id=request.run_id,
        turn_id=request.turn_id,
        tool_call_id=request.tool_call_id,
        attempt=request.attempt,
        tool_name=request.tool_name,
        input_hash=request.input_hash,
        by="stop",
        reason=reason,
        origin=request.origin,
    )


def build_rejection(question: events.QuestionAsked, reason: str) -> events.QuestionRejected:
    """Return the rejection that ends a question when its call is stopped."""
    return events.QuestionRejected(
        **question.call,
        question_id=question.question_id,
        by="stop",
        reason=reason,
        origin=question.origin,
    )


def tool_result_entry(
    end: events.ToolExecutionEnd,
    *,
    parent_id: str | None,
    turn_kind: TurnKind,
    text: str,
    now: str,
) -> MessageEntry:
    """Return the entry for the result of an attempt at a tool call.

    Its id is derived from the call and the attempt, so no attempt can have two results.
    """
    attempt = end.attempt or 1
    return MessageEntry(
        id=f"{end.tool_call_id}.result" + (f".{attempt}" if attempt > 1 else ""),
        parent_id=or_unset(parent_id),
        role="tool",
        text=text,
        run_id=end.run_id,
        turn_kind=turn_kind,
        created_at=now,
        tool_call_id=end.tool_call_id,
        tool_name=end.tool_name,
        is_error=end.is_error,
        executed=end.executed,
        artifact_id=end.artifact_id,
        text_ref=end.text_ref,
        text_bytes=end.text_bytes,
    )


def attempt_of(entry_id: str, tool_call_id: str) -> int:
    """Return the attempt whose result an entry is; 0 if it is not a result of that call."""
    first = f"{tool_call_id}.result"
    if entry_id == first:
        return 1
    number = entry_id.removeprefix(f"{first}.")
    return int(number) if number != entry_id and number.isdecimal() else 0


def message_of(tool_call_id: str) -> str:
    """Return the id of the message that a run's call belongs to."""
    return tool_call_id.rpartition(".")[0]


def call_of(event: events.ToolExecutionStart | events.ToolCallRequested) -> ToolCall:
    """Return the call that an event begins, in the form used by its message."""
    return ToolCall(
        tool_call_id=event.tool_call_id,
        runtime_tool_call_id=event.runtime_tool_call_id or "",
        name=event.tool_name,
        args=event.args,
        args_ref=event.args_ref,
        args_bytes=event.args_bytes,
    )


def announcement(
    tracker: LifecycleTracker, calls: tuple[ToolCall, ...], *, leaf_id: str | None, now: str
) -> list[events.Event]:
    """Return a message without text for calls that no message of the model announced: model APIs reject
    a result without its call.

    Args:
        calls: calls with the same message id.
    """
    message_id = message_of(calls[0].tool_call_id)
    entry = MessageEntry(
        id=message_id,
        parent_id=or_unset(leaf_id),
        role="assistant",
        text="",
        run_id=tracker.run_id,
        turn_kind=tracker.turn_kind,
        created_at=now,
        model=tracker.model,
        tool_calls=calls,
        stop_reason="tool_use",
    )
    return [
        events.MessageStart(**tracker.where, message_id=message_id, role="assistant"),
        events.MessageEnd(**tracker.where, message_id=message_id, text="", stop_reason="tool_use"),
        _build_entry_event(tracker, entry),
    ]


def tool_calls_of(
    message_id: str, calls: list[tuple[str, str, dict[str, Any]]]
) -> tuple[ToolCall, ...]:
    """Return the calls of one message under nousd's ids: the id of the entry and the call's index.

    Args:
        calls: (the model's own id, tool name, arguments), in the model's order.
    """
    return tuple(
        ToolCall(
            tool_call_id=f"{message_id}.{index}", runtime_tool_call_id=own_id, name=name, args=args
        )
        for index, (own_id, name, args) in enumerate(calls)
    )


def _build_entry_event(tracker: LifecycleTracker, entry: MessageEntry) -> events.EntryAppended:
    return events.EntryAppended(session_id=tracker.session_id, run_id=tracker.run_id, entry=entry)
