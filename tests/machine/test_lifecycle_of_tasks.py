"""Requests of tasks, as reported in the root run: they do not change its state, and are closed."""

from __future__ import annotations

from typing import Any

import pytest

from nousd.machine.session.closing_events import closing_events
from nousd.machine.session.lifecycle import LifecycleTracker, Phase
from nousd.wire import events
from nousd.wire.events.base import TurnKey
from nousd.wire.objects.workers import Origin

TURN: TurnKey = {"session_id": "s", "run_id": "r", "turn_id": "1"}
CALL: dict[str, Any] = {**TURN, "tool_call_id": "m.0", "attempt": 1, "tool_name": "task"}
BELOW: dict[str, Any] = {
    **TURN,
    "tool_call_id": "n.0",
    "attempt": 1,
    "tool_name": "fetch",
    "input_hash": "sha256:1",
    "origin": Origin(session_id="below", run_id="r2"),
}
ASKS = events.PermissionRequested(**BELOW, args={}, reason="it asks", expires_at="later")
APPROVED = events.ToolCallApproved(**BELOW, by="user", reason="yes")
DENIED = events.ToolCallDenied(**BELOW, by="user", reason="no")
QUESTION = events.QuestionAsked(**BELOW, question_id="q", questions=(), expires_at="later")
ANSWERED = events.QuestionAnswered(**BELOW, question_id="q", answers=())


def executing() -> LifecycleTracker:
    """Return the tracker of a run that is executing a call of ``task``."""
    tracker = LifecycleTracker("s", "r")
    for event in (
        events.AgentStart(session_id="s", run_id="r", runtime="native", model="m"),
        events.TurnStart(**TURN),
        events.ToolExecutionStart(**TURN, tool_call_id="m.0", tool_name="task", args={}),
        events.ToolCallRequested(**CALL, args={}),
        events.ToolCallApproved(**CALL, by="policy", reason="it may"),
        events.ToolCallStarted(**CALL),
    ):
        tracker.note(event)
    return tracker


def ends_of(tracker: LifecycleTracker) -> list[events.Event]:
    return list(closing_events(tracker, "interrupted", leaf_id=None, now="now"))


@pytest.mark.parametrize("told", [(ASKS, APPROVED), (ASKS, DENIED), (QUESTION, ANSWERED)])
def test_an_answered_request_of_a_task_does_not_change_the_run(
    told: tuple[events.Event, ...],
) -> None:
    tracker = executing()
    plain = ends_of(tracker)
    for event in told:
        tracker.note(event)
    assert tracker.phase is Phase.EXECUTING
    assert ends_of(tracker) == plain


def test_open_requests_of_a_task_are_closed_before_its_call() -> None:
    tracker = executing()
    plain = ends_of(tracker)
    tracker.note(ASKS)
    tracker.note(QUESTION)
    rejected, denied, *rest = ends_of(tracker)
    assert rest == plain
    assert isinstance(rejected, events.QuestionRejected)
    assert isinstance(denied, events.ToolCallDenied)
    assert (denied.tool_call_id, denied.by, denied.origin) == ("n.0", "stop", BELOW["origin"])
    assert (rejected.question_id, rejected.by, rejected.origin) == ("q", "stop", BELOW["origin"])


def test_a_request_of_a_task_outside_its_call_raises() -> None:
    tracker = LifecycleTracker("s", "r")
    tracker.note(events.AgentStart(session_id="s", run_id="r", runtime="native", model="m"))
    with pytest.raises(AssertionError, match="PermissionRequested of a task"):
        tracker.note(ASKS)
