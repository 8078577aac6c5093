"""The lifecycle of a run: the events that may follow, and the open brackets.

A run is a bracket language: run > turn > (message | tool call). ``TRANSITIONS`` is that language as a
table; ``LifecycleTracker`` follows a run's events through it and remembers what is open, so that
``closing_events`` can compute the missing ends at any moment. The daemon uses that when a run is
stopped from outside, and recovery uses the same code on the events that a killed process left in the
log.

A tool call's bracket is its ``tool_execution_start`` and ``tool_execution_end``. Between them come its
decision and its outcome: requested, any number of evaluations, one approval or denial, and if approved,
started and completed.

A missing cell is a bug of ours, never of a client, so it is an assertion.
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
from nousd.wire.objects.entries import TurnKind
from nousd.wire.objects.policy import PolicySource


class Phase(Enum):
    """The phase of a run."""

    # Singletons: the hash of the name would be computed in Python, for every event.
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
    ENDED = "ended"


_REMARKS: Final[tuple[type[events.Event], ...]] = (
    events.Status,
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
)
"""Events that are allowed anywhere inside a run and change no phase."""

Transitions = Mapping[Phase, Mapping[type[events.Event], Phase]]

TRANSITIONS: Final[Transitions] = {
    # A prompt may move the leaf before it is accepted; all three are one step.
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
    # A call and its request are one step.
    Phase.CALL: {events.ToolCallRequested: Phase.REQUESTED},
    Phase.REQUESTED: {
        events.ToolCallPolicyEvaluated: Phase.REQUESTED,
        events.PermissionRequested: Phase.REQUESTED,
        events.ToolCallApproved: Phase.APPROVED,
        events.ToolCallDenied: Phase.DENIED,
    },
    # It ends without a start if the run is stopped just then.
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
    Phase.ENDED: {},
}
"""The possible next events of a run of the current version."""

_OF_VERSION_1: Final[Transitions] = {
    Phase.CALL: {
        events.ToolCallStarted: Phase.EXECUTING,
        events.ToolExecutionUpdate: Phase.CALL,
        events.ToolExecutionEnd: Phase.TURN,
    },
    Phase.EXECUTING: {events.ToolExecutionEnd: Phase.TURN},
}
"""In version 1 the only step of a call was its start."""

LOGGED: Final[Transitions] = {
    phase: {**next_, **_OF_VERSION_1.get(phase, {})} for phase, next_ in TRANSITIONS.items()
}
"""The possible next events in a log of any version: for reading, never for writing."""

OUTSIDE_OF_TURNS: Final = (Phase.BEFORE, Phase.RUN, Phase.ENDED)

STOP_REASONS: Final[dict[str, CutOff]] = {
    "cancelled": "aborted",
    "error": "error",
    "timeout": "timeout",
    "interrupted": "interrupted",
}
"""end status of a run -> stop reason of its open message or call."""


class OpenMessage(msgspec.Struct):
    """A message without an end; grows with each delta. ``is_counted`` is set once its model call was
    reported by ``usage_reported``.

    The deltas are joined as they come: a list of them would take many times the memory of the text.
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
    """A tool call with an open bracket; one that was ``started`` may have had an effect.

    ``questions`` are its unsettled questions by id; ``requests`` are the approval requests of its
    tasks.
    """

    tool_call_id: str
    tool_name: str
    attempt: int = 1
    input_hash: str | UnsetType = UNSET
    started: events.ToolCallStarted | None = None
    sources: list[PolicySource] = []
    questions: dict[str, events.QuestionAsked] = {}
    requests: dict[str, events.PermissionRequested] = {}

    @property
    def keys(self) -> dict[str, Any]:
        """The keys by which its events name it."""
        return {
            "tool_call_id": self.tool_call_id,
            "attempt": self.attempt,
            "tool_name": self.tool_name,
            "input_hash": self.input_hash,
        }


class LifecycleTracker:
    """Follows the events of one run and knows its open brackets.

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
        self.asked: events.ModelInput | None = None
        self.turn_kind: TurnKind = "resume"
        self.message: OpenMessage | None = None
        self.tool: OpenTool | None = None

    @property
    def turn_id(self) -> str:
        """The id of the open or last turn."""
        return str(self.turns)

    def note(self, event: events.Event) -> None:
        """Follow one event.

        Raises:
            AssertionError: the event cannot come here.
        """
        if getattr(event, "origin", UNSET) is not UNSET:
            self._note_of_task(event)
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

    def _note_of_task(self, event: events.Event) -> None:
        """Follow the requests of a subtask of the active call, and their ends."""
        assert self.phase is Phase.EXECUTING, f"{type(event).__name__} of a task in {self.phase}"
        assert self.tool is not None
        match event:
            case events.PermissionRequested():
                self.tool.requests[event.tool_call_id] = event
            case events.ToolCallApproved() | events.ToolCallDenied():
                self.tool.requests.pop(event.tool_call_id, None)
            case _:
                _REMEMBER[type(event)](self, event)

    @property
    def where(self) -> TurnKey:
        """The keys of an event in the open turn."""
        return {"session_id": self.session_id, "run_id": self.run_id, "turn_id": str(self.turns)}


def _start(tracker: LifecycleTracker, event: events.AgentStart) -> None:
    tracker.model = event.model


def _turn(tracker: LifecycleTracker, _: events.TurnStart) -> None:
    tracker.turns += 1
    tracker.turn_kind = "resume"


def _model_is_asked(tracker: LifecycleTracker, event: events.ModelInput) -> None:
    tracker.asked = event


def _counted(tracker: LifecycleTracker, event: events.UsageReported) -> None:
    if tracker.message is not None and tracker.message.message_id == event.message_id:
        tracker.message.is_counted = True


def _open_message(tracker: LifecycleTracker, event: events.MessageStart) -> None:
    tracker.message = OpenMessage(event.message_id, event.role)
    if event.turn_kind is not UNSET:
        tracker.turn_kind = event.turn_kind


def _delta(tracker: LifecycleTracker, event: events.MessageUpdate) -> None:
    assert tracker.message is not None
    tracker.message.streamed.write(event.delta)


def _reasoning(tracker: LifecycleTracker, event: events.ReasoningUpdate) -> None:
    assert tracker.message is not None
    tracker.message.reasoned.write(event.delta)


def _close_message(tracker: LifecycleTracker, _: events.MessageEnd) -> None:
    tracker.message = None


def _open_tool(tracker: LifecycleTracker, event: events.ToolExecutionStart) -> None:
    tracker.tool = OpenTool(event.tool_call_id, event.tool_name)


def _tool_requested(tracker: LifecycleTracker, event: events.ToolCallRequested) -> None:
    assert tracker.tool is not None
    tracker.tool.attempt = event.attempt
    tracker.tool.input_hash = event.input_hash


def _tool_judged(tracker: LifecycleTracker, event: events.ToolCallPolicyEvaluated) -> None:
    assert tracker.tool is not None
    tracker.tool.sources.append(event.said)


def _tool_began(tracker: LifecycleTracker, event: events.ToolCallStarted) -> None:
    assert tracker.tool is not None
    tracker.tool.started = event


def _question_asked(tracker: LifecycleTracker, event: events.QuestionAsked) -> None:
    assert tracker.tool is not None
    tracker.tool.questions[event.question_id] = event


def _question_settled(
    tracker: LifecycleTracker, event: events.QuestionAnswered | events.QuestionRejected
) -> None:
    assert tracker.tool is not None
    tracker.tool.questions.pop(event.question_id, None)


def _close_tool(tracker: LifecycleTracker, _: events.ToolExecutionEnd) -> None:
    tracker.tool = None


_REMEMBER: Final[dict[type[events.Event], Any]] = {
    events.AgentStart: _start,
    events.TurnStart: _turn,
    events.ModelInput: _model_is_asked,
    events.UsageReported: _counted,
    events.MessageStart: _open_message,
    events.MessageUpdate: _delta,
    events.ReasoningUpdate: _reasoning,
    events.MessageEnd: _close_message,
    events.ToolExecutionStart: _open_tool,
    events.ToolCallRequested: _tool_requested,
    events.ToolCallPolicyEvaluated: _tool_judged,
    events.ToolCallStarted: _tool_began,
    events.QuestionAsked: _question_asked,
    events.QuestionAnswered: _question_settled,
    events.QuestionRejected: _question_settled,
    events.ToolExecutionEnd: _close_tool,
}
