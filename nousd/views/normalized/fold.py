"""The rules of the view: render the next event of a thread as frames, and update the thread.

A frame that needs facts of a later event waits for that event: an approval waits for the start of its
call, so that every approved call is also started; a completion for its result; the start of a task, and
a model's input before it, for the user's message. No frame precedes its event in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec import UNSET, UnsetType

from nousd.views.normalized import payloads, values
from nousd.views.normalized.payloads import Payload, UserMessage
from nousd.views.normalized.thread import OpenCall, Thread
from nousd.views.stream_position import frame_id
from nousd.wire import events
from nousd.wire.commands.subscribe import cursor_seq
from nousd.wire.events import EVENT_TYPES, Event, ToolCallEvent

Payloads = Iterator[Payload]


def fold(thread: Thread, event: Event) -> list[Payload]:
    """Return the frames of the next event of a thread, and update the thread.

    Args:
        thread: a new ``Thread`` for an event that belongs to neither a run nor a call.
    """
    if getattr(event, "origin", UNSET) is not UNSET and isinstance(event, ToolCallEvent):
        return []  # a call of a subtask: its frames are in the subtask's own session
    rule = _RULES.get(type(event))
    if rule is None:
        return []
    emitted = list(rule(thread, event))
    if emitted and type(event) not in _START_EMITTERS:
        emitted[:0] = _emit_start(thread)
    return emitted


# --- tasks and their inputs ------------------------------------------------------------------


def _emit_start(thread: Thread, *messages: UserMessage) -> Payloads:
    """Emit the start of the run and of its turn, if they have not been emitted yet."""
    if thread.start is None:
        return
    if not thread.is_started:
        thread.is_started = True
        version = thread.start.runtime_version
        yield payloads.TaskStarted(messages=messages, runtime_version=version)
        messages = ()
    if thread.pending_turn is not None:
        thread.open_turn, thread.pending_turn = thread.pending_turn, None
        yield payloads.RuntimeRequestStarted(turn_id=thread.open_turn, messages=messages)
    yield from thread.held
    thread.held.clear()


def _on_session_created(_: Thread, event: events.SessionCreated) -> Payloads:
    yield payloads.SessionCreated(
        contract_version=event.contract_version,
        created_at=event.created_at,
        name=event.name,
        parent_id=event.parent_id,
        workspace=event.workspace,
        permission_mode=event.permission_mode,
    )


def _on_agent_start(thread: Thread, event: events.AgentStart) -> Payloads:
    thread.start = event
    thread.model = event.model or UNSET
    yield from ()


def _on_agent_session(thread: Thread, event: events.AgentSession) -> Payloads:
    thread.runtime_session_id = event.agent_session_id
    yield from ()


def _on_turn_start(thread: Thread, event: events.TurnStart) -> Payloads:
    thread.pending_turn = event.turn_id
    yield from ()


def _on_message_start(thread: Thread, event: events.MessageStart) -> Payloads:
    if event.role != "user":
        yield from _emit_start(thread)
        return
    message = values.user_message(event)
    if thread.pending_turn is not None:
        yield from _emit_start(thread, message)
    elif thread.open_turn is not None:
        # An agent program received a steer within its turn.
        yield payloads.RuntimeRequestCompleted(turn_id=thread.open_turn)
        yield payloads.RuntimeRequestStarted(turn_id=thread.open_turn, messages=(message,))


def _on_turn_end(thread: Thread, event: events.TurnEnd) -> Payloads:
    yield from _emit_start(thread)
    thread.open_turn = None
    yield payloads.RuntimeRequestCompleted(turn_id=event.turn_id)


def _on_error(thread: Thread, event: events.Error) -> Payloads:
    thread.error = event
    yield from ()


def _on_agent_end(thread: Thread, event: events.AgentEnd) -> Payloads:
    yield values.task_end(event, thread.error)


# --- models ----------------------------------------------------------------------------------


def _on_model_input(thread: Thread, event: events.ModelInput) -> Payloads:
    model_input = values.model_input(event)
    if event.purpose != "summary":
        thread.model = event.model
    if thread.pending_turn is None:
        yield model_input
    else:
        # The user's message may still follow: an agent program confirms it only later.
        thread.held.append(model_input)


def _on_message_update(_: Thread, event: events.MessageUpdate) -> Payloads:
    yield payloads.ModelOutputDelta(
        block_id=event.message_id,
        kind="text_delta",
        delta=event.delta,
        joined_from=_to_frame_id(event.joined_from),
    )


def _on_reasoning_update(_: Thread, event: events.ReasoningUpdate) -> Payloads:
    yield payloads.ModelOutputDelta(
        block_id=f"{event.message_id}.reasoning",
        kind="unknown_delta",
        delta=event.delta,
        joined_from=_to_frame_id(event.joined_from),
    )


def _on_subagent_text(_: Thread, event: events.SubagentText) -> Payloads:
    yield payloads.ModelOutputDelta(
        block_id=f"{event.parent_tool_call_id or event.runtime_tool_call_id}.subagent",
        kind="unknown_delta",
        delta=event.text,
        parent_tool_call_id=event.parent_tool_call_id,
    )


def _to_frame_id(cursor: str | UnsetType) -> int | UnsetType:
    return UNSET if cursor is UNSET else frame_id(cursor_seq(cursor), 0)


def _on_message_end(_: Thread, event: events.MessageEnd) -> Payloads:
    if event.stop_reason is UNSET:
        return  # a message of the user
    yield payloads.ModelOutputCompleted(
        message_id=event.message_id,
        content=values.text_content(event.text, event.text_ref, event.text_bytes),
        stop_reason=event.stop_reason,
    )


def _on_usage_reported(_: Thread, event: events.UsageReported) -> Payloads:
    yield values.usage(event)


# --- tool calls ------------------------------------------------------------------------------


def _keys(event: ToolCallEvent) -> dict[str, Any]:
    return {
        "tool_call_id": event.tool_call_id,
        "attempt": event.attempt,
        "name": event.tool_name,
        "input_hash": event.input_hash,
    }


def _on_execution_start(thread: Thread, event: events.ToolExecutionStart) -> Payloads:
    thread.bracket = event.tool_call_id
    call = thread.calls.get(event.tool_call_id)
    if call is not None:
        call.in_bracket = True
    yield from ()


def _on_requested(thread: Thread, event: events.ToolCallRequested) -> Payloads:
    in_bracket = thread.bracket == event.tool_call_id
    thread.calls[event.tool_call_id] = OpenCall(event, in_bracket=in_bracket)
    yield payloads.ToolCallRequested(
        **_keys(event),
        input=event.args,
        runtime_tool_call_id=event.runtime_tool_call_id or UNSET,
        input_ref=values.artifact(event.args_ref, values.JSON, event.args_bytes),
    )


def _on_policy_evaluated(thread: Thread, event: events.ToolCallPolicyEvaluated) -> Payloads:
    call = thread.calls.get(event.tool_call_id)
    if call is None:
        return
    call.sources.append(event.said)
    opinion = values.opinion(event.said)
    if opinion is not None:
        yield payloads.ToolCallPolicyEvaluated(
            **_keys(event),
            source=opinion.source,
            result=opinion.result,
            policy=opinion.policy,
            rule=opinion.rule,
            reason=event.reason,
        )


def _on_approved(thread: Thread, event: events.ToolCallApproved) -> Payloads:
    call = thread.calls.get(event.tool_call_id)
    if call is not None:
        call.approved = event
    yield from ()


def _on_denied(thread: Thread, event: events.ToolCallDenied) -> Payloads:
    call = thread.calls.pop(event.tool_call_id, None)
    if call is not None:
        yield payloads.ToolCallDenied(
            **_keys(event),
            source=values.decider(event.by),
            reason=event.reason,
            policy_snapshot=values.snapshot("deny", call.sources),
            decision=event.decision,
            rule=event.rule,
        )


def _build_denied(call: OpenCall, reason: str) -> Payload:
    """Return the end of a call that was stopped between its approval and its start."""
    return payloads.ToolCallDenied(
        **_keys(call.requested),
        source="nousd",
        reason=reason,
        policy_snapshot=values.snapshot("deny", call.sources),
    )


def _on_started(thread: Thread, event: events.ToolCallStarted) -> Payloads:
    call = thread.calls.get(event.tool_call_id)
    if call is not None and call.approved is not None:
        call.started = event
        yield _build_approved(call.approved)
        by = values.to_executor(event.executed_by)
        yield payloads.ToolCallStarted(**_keys(event), executed_by=by, gated=event.gated)


def _build_approved(event: events.ToolCallApproved) -> Payload:
    return payloads.ToolCallApproved(
        **_keys(event),
        source=values.decider(event.by),
        reason=event.reason,
        decision=event.decision,
        rule=event.rule,
    )


def _on_output(thread: Thread, event: events.ToolCallOutput) -> Payloads:
    """Emit output that is not in a bracket."""
    call = thread.calls.get(event.tool_call_id)
    if call is not None:
        call.note_early_output(event.delta)
        yield from _emit_output(call, event, event.delta)


def _on_execution_update(thread: Thread, event: events.ToolExecutionUpdate) -> Payloads:
    """Emit output in a bracket, without the part that was emitted before the bracket began."""
    call = thread.calls.get(event.tool_call_id)
    if call is not None and call.in_bracket and (delta := call.unseen(event.delta)):
        yield from _emit_output(call, event, delta)


def _emit_output(
    call: OpenCall, event: events.ToolCallOutput | events.ToolExecutionUpdate, delta: str
) -> Payloads:
    if call.started is None:
        return
    stream = event.stream or "stdout"
    call.output.add(stream, delta)
    yield payloads.ToolOutputDelta(
        **_keys(call.requested),
        stream=stream,
        delta=delta,
        joined_from=_to_frame_id(event.joined_from),
    )


def _on_completed(thread: Thread, event: events.ToolCallCompleted) -> Payloads:
    call = thread.calls.get(event.tool_call_id)
    if call is None:
        return
    call.completed = event
    if event.result is not UNSET:
        yield from _emit_end(thread, call, event)


def _on_execution_end(thread: Thread, event: events.ToolExecutionEnd) -> Payloads:
    call = thread.calls.get(event.tool_call_id)
    if call is not None:
        yield from _emit_end(thread, call, event)


_End = events.ToolCallCompleted | events.ToolExecutionEnd


def _emit_end(thread: Thread, call: OpenCall, end: _End) -> Payloads:
    """Emit the end of a call that was not denied.

    Args:
        end: the event that has the result of the call.
    """
    del thread.calls[end.tool_call_id]
    result = end.result or ""
    if call.started is not None:
        yield from _emit_output_end(call)
        yield _build_completed(call, end, result)
    elif call.approved is not None and call.approved.by == "policy" and call.completed is None:
        # A call that a policy approves starts in the same commit, unless its stored result is replayed.
        yield _build_approved(call.approved)
        by = values.to_executor(UNSET)
        yield payloads.ToolCallStarted(**_keys(call.requested), executed_by=by, replayed=True)
        yield _build_completed(call, end, result, replayed=True)
    else:
        yield _build_denied(call, result)


def _emit_output_end(call: OpenCall) -> Payloads:
    texts = call.output.texts
    stdout, stderr = texts.get("stdout") or UNSET, texts.get("stderr") or UNSET
    if stdout is not UNSET or stderr is not UNSET:
        yield payloads.ToolOutputCompleted(
            **_keys(call.requested),
            stdout=stdout,
            stderr=stderr,
            is_truncated=call.output.is_truncated or UNSET,
        )


def _build_completed(call: OpenCall, end: _End, result: str, **more: Any) -> Payload:
    completed = call.completed
    by = UNSET if completed is None else completed.executed_by
    mode = UNSET if call.started is None else call.started.permission_mode
    return payloads.ToolCallCompleted(
        **_keys(call.requested),
        is_error=end.is_error,
        executed_by=values.to_executor(by),
        execution_env=values.execution_env(
            UNSET if completed is None else completed.execution_env, by
        ),
        policy_snapshot=values.snapshot("allow", call.sources, mode),
        sandbox=UNSET if completed is None else completed.sandbox,
        duration_ms=UNSET if completed is None else completed.duration_ms,
        cut_off=UNSET if completed is None else completed.stop_reason,
        gated=UNSET if completed is None else completed.gated,
        result_preview=result,
        result_ref=values.artifact(end.text_ref, values.TEXT, end.text_bytes),
        output_ref=values.artifact(end.artifact_id),
        **more,
    )


_RULES: Final[dict[type[Event], Callable[[Thread, Any], Payloads]]] = {
    events.SessionCreated: _on_session_created,
    events.AgentStart: _on_agent_start,
    events.AgentSession: _on_agent_session,
    events.TurnStart: _on_turn_start,
    events.MessageStart: _on_message_start,
    events.MessageUpdate: _on_message_update,
    events.ReasoningUpdate: _on_reasoning_update,
    events.SubagentText: _on_subagent_text,
    events.MessageEnd: _on_message_end,
    events.TurnEnd: _on_turn_end,
    events.Error: _on_error,
    events.AgentEnd: _on_agent_end,
    events.ModelInput: _on_model_input,
    events.UsageReported: _on_usage_reported,
    events.ToolExecutionStart: _on_execution_start,
    events.ToolCallRequested: _on_requested,
    events.ToolCallPolicyEvaluated: _on_policy_evaluated,
    events.ToolCallApproved: _on_approved,
    events.ToolCallDenied: _on_denied,
    events.ToolCallStarted: _on_started,
    events.ToolCallOutput: _on_output,
    events.ToolExecutionUpdate: _on_execution_update,
    events.ToolCallCompleted: _on_completed,
    events.ToolExecutionEnd: _on_execution_end,
}

_START_EMITTERS: Final = (events.MessageStart, events.TurnEnd)
"""The events whose rules emit the start of run and turn themselves."""

VIEW_TYPES: Final = frozenset(EVENT_TYPES[struct] for struct in _RULES)
"""The types of events that the view needs."""

REMEMBERED_TYPES: Final = VIEW_TYPES - {"message_update", "reasoning_update"}
"""The types of events that are needed to bring a thread up to date."""
