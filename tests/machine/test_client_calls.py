"""A client's own call: valid next events, and missing closing events."""

from __future__ import annotations

from typing import Any

import pytest

from nousd.machine.context.transcript import find_unanswered_calls
from nousd.machine.session.client_calls import CALL_TRANSITIONS, CallLifecycle
from nousd.machine.session.closing_events import build_interrupted_end
from nousd.machine.session.lifecycle import Phase
from nousd.wire import events
from nousd.wire.events.base import CutOff
from nousd.wire.objects.entries import Entry, MessageEntry, ToolCall
from nousd.wire.objects.questions import UserQuestion
from tests.machine.builders import TS, user

CALL: Any = {
    "session_id": "s",
    "tool_call_id": "call-1",
    "attempt": 1,
    "tool_name": "ls",
    "input_hash": "h",
}
SAID: Any = {"by": "policy", "reason": "r"}

REQUESTED = events.ToolCallRequested(**CALL, args={})
EVALUATED = events.ToolCallPolicyEvaluated(**CALL, source="rules", decision="allow", reason="r")
ASKED = events.PermissionRequested(**CALL, args={}, reason="r", expires_at=TS)
APPROVED = events.ToolCallApproved(**CALL, **SAID)
DENIED = events.ToolCallDenied(**CALL, **SAID)
STARTED = events.ToolCallStarted(**CALL, executed_by="mcp", permission_mode="ask")
OUTPUT = events.ToolCallOutput(**CALL, delta="x")
QUESTION = events.QuestionAsked(
    **CALL, question_id="q", questions=(UserQuestion(question="Why?"),), expires_at=TS
)
COMPLETED = events.ToolCallCompleted(**CALL, is_error=False, duration_ms=1)

WAY: dict[Phase, list[events.Event]] = {
    Phase.BEFORE: [],
    Phase.REQUESTED: [REQUESTED, EVALUATED, ASKED],
    Phase.APPROVED: [REQUESTED, EVALUATED, APPROVED],
    Phase.EXECUTING: [REQUESTED, EVALUATED, APPROVED, STARTED, OUTPUT, OUTPUT],
    Phase.ENDED: [REQUESTED, APPROVED, STARTED, COMPLETED],
}


def tracker_in(phase: Phase) -> CallLifecycle:
    tracker = CallLifecycle()
    for event in WAY[phase]:
        tracker.note(event)
    assert tracker.phase is phase
    return tracker


def test_the_tests_reach_each_phase() -> None:
    assert WAY.keys() == CALL_TRANSITIONS.keys()


@pytest.mark.parametrize("phase", WAY)
def test_an_event_that_the_phase_does_not_allow_raises(phase: Phase) -> None:
    for event in (REQUESTED, EVALUATED, ASKED, APPROVED, DENIED, STARTED, OUTPUT, COMPLETED):
        tracker = tracker_in(phase)
        if type(event) in CALL_TRANSITIONS[phase]:
            tracker.note(event)
        else:
            with pytest.raises(AssertionError, match=f"{type(event).__name__} in {phase}"):
                tracker.note(event)


@pytest.mark.parametrize("reason", ["aborted", "error", "timeout", "interrupted"])
def test_a_stopped_call_gets_its_missing_closing_event(reason: CutOff) -> None:
    denied = events.ToolCallDenied(**CALL, by="stop", reason=reason)
    not_begun = build_interrupted_end(
        CALL, [EVALUATED.said], None, reason, result=f"tool_error: {reason}"
    )
    completed = build_interrupted_end(
        CALL, [EVALUATED.said], STARTED, reason, result=f"tool_error: {reason}"
    )
    owed = {
        phase: tracker_in(phase).closing_events(reason)
        for phase in WAY
        if phase is not Phase.BEFORE
    }
    assert owed == {
        Phase.REQUESTED: (denied,),
        Phase.APPROVED: (not_begun,),
        Phase.EXECUTING: (completed,),
        Phase.ENDED: (),
    }


@pytest.mark.parametrize("phase", [phase for phase in WAY if phase is not Phase.BEFORE])
def test_a_call_has_ended_after_its_closing_events(phase: Phase) -> None:
    tracker = tracker_in(phase)
    for event in tracker.closing_events("aborted"):
        tracker.note(event)
    assert tracker.phase is Phase.ENDED
    assert tracker.closing_events("aborted") == ()


def test_an_open_question_is_rejected_before_its_call_completes() -> None:
    tracker = tracker_in(Phase.EXECUTING)
    tracker.note(QUESTION)
    rejected, completed = tracker.closing_events("aborted")
    assert rejected == events.QuestionRejected(**CALL, question_id="q", by="stop", reason="aborted")
    assert isinstance(completed, events.ToolCallCompleted)
    tracker.note(rejected)
    assert len(tracker.closing_events("aborted")) == 1


# --- the calls that a transcript ends with ---------------------------------------------------


def answer(*ids: str) -> MessageEntry:
    calls = tuple(
        ToolCall(tool_call_id=id, runtime_tool_call_id="own", name="ls", args={}) for id in ids
    )
    return message("m", "assistant", tool_calls=calls)


def result(call_id: str) -> MessageEntry:
    return message(f"{call_id}.result", "tool", tool_call_id=call_id)


def message(entry_id: str, role: Any, **more: Any) -> MessageEntry:
    return MessageEntry(
        id=entry_id, role=role, text="", run_id="r", turn_kind="prompt", created_at=TS, **more
    )


@pytest.mark.parametrize(
    ("context", "owed"),
    [
        ([], ()),
        ([user("u")], ()),
        ([user("u"), answer()], ()),
        ([user("u"), answer("m.0", "m.1")], ("m.0", "m.1")),
        ([answer("m.0", "m.1", "m.2"), result("m.0")], ("m.1", "m.2")),
        ([answer("m.0", "m.1"), result("m.0"), result("m.1")], ()),
        # A call before a stored result was skipped: the model receives "interrupted" for it.
        ([answer("m.0", "m.1", "m.2"), result("m.1")], ("m.2",)),
        ([answer("m.0", "m.1"), result("m.0"), user("u")], ()),
        ([answer("m.0"), user("u"), answer("n.0")], ("n.0",)),
    ],
)
def test_the_last_calls_without_a_result_are_owed(
    context: list[Entry], owed: tuple[str, ...]
) -> None:
    assert tuple(call.tool_call_id for call in find_unanswered_calls(context)) == owed
