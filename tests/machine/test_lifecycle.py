"""The state machine of a run's events: every cell of its table, and closing events that balance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from nousd.machine.session.closing_events import (
    build_interrupted_end,
    closing_events,
    tool_calls_of,
    tool_result_entry,
)
from nousd.machine.session.lifecycle import (
    LOGGED,
    STOP_REASONS,
    TRANSITIONS,
    LifecycleTracker,
    OpenTool,
    Phase,
)
from nousd.wire import events
from nousd.wire.codec.envelope import encode_event_tail, number_event
from nousd.wire.events.base import EndStatus
from nousd.wire.objects.entries import MessageEntry, StopReason, ToolCall, Usage
from nousd.wire.objects.inputs import PendingCounts
from nousd.wire.objects.policy import PolicySnapshot, PolicySource
from nousd.wire.objects.questions import QuestionAnswer, UserQuestion
from tests.harness.lifecycle import LifecycleChecker
from tests.machine.builders import TS, user

RUN: Any = {"session_id": "s", "run_id": "run-1"}
TURN: Any = RUN | {"turn_id": "1"}
SHOWN: Any = TURN | {"tool_call_id": "c", "tool_name": "read"}
CALL: Any = SHOWN | {"attempt": 1}
MESSAGE: Any = TURN | {"message_id": "m"}

EVENTS: dict[str, events.Event] = {
    "agent_start": events.AgentStart(**RUN, runtime="native", model="the-model"),
    "agent_end": events.AgentEnd(**RUN, status="completed"),
    "turn_start": events.TurnStart(**TURN),
    "turn_end": events.TurnEnd(**TURN),
    "message_start": events.MessageStart(**MESSAGE, role="assistant"),
    "message_update": events.MessageUpdate(**MESSAGE, delta="text"),
    "reasoning_update": events.ReasoningUpdate(**MESSAGE, delta="thought"),
    "message_end": events.MessageEnd(**MESSAGE, text="text"),
    "tool_execution_start": events.ToolExecutionStart(**SHOWN, args={}),
    "model_input": events.ModelInput(
        **TURN,
        model="the-model",
        entries=1,
        messages=1,
        tokens_estimated=9,
        tools=(),
        omitted_count=0,
    ),
    "tool_call_requested": events.ToolCallRequested(**CALL, args={}),
    "tool_call_policy_evaluated": events.ToolCallPolicyEvaluated(
        **CALL, source="registry", decision="allow", reason="r"
    ),
    "permission_requested": events.PermissionRequested(
        **CALL, input_hash="sha256:0", args={}, reason="r", expires_at=TS
    ),
    "tool_call_approved": events.ToolCallApproved(**CALL, by="policy", reason="r"),
    "tool_call_denied": events.ToolCallDenied(**CALL, by="policy", reason="r"),
    "tool_call_started": events.ToolCallStarted(**CALL, executed_by="mcp", permission_mode="ask"),
    "tool_call_output": events.ToolCallOutput(**CALL, delta="output"),
    "tool_call_completed": events.ToolCallCompleted(
        **CALL,
        is_error=False,
        duration_ms=1,
        executed_by="mcp",
        policy_snapshot=PolicySnapshot(permission_mode="ask", sources=()),
    ),
    "tool_execution_update": events.ToolExecutionUpdate(**SHOWN, delta="output"),
    "tool_execution_end": events.ToolExecutionEnd(
        **SHOWN, result="", is_error=False, executed=True
    ),
    "status": events.Status(**RUN, message="m"),
    "warning": events.Warning(**RUN, code="c", message="m"),
    "error": events.Error(**RUN, code="c", message="m", cause=""),
    "usage_reported": events.UsageReported(
        **TURN, usage=Usage(input=1, output=1, total=2), model="m"
    ),
    "run_aborting": events.RunAborting(**RUN),
    "run_conflict": events.RunConflict(**RUN),
    "v1_scope_entered": events.V1ScopeEntered(**RUN),
    "session_delete_deferred": events.SessionDeleteDeferred(**RUN),
    "entry_appended": events.EntryAppended(session_id="s", entry=user("e")),
    "queue_update": events.QueueUpdate(
        session_id="s",
        change="accepted",
        inputs=(),
        pending_counts=PendingCounts(steer=0, follow_up=0),
    ),
    "session_created": events.SessionCreated(session_id="s", created_at=TS, contract_version="1"),
    "session_updated": events.SessionUpdated(session_id="s", leaf_id="e"),
    "session_deletion_scheduled": events.SessionDeletionScheduled(session_id="s", delete_at="t"),
    "session_restored": events.SessionRestored(session_id="s"),
    "agent_session": events.AgentSession(**RUN, runtime="r", agent_session_id="own"),
    "subagent_text": events.SubagentText(**TURN, text="t", runtime_tool_call_id="own"),
    "session_seen": events.SessionSeen(session_id="s", entry_id="m"),
    "session_activated": events.SessionActivated(session_id="s"),
    "session_deleted": events.SessionDeleted(session_id="s"),
    "question_asked": events.QuestionAsked(
        **CALL, question_id="q", questions=(UserQuestion(question="Why?"),), expires_at=TS
    ),
    "question_answered": events.QuestionAnswered(
        **CALL, question_id="q", answers=(QuestionAnswer(text="so"),)
    ),
    "question_rejected": events.QuestionRejected(**CALL, question_id="q", by="user", reason="r"),
    "todo_updated": events.TodoUpdated(session_id="s", todos=()),
    "mcp_server_status": events.McpServerStatus(
        session_id="", name="files", transport="stdio", state="ready", restarts=0, tools=()
    ),
    "trust_updated": events.TrustUpdated(session_id="", path="/p", hash=None),
    "session_attached": events.SessionAttached(
        session_id="s", workspace="/b", attached_from="/a", origin_workspace="/a"
    ),
    "workspace_override_granted": events.WorkspaceOverrideGranted(
        session_id="s", ttl_seconds=60, expires_at="t"
    ),
    "workspace_override_expired": events.WorkspaceOverrideExpired(session_id="s", reason="expired"),
    "input_handled": events.InputHandled(
        session_id="s", kind="prompt", text="t", extension="e", reply="r"
    ),
}

CALLED = ["agent_start", "turn_start", "tool_execution_start"]
STARTED = [*CALLED, "tool_call_requested", "tool_call_approved", "tool_call_started"]

WAY: dict[Phase, list[str]] = {
    Phase.BEFORE: [],
    Phase.RUN: ["agent_start"],
    Phase.TURN: ["agent_start", "turn_start"],
    Phase.MESSAGE: ["agent_start", "turn_start", "message_start"],
    Phase.CALL: CALLED,
    Phase.REQUESTED: [*CALLED, "tool_call_requested"],
    Phase.APPROVED: [*CALLED, "tool_call_requested", "tool_call_approved"],
    Phase.DENIED: [*CALLED, "tool_call_requested", "tool_call_denied"],
    Phase.EXECUTING: STARTED,
    Phase.COMPLETED: [*STARTED, "tool_call_completed"],
    Phase.COMPLETED_EARLIER: [
        *("agent_start", "turn_start", "message_start"),
        *("tool_call_requested", "tool_call_approved", "tool_call_started", "tool_call_completed"),
        *("message_end", "tool_execution_start"),
    ],
    Phase.ENDED: ["agent_start", "agent_end"],
}
"""The events that lead a run into each phase."""

TABLE = """
agent_start                before>run
agent_end                  run>ended
turn_start                 run>turn
turn_end                   turn>run
model_input                turn>turn
message_start              turn>message
message_update             message>message
reasoning_update           message>message
message_end                message>turn
tool_execution_start       turn>call
tool_call_requested        call>requested message>message
tool_call_policy_evaluated requested>requested
permission_requested       requested>requested
tool_call_approved         requested>approved
tool_call_denied           requested>denied
tool_call_started          approved>executing
tool_execution_update      denied>denied executing>executing completed-earlier>completed-earlier
tool_call_completed        executing>completed
question_asked             executing>executing
question_answered          executing>executing
question_rejected          executing>executing
tool_execution_end         approved>turn denied>turn completed>turn completed-earlier>turn
status                     *
warning                    *
error                      *
usage_reported             *
run_aborting               *
run_conflict               *
agent_session              *
v1_scope_entered           *
session_delete_deferred    *
todo_updated               *
subagent_text              *
mcp_server_status
entry_appended             *
queue_update               before>before *
session_updated            before>before
tool_call_output
session_created
session_activated
session_seen
session_deletion_scheduled
session_restored
session_deleted
session_attached
workspace_override_granted
workspace_override_expired
trust_updated
input_handled
"""
"""event: phase>the phase after it, for each phase in which it can come; ``*`` stands for every phase
inside of a run, which it does not change. A prompt's own acceptance (and the move to its leaf) come
before its run."""

INSIDE: list[Phase] = [phase for phase in Phase if phase not in (Phase.BEFORE, Phase.ENDED)]


def cells() -> list[tuple[str, Phase, Phase | None]]:
    """Return every event with every phase and the phase after it, None where it cannot come."""
    found = []
    for name, *ways in map(str.split, TABLE.strip().splitlines()):
        after: dict[Phase, Phase] = {phase: phase for phase in INSIDE} if "*" in ways else {}
        after |= {Phase(way.split(">")[0]): Phase(way.split(">")[1]) for way in ways if way != "*"}
        found += [(name, phase, after.get(phase)) for phase in Phase]
    return found


def tracker_in(phase: Phase) -> LifecycleTracker:
    tracker = LifecycleTracker("s", "run-1")
    for name in WAY[phase]:
        tracker.note(EVENTS[name])
    assert tracker.phase is phase
    return tracker


@pytest.mark.parametrize(("name", "before", "after"), cells())
def test_each_event_in_each_phase_moves_or_raises_as_the_table_says(
    name: str, before: Phase, after: Phase | None
) -> None:
    tracker = tracker_in(before)
    if after is None:
        with pytest.raises(AssertionError, match=rf"{type(EVENTS[name]).__name__} in {before}"):
            tracker.note(EVENTS[name])
        assert tracker.phase is before
    else:
        tracker.note(EVENTS[name])
        assert tracker.phase is after


def test_the_table_has_every_event_and_every_phase() -> None:
    assert {(name, phase) for name, phase, _ in cells()} == {
        (name, phase) for name in events.EVENTS for phase in Phase
    }


# --- questions -------------------------------------------------------------------------------


def test_an_open_question_is_rejected_before_its_call_completes() -> None:
    tracker = tracker_in(Phase.EXECUTING)
    tracker.note(EVENTS["question_asked"])
    first, second, *_ = closing_events(tracker, "cancelled", leaf_id=None, now=TS)
    assert first == events.QuestionRejected(**CALL, question_id="q", by="stop", reason="aborted")
    assert isinstance(second, events.ToolCallCompleted)


@pytest.mark.parametrize("end", ["question_answered", "question_rejected"])
def test_an_ended_question_gets_no_closing_event(end: str) -> None:
    tracker = tracker_in(Phase.EXECUTING)
    tracker.note(EVENTS["question_asked"])
    tracker.note(EVENTS[end])
    ends = closing_events(tracker, "cancelled", leaf_id=None, now=TS)
    assert not any(isinstance(event, events.QuestionRejected) for event in ends)


# --- what a tracker records ------------------------------------------------------------------


def test_a_tracker_collects_the_text_of_the_open_message() -> None:
    tracker = tracker_in(Phase.MESSAGE)
    for delta in ("one ", "two"):
        tracker.note(events.MessageUpdate(**MESSAGE, delta=delta))
    assert tracker.message is not None
    assert (tracker.message.message_id, tracker.message.role) == ("m", "assistant")
    assert tracker.message.text == "one two"


def test_an_ended_message_or_call_is_no_longer_open() -> None:
    tracker = tracker_in(Phase.MESSAGE)
    tracker.note(EVENTS["message_end"])
    assert tracker.message is None
    for name in [*WAY[Phase.COMPLETED][2:], "tool_execution_end"]:
        tracker.note(EVENTS[name])
    assert (tracker.tool, tracker.tools) == (None, {})


def test_two_trackers_do_not_share_the_deltas_of_their_messages() -> None:
    one, other = tracker_in(Phase.MESSAGE), tracker_in(Phase.MESSAGE)
    one.note(EVENTS["message_update"])
    assert other.message is not None
    assert other.message.text == ""


def test_a_tracker_records_whether_the_open_call_has_started() -> None:
    tracker = tracker_in(Phase.CALL)
    requested = events.ToolCallRequested(**SHOWN, attempt=3, args={})
    tracker.note(requested)
    assert tracker.tool == OpenTool("c", "read", attempt=3, requested=requested)
    for name in ("tool_call_approved", "tool_call_started"):
        tracker.note(EVENTS[name])
    started = EVENTS["tool_call_started"]
    assert isinstance(started, events.ToolCallStarted)
    expected = OpenTool("c", "read", attempt=3, requested=requested, started=started)
    assert tracker.tool == expected


def test_each_turn_has_its_own_number_and_kind() -> None:
    tracker = tracker_in(Phase.TURN)
    tracker.note(events.MessageStart(**MESSAGE, role="user", text="t", turn_kind="steer"))
    assert (tracker.turn_id, tracker.turn_kind) == ("1", "steer")
    for name in ("message_end", "turn_end", "turn_start"):
        tracker.note(EVENTS[name])
    assert (tracker.turn_id, tracker.turn_kind) == ("2", "resume")
    assert tracker.where == {"session_id": "s", "run_id": "run-1", "turn_id": "2"}


# --- closing events --------------------------------------------------------------------------

CALL_ENDS = ["tool_execution_end", "entry_appended", "turn_end", "agent_end"]

CLOSES: dict[Phase, list[str]] = {
    Phase.RUN: ["agent_end"],
    Phase.TURN: ["turn_end", "agent_end"],
    Phase.MESSAGE: ["message_end", "entry_appended", "turn_end", "agent_end"],
    Phase.REQUESTED: ["tool_call_denied", *CALL_ENDS],
    Phase.APPROVED: CALL_ENDS,
    Phase.DENIED: CALL_ENDS,
    Phase.EXECUTING: ["tool_call_completed", *CALL_ENDS],
    Phase.COMPLETED: CALL_ENDS,
}


def check_balance(happened: Iterable[events.Event]) -> None:
    checker = LifecycleChecker()
    for seq, event in enumerate(happened, 1):
        checker.feed(number_event(seq, encode_event_tail(event, TS)))
    checker.finish()
    assert checker.ended_runs == 1


def ends_of(tracker: LifecycleTracker, status: EndStatus, **more: Any) -> tuple[events.Event, ...]:
    return closing_events(tracker, status, leaf_id="leaf", now=TS, **more)


@pytest.mark.parametrize(
    ("phase", "status"),
    [
        (phase, status)
        for phase in CLOSES
        for status in get_args(EndStatus)
        if status in STOP_REASONS or phase in (Phase.RUN, Phase.TURN)
    ],
)
def test_closing_events_balance_a_run_in_every_phase(phase: Phase, status: EndStatus) -> None:
    tracker = tracker_in(phase)
    ends = ends_of(tracker, status)
    assert [events.EVENT_TYPES[type(end)] for end in ends] == CLOSES[phase]
    check_balance([*(EVENTS[name] for name in WAY[phase]), *ends])
    for end in ends:
        tracker.note(end)
    assert tracker.phase is Phase.ENDED
    last = ends[-1]
    assert isinstance(last, events.AgentEnd)
    assert (last.status, last.error) == (status, UNSET)


@pytest.mark.parametrize(("status", "reason"), STOP_REASONS.items())
def test_a_partial_answer_is_stored_with_its_stop_reason(
    status: EndStatus, reason: StopReason
) -> None:
    tracker = tracker_in(Phase.MESSAGE)
    for name in ("message_update", "reasoning_update", "message_update"):
        tracker.note(EVENTS[name])
    end, appended, *_, last = ends_of(tracker, status, error="what failed")
    assert end == events.MessageEnd(**MESSAGE, text="texttext", stop_reason=reason)
    assert isinstance(appended, events.EntryAppended)
    assert appended.run_id == "run-1"
    assert appended.entry == MessageEntry(
        id="m",
        parent_id="leaf",
        role="assistant",
        text="texttext",
        run_id="run-1",
        turn_kind="resume",
        created_at=TS,
        model="the-model",
        reasoning="thought",
        stop_reason=reason,
        error="what failed",
    )
    assert isinstance(last, events.AgentEnd)
    assert last.error == "what failed"


def test_a_partial_answer_without_text_is_stored_empty() -> None:
    _, appended, *_ = ends_of(tracker_in(Phase.MESSAGE), "cancelled")
    assert isinstance(appended, events.EntryAppended)
    assert isinstance(appended.entry, MessageEntry)
    assert (appended.entry.text, appended.entry.reasoning) == ("", UNSET)


CUT_OFF: dict[Phase, bool] = {
    Phase.REQUESTED: False,
    Phase.APPROVED: False,
    Phase.DENIED: False,
    Phase.EXECUTING: True,
    Phase.COMPLETED: True,
}
"""Phases in which a call may be cut off, and whether it may have had an effect by then."""


@pytest.mark.parametrize(("phase", "executed"), CUT_OFF.items())
@pytest.mark.parametrize(("status", "reason"), STOP_REASONS.items())
def test_a_call_that_was_cut_off_has_an_error_result_with_the_reason(
    status: EndStatus, reason: str, phase: Phase, executed: bool
) -> None:
    *decided, end, appended, _, _ = ends_of(tracker_in(phase), status)
    assert len(decided) == (phase in (Phase.REQUESTED, Phase.EXECUTING))
    assert end == events.ToolExecutionEnd(
        **CALL, result=f"tool_error: {reason}", is_error=True, executed=executed
    )
    assert isinstance(appended, events.EntryAppended)
    entry = appended.entry
    assert isinstance(entry, MessageEntry)
    assert (entry.id, entry.parent_id, entry.role) == ("c.result", "leaf", "tool")
    assert (entry.tool_call_id, entry.tool_name) == ("c", "read")
    assert (entry.text, entry.is_error, entry.executed) == (
        f"tool_error: {reason}",
        True,
        executed,
    )


@pytest.mark.parametrize(("status", "reason"), STOP_REASONS.items())
def test_closing_events_complete_an_executing_call_and_deny_an_undecided_one(
    status: EndStatus, reason: Any
) -> None:
    completed, *_ = ends_of(tracker_in(Phase.EXECUTING), status)
    started = EVENTS["tool_call_started"]
    assert isinstance(started, events.ToolCallStarted)
    assert completed == build_interrupted_end(CALL, (), started, reason)
    tracker = tracker_in(Phase.REQUESTED)
    judged = EVENTS["tool_call_policy_evaluated"]
    for event in (judged, EVENTS["tool_call_approved"], started):
        tracker.note(event)
    completed, *_ = ends_of(tracker, status)
    assert isinstance(judged, events.ToolCallPolicyEvaluated)
    assert completed == build_interrupted_end(CALL, [judged.said], started, reason)
    denied, *_ = ends_of(tracker_in(Phase.REQUESTED), status)
    assert denied == events.ToolCallDenied(**CALL, by="stop", reason=reason)


def test_the_completion_of_a_call_that_was_cut_off_has_the_facts_of_its_start() -> None:
    source = PolicySource(source="mode", decision="allow", reason="r")
    told = events.ToolCallStarted(**CALL, executed_by="mcp", permission_mode="ask")
    assert build_interrupted_end(CALL, [source], told, "aborted") == events.ToolCallCompleted(
        **CALL,
        is_error=True,
        stop_reason="aborted",
        executed_by="mcp",
        execution_env="unknown",
        policy_snapshot=PolicySnapshot(permission_mode="ask", sources=(source,)),
    )
    # A start in an earlier log has neither fact; nor has a call that did not start.
    untold = events.ToolCallCompleted(
        **CALL,
        is_error=True,
        stop_reason="aborted",
        execution_env="unknown",
        policy_snapshot=PolicySnapshot(sources=(source,)),
    )
    for before in (events.ToolCallStarted(**CALL), None):
        assert build_interrupted_end(CALL, [source], before, "aborted") == untold


EARLIER: list[list[str]] = [
    ["tool_execution_start", "tool_execution_update", "tool_execution_end"],
    ["tool_execution_start", "tool_call_started", "tool_execution_update", "tool_execution_end"],
]
"""The calls of version 1: one that was not run, one that was."""


@pytest.mark.parametrize("call", EARLIER)
def test_the_call_events_of_version_1_are_readable_but_not_writable(call: list[str]) -> None:
    happened = [*WAY[Phase.TURN], *call]
    for cut in range(len(WAY[Phase.TURN]), len(happened) + 1):
        tracker = LifecycleTracker("s", "run-1", LOGGED)
        for name in happened[:cut]:
            tracker.note(EVENTS[name])
        started = "tool_call_started" in happened[:cut] and cut < len(happened)
        assert (tracker.tool is not None and tracker.tool.started is not None) == started
        ends = ends_of(tracker, "interrupted")
        assert (type(ends[0]) is events.ToolCallCompleted) == started
    strict = tracker_in(Phase.CALL)
    with pytest.raises(AssertionError):
        strict.note(EVENTS[call[1]])


def test_a_partial_answer_in_an_empty_tree_is_a_root() -> None:
    _, appended, *_ = closing_events(tracker_in(Phase.MESSAGE), "error", leaf_id=None, now=TS)
    assert isinstance(appended, events.EntryAppended)
    assert appended.entry.parent_id is UNSET


# --- ids that follow from one another --------------------------------------------------------


def test_a_tool_call_id_is_the_message_id_and_an_index() -> None:
    calls = tool_calls_of("msg-1", [("same", "read", {"a": 1}), ("same", "bash", {})])
    assert calls == (
        ToolCall(tool_call_id="msg-1.0", runtime_tool_call_id="same", name="read", args={"a": 1}),
        ToolCall(tool_call_id="msg-1.1", runtime_tool_call_id="same", name="bash", args={}),
    )


@pytest.mark.parametrize(("attempt", "name"), [(1, "c.result"), (2, "c.result.2")])
def test_each_attempt_has_its_own_result_id(attempt: int, name: str) -> None:
    end = events.ToolExecutionEnd(
        **SHOWN, attempt=attempt, result="", is_error=False, executed=True
    )
    entry = tool_result_entry(end, parent_id=None, turn_kind="steer", text="", now=TS)
    assert (entry.id, entry.tool_call_id) == (name, "c")


def test_the_id_of_a_result_follows_from_its_call() -> None:
    end = events.ToolExecutionEnd(
        **SHOWN, result="cut", is_error=False, executed=True, artifact_id="sha256:0"
    )
    entry = tool_result_entry(end, parent_id=None, turn_kind="steer", text="whole", now=TS)
    assert (entry.id, entry.tool_call_id, entry.text) == ("c.result", "c", "whole")
    assert (entry.parent_id, entry.artifact_id, entry.turn_kind) == (UNSET, "sha256:0", "steer")


# --- any run, stopped anywhere ---------------------------------------------------------------


def next_event(tracker: LifecycleTracker, kind: type[events.Event], serial: int) -> events.Event:
    """Return an event of that type that this run may have now."""
    where: Any = tracker.where
    turn = where | {"turn_id": str(tracker.turns + 1)}
    told = "" if tracker.message is None else tracker.message.text
    message_id = "" if tracker.message is None else tracker.message.message_id
    shown: Any = where | {"tool_name": "read"}
    if tracker.tool is not None:
        shown["tool_call_id"] = tracker.tool.tool_call_id
    call: Any = shown | {"attempt": 1}
    open_questions = [] if tracker.tool is None else list(tracker.tool.questions)
    if open_questions and kind is events.ToolCallCompleted:
        kind = events.QuestionAnswered  # a call waits for its questions
    if not open_questions and kind in (events.QuestionAnswered, events.QuestionRejected):
        kind = events.QuestionAsked
    makers: dict[type[events.Event], Any] = {
        events.AgentStart: lambda: EVENTS["agent_start"],
        events.AgentEnd: lambda: EVENTS["agent_end"],
        events.QueueUpdate: lambda: EVENTS["queue_update"],
        events.SessionUpdated: lambda: EVENTS["session_updated"],
        events.TurnStart: lambda: events.TurnStart(**turn),
        events.TurnEnd: lambda: events.TurnEnd(**where),
        events.MessageStart: lambda: events.MessageStart(
            **where, message_id=f"m{serial}", role="assistant"
        ),
        events.MessageUpdate: lambda: events.MessageUpdate(
            **where, message_id=message_id, delta=f"{serial} "
        ),
        events.ReasoningUpdate: lambda: events.ReasoningUpdate(
            **where, message_id=message_id, delta="hm"
        ),
        events.MessageEnd: lambda: events.MessageEnd(**where, message_id=message_id, text=told),
        events.ModelInput: lambda: msgspec.structs.replace(
            EVENTS["model_input"], turn_id=tracker.turn_id
        ),
        events.ToolExecutionStart: lambda: events.ToolExecutionStart(
            **shown, tool_call_id=f"c{serial}", args={}
        ),
        events.ToolCallRequested: lambda: events.ToolCallRequested(**call, args={}),
        events.ToolCallPolicyEvaluated: lambda: events.ToolCallPolicyEvaluated(
            **call, source="mode", decision="ask", reason="r"
        ),
        events.PermissionRequested: lambda: events.PermissionRequested(
            **call, input_hash="sha256:0", args={}, reason="r", expires_at=TS
        ),
        events.ToolCallApproved: lambda: events.ToolCallApproved(**call, by="user", reason="r"),
        events.ToolCallDenied: lambda: events.ToolCallDenied(**call, by="user", reason="r"),
        events.ToolCallStarted: lambda: events.ToolCallStarted(**call),
        events.ToolExecutionUpdate: lambda: events.ToolExecutionUpdate(**shown, delta="o"),
        events.QuestionAsked: lambda: events.QuestionAsked(
            **call, question_id=f"q{serial}", questions=(), expires_at=TS
        ),
        events.QuestionAnswered: lambda: events.QuestionAnswered(
            **call, question_id=open_questions[0], answers=()
        ),
        events.QuestionRejected: lambda: events.QuestionRejected(
            **call, question_id=open_questions[0], by="user", reason="r"
        ),
        events.ToolCallCompleted: lambda: events.ToolCallCompleted(
            **call, is_error=False, duration_ms=1
        ),
        events.ToolExecutionEnd: lambda: events.ToolExecutionEnd(
            **shown,
            result="",
            is_error=False,
            executed=tracker.tool is not None and tracker.tool.started is not None,
        ),
    }
    event: events.Event = makers[kind]()
    return event


@given(st.lists(st.integers(0, 9), max_size=40), st.sampled_from(sorted(STOP_REASONS)))
def test_closing_events_balance_a_run_stopped_anywhere(
    choices: list[int], status: EndStatus
) -> None:
    tracker = LifecycleTracker("s", "run-1")
    happened = [EVENTS["agent_start"]]
    tracker.note(happened[0])
    for serial, choice in enumerate(choices):
        possible = [kind for kind in TRANSITIONS[tracker.phase] if kind is not events.AgentEnd]
        event = next_event(tracker, possible[choice % len(possible)], serial)
        tracker.note(event)
        happened.append(event)
    if tracker.phase is Phase.CALL:
        # A call and its request are one step.
        happened.append(next_event(tracker, events.ToolCallRequested, 0))
        tracker.note(happened[-1])
    check_balance([*happened, *ends_of(tracker, status)])
