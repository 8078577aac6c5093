"""The lifecycle of a run: its possible events, and the brackets that are open.

A run is a bracket language: run > turn > (message | tool call). ``TRANSITIONS`` is that language as a
table; ``LifecycleTracker`` follows a run's events through it and remembers what is open, so that
``closing_events`` can compute the missing ends at any moment. The daemon uses it when a run is stopped
from outside, and recovery uses the same code on the events that a killed process left in the log.

The bracket of a tool call is its ``tool_execution_start`` and ``tool_execution_end``. Between them come
its steps, from the decision to the outcome: requested, any number of evaluations, one approval or
denial, and if approved, started and completed.

Brackets never overlap, but calls may: while one bracket is open, the steps of other calls are logged as
they happen, each with the id of its call, and their brackets follow later (``brackets``). Such a call
waits for its bracket, which then begins in the phase that the call has reached.

A missing cell is a bug in nousd, never a client's mistake, so it is an assertion.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from io import StringIO
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from nousd.wire import events
from nousd.wire.events.base import CutOff, TurnKey
from nousd.wire.events.tools import ToolCallEvent
from nousd.wire.objects.entries import TurnKind
from nousd.wire.objects.policy import PolicySource


class Phase(Enum):
    """The phase of a run or, while the bracket of a call is open, of the call."""

    # The members are singletons; the default hash, of the name, runs Python code for every event.
    __hash__ = object.__hash__

    BEFORE = "before"
    RUN = "run"
    TURN = "turn"
    MESSAGE = "message"
    CALL = "call"
    REQUESTED = "requested"
    APPROVED = "approved"
    DENIED = "denied"
    EXECUTING = "executing"
    COMPLETED = "completed"
    COMPLETED_EARLIER = "completed-earlier"
    ENDED = "ended"


_REMARKS: Final[tuple[type[events.Event], ...]] = (
    events.Status,
    events.AgentSession,
    events.Warning,
    events.Error,
    events.QueueUpdate,
    events.EntryAppended,
    events.RunAborting,
    events.RunConflict,
    events.V1ScopeEntered,
    events.SessionDeleteDeferred,
    events.UsageReported,
    events.TodoUpdated,
    events.SubagentText,
)
"""Events that are allowed anywhere inside a run and change no phase."""

Transitions = Mapping[Phase, Mapping[type[events.Event], Phase]]

TRANSITIONS: Final[Transitions] = {
    # A prompt may move the leaf before it is accepted; all three events are one step.
    Phase.BEFORE: {
        events.SessionUpdated: Phase.BEFORE,
        events.QueueUpdate: Phase.BEFORE,
        events.AgentStart: Phase.RUN,
    },
    Phase.RUN: {events.TurnStart: Phase.TURN, events.AgentEnd: Phase.ENDED},
    Phase.TURN: {
        events.ModelInput: Phase.TURN,
        events.MessageStart: Phase.MESSAGE,
        events.ToolExecutionStart: Phase.CALL,
        events.TurnEnd: Phase.RUN,
    },
    Phase.MESSAGE: {
        events.MessageUpdate: Phase.MESSAGE,
        events.ReasoningUpdate: Phase.MESSAGE,
        events.MessageEnd: Phase.TURN,
    },
    # A call's start and its request are one step.
    Phase.CALL: {events.ToolCallRequested: Phase.REQUESTED},
    Phase.REQUESTED: {
        events.ToolCallPolicyEvaluated: Phase.REQUESTED,
        events.PermissionRequested: Phase.REQUESTED,
        events.ToolCallApproved: Phase.APPROVED,
        events.ToolCallDenied: Phase.DENIED,
    },
    # A call ends without a start if the run is stopped at this point.
    Phase.APPROVED: {
        events.ToolCallStarted: Phase.EXECUTING,
        events.ToolExecutionEnd: Phase.TURN,
    },
    Phase.DENIED: {
        events.ToolExecutionUpdate: Phase.DENIED,
        events.ToolExecutionEnd: Phase.TURN,
    },
    Phase.EXECUTING: {
        events.ToolExecutionUpdate: Phase.EXECUTING,
        events.QuestionAsked: Phase.EXECUTING,
        events.QuestionAnswered: Phase.EXECUTING,
        events.QuestionRejected: Phase.EXECUTING,
        events.ToolCallCompleted: Phase.COMPLETED,
    },
    Phase.COMPLETED: {events.ToolExecutionEnd: Phase.TURN},
    # The call completed before its bracket began; the bracket repeats its output.
    Phase.COMPLETED_EARLIER: {
        events.ToolExecutionUpdate: Phase.COMPLETED_EARLIER,
        events.ToolExecutionEnd: Phase.TURN,
    },
    Phase.ENDED: {},
}
"""The possible next events of a run of the current version, except the steps of calls that wait for
their bracket."""

WAITING: Final[Transitions] = {
    Phase.REQUESTED: {
        events.ToolCallPolicyEvaluated: Phase.REQUESTED,
        events.PermissionRequested: Phase.REQUESTED,
        events.ToolCallApproved: Phase.APPROVED,
        events.ToolCallDenied: Phase.DENIED,
    },
    Phase.APPROVED: {events.ToolCallStarted: Phase.EXECUTING},
    Phase.DENIED: {},
    Phase.EXECUTING: {
        events.ToolCallOutput: Phase.EXECUTING,
        events.QuestionAsked: Phase.EXECUTING,
        events.QuestionAnswered: Phase.EXECUTING,
        events.QuestionRejected: Phase.EXECUTING,
        events.ToolCallCompleted: Phase.COMPLETED_EARLIER,
    },
    Phase.COMPLETED_EARLIER: {},
}
"""The possible next steps of a call that waits for its bracket, by its own phase."""

_OF_VERSION_1: Final[Transitions] = {
    Phase.CALL: {
        events.ToolCallStarted: Phase.EXECUTING,
        events.ToolExecutionUpdate: Phase.CALL,
        events.ToolExecutionEnd: Phase.TURN,
    },
    Phase.EXECUTING: {events.ToolExecutionEnd: Phase.TURN},
}
"""In version 1, the only step of a call was its start."""

LOGGED: Final[Transitions] = {
    phase: {**next_, **_OF_VERSION_1.get(phase, {})} for phase, next_ in TRANSITIONS.items()
}
"""The possible next events in a log of any version, for reading only."""

OUTSIDE_OF_TURNS: Final = (Phase.BEFORE, Phase.RUN, Phase.ENDED)

_OPEN: Final = frozenset(Phase) - {*OUTSIDE_OF_TURNS, Phase.TURN}
"""The phases in which a bracket is open, so that another call has to wait for its own."""

STOP_REASONS: Final[dict[str, CutOff]] = {
    "cancelled": "aborted",
    "error": "error",
    "timeout": "timeout",
    "interrupted": "interrupted",
}
"""end status of a run -> stop reason of its open message or call."""


class OpenMessage(msgspec.Struct):
    """A message without an end; grows with each delta. ``is_counted`` is set once ``usage_reported`` has
    reported its model call.

    The deltas are joined on arrival: a list of them would take many times the memory of the text.
    """

    message_id: str
    role: str
    streamed: StringIO = msgspec.field(default_factory=StringIO)
    reasoned: StringIO = msgspec.field(default_factory=StringIO)
    is_counted: bool = False

    @property
    def text(self) -> str:
        """The streamed text so far."""
        return self.streamed.getvalue()

    @property
    def reasoning(self) -> str:
        """The streamed reasoning so far."""
        return self.reasoned.getvalue()


class OpenTool(msgspec.Struct):
    """A tool call without an end; a ``started`` one may have had an effect.

    ``phase`` is its phase while it waits for its bracket; None while the bracket is open, because then
    the run's phase is that of the call. ``has_waited`` is true if its steps began before its bracket,
    which repeats ``requested`` and ``completed``. ``questions`` are its open questions by id.
    """

    tool_call_id: str
    tool_name: str
    phase: Phase | None = None
    has_waited: bool = False
    attempt: int = 1
    input_hash: str | UnsetType = UNSET
    requested: events.ToolCallRequested | None = None
    started: events.ToolCallStarted | None = None
    completed: events.ToolCallCompleted | None = None
    sources: list[PolicySource] = []
    questions: dict[str, events.QuestionAsked] = {}

    @property
    def keys(self) -> dict[str, Any]:
        """The keys by which its events identify the call."""
        return {
            "tool_call_id": self.tool_call_id,
            "attempt": self.attempt,
            "tool_name": self.tool_name,
            "input_hash": self.input_hash,
        }


class LifecycleTracker:
    """Tracks the events of one run and its open brackets.

    Args:
        transitions: ``LOGGED`` for events from a log, which an earlier version may have written.
    """

    def __init__(
        self, session_id: str, run_id: str, transitions: Transitions = TRANSITIONS
    ) -> None:
        self.session_id = session_id
        self.run_id = run_id
        self._transitions = transitions
        self.phase = Phase.BEFORE
        self.turns = 0
        self.model = ""
        self.model_input: events.ModelInput | None = None
        self.turn_kind: TurnKind = "resume"
        self.message: OpenMessage | None = None
        self.messages: set[str] = set()
        """The ids of the messages of the open turn that have ended."""
        self.tools: dict[str, OpenTool] = {}
        """The calls without an end, in the order in which they began; at most the first one has an open
        bracket."""
        self.tool: OpenTool | None = None
        """The call with the open bracket."""
        self.task_requests: dict[str, events.PermissionRequested | events.QuestionAsked] = {}
        """The open requests of the tasks of its calls, by their ids."""

    @property
    def turn_id(self) -> str:
        """The id of the open or last turn."""
        return str(self.turns)

    def note(self, event: events.Event) -> None:
        """Process one event.

        Raises:
            AssertionError: the event is not possible in this phase.
        """
        if getattr(event, "origin", UNSET) is not UNSET:
            self._note_of_task(event)
            return
        if isinstance(event, ToolCallEvent):
            open_ = self.tool
            if open_ is None or open_.tool_call_id != event.tool_call_id:
                self._note_waiting(event)
                return
        after = self._transitions[self.phase].get(type(event))
        if after is None:
            allowed = _REMARKS if self.phase not in (Phase.BEFORE, Phase.ENDED) else ()
            assert isinstance(event, allowed), f"{type(event).__name__} in {self.phase}"
        else:
            self.phase = after
        remember = _REMEMBER.get(type(event))
        if remember is not None:
            remember(self, event)

    def _note_waiting(self, event: ToolCallEvent) -> None:
        """Process a step of a call that waits for its bracket, because another one is open."""
        tool = self.tools.get(event.tool_call_id)
        if tool is None:
            is_first = isinstance(event, events.ToolCallRequested) and self.phase in _OPEN
            assert is_first, f"{type(event).__name__} in {self.phase}"
            tool = OpenTool(event.tool_call_id, event.tool_name, Phase.REQUESTED, has_waited=True)
            self.tools[event.tool_call_id] = tool
        else:
            assert tool.phase is not None
            after = WAITING[tool.phase].get(type(event))
            assert after is not None, f"{type(event).__name__} of a waiting call in {tool.phase}"
            tool.phase = after
        if isinstance(event, events.ToolCallCompleted):
            tool.completed = event
        remember = _REMEMBER.get(type(event))
        if remember is not None:
            remember(self, event)

    def _note_of_task(self, event: events.Event) -> None:
        """Process a request of a subtask of a running call, or the end of one."""
        is_running = any(self.phase_of(tool) is Phase.EXECUTING for tool in self.tools.values())
        assert is_running, f"{type(event).__name__} of a task in {self.phase}"
        match event:
            case events.PermissionRequested():
                self.task_requests[event.tool_call_id] = event
            case events.QuestionAsked():
                self.task_requests[event.question_id] = event
            case events.ToolCallApproved() | events.ToolCallDenied():
                self.task_requests.pop(event.tool_call_id, None)
            case events.QuestionAnswered() | events.QuestionRejected():
                self.task_requests.pop(event.question_id, None)

    def phase_of(self, tool: OpenTool) -> Phase:
        """Return the phase of a call without an end."""
        return self.phase if tool.phase is None else tool.phase

    @property
    def where(self) -> TurnKey:
        """The keys of an event in the open turn."""
        return {"session_id": self.session_id, "run_id": self.run_id, "turn_id": str(self.turns)}


def _on_agent_start(tracker: LifecycleTracker, event: events.AgentStart) -> None:
    tracker.model = event.model


def _on_turn_start(tracker: LifecycleTracker, _: events.TurnStart) -> None:
    tracker.turns += 1
    tracker.turn_kind = "resume"


def _on_model_input(tracker: LifecycleTracker, event: events.ModelInput) -> None:
    tracker.model_input = event


def _on_usage_reported(tracker: LifecycleTracker, event: events.UsageReported) -> None:
    if tracker.message is not None and tracker.message.message_id == event.message_id:
        tracker.message.is_counted = True


def _on_message_start(tracker: LifecycleTracker, event: events.MessageStart) -> None:
    tracker.message = OpenMessage(event.message_id, event.role)
    if event.turn_kind is not UNSET:
        tracker.turn_kind = event.turn_kind


def _on_message_update(tracker: LifecycleTracker, event: events.MessageUpdate) -> None:
    assert tracker.message is not None
    tracker.message.streamed.write(event.delta)


def _on_reasoning_update(tracker: LifecycleTracker, event: events.ReasoningUpdate) -> None:
    assert tracker.message is not None
    tracker.message.reasoned.write(event.delta)


def _on_message_end(tracker: LifecycleTracker, event: events.MessageEnd) -> None:
    tracker.message = None
    tracker.messages.add(event.message_id)


def _on_tool_start(tracker: LifecycleTracker, event: events.ToolExecutionStart) -> None:
    tool = tracker.tools.get(event.tool_call_id)
    if tool is None:
        tool = tracker.tools[event.tool_call_id] = OpenTool(event.tool_call_id, event.tool_name)
    if tool.phase is not None:
        tracker.phase, tool.phase = tool.phase, None
    tracker.tool = tool


def _on_call_requested(tracker: LifecycleTracker, event: events.ToolCallRequested) -> None:
    tool = tracker.tools[event.tool_call_id]
    tool.attempt = event.attempt
    tool.input_hash = event.input_hash
    tool.requested = event


def _on_policy_evaluated(tracker: LifecycleTracker, event: events.ToolCallPolicyEvaluated) -> None:
    tracker.tools[event.tool_call_id].sources.append(event.said)


def _on_call_started(tracker: LifecycleTracker, event: events.ToolCallStarted) -> None:
    tracker.tools[event.tool_call_id].started = event


def _on_question_asked(tracker: LifecycleTracker, event: events.QuestionAsked) -> None:
    tracker.tools[event.tool_call_id].questions[event.question_id] = event


def _on_question_settled(
    tracker: LifecycleTracker, event: events.QuestionAnswered | events.QuestionRejected
) -> None:
    tracker.tools[event.tool_call_id].questions.pop(event.question_id, None)


def _on_tool_end(tracker: LifecycleTracker, event: events.ToolExecutionEnd) -> None:
    assert event.tool_call_id in tracker.tools, "the end of a call that is not open"
    del tracker.tools[event.tool_call_id]
    tracker.tool = None


def _on_turn_end(tracker: LifecycleTracker, _: events.TurnEnd) -> None:
    assert not tracker.tools, f"calls wait for their bracket: {', '.join(tracker.tools)}"
    tracker.messages.clear()


_REMEMBER: Final[dict[type[events.Event], Any]] = {
    events.AgentStart: _on_agent_start,
    events.TurnStart: _on_turn_start,
    events.ModelInput: _on_model_input,
    events.UsageReported: _on_usage_reported,
    events.MessageStart: _on_message_start,
    events.MessageUpdate: _on_message_update,
    events.ReasoningUpdate: _on_reasoning_update,
    events.MessageEnd: _on_message_end,
    events.ToolExecutionStart: _on_tool_start,
    events.ToolCallRequested: _on_call_requested,
    events.ToolCallPolicyEvaluated: _on_policy_evaluated,
    events.ToolCallStarted: _on_call_started,
    events.QuestionAsked: _on_question_asked,
    events.QuestionAnswered: _on_question_settled,
    events.QuestionRejected: _on_question_settled,
    events.ToolExecutionEnd: _on_tool_end,
    events.TurnEnd: _on_turn_end,
}
