"""The lifecycle of a client's own call: its possible events, and the events that close it.

Such a call belongs to no run: its bracket reaches from ``tool_call_requested`` to ``tool_call_denied``
or ``tool_call_completed``. As with runs (``lifecycle``), the daemon tracks the events while it creates
them, and recovery tracks those that a killed process left in the log: there is one way to end it early.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nousd.machine.session.closing_events import build_interrupted_end, build_rejection
from nousd.machine.session.lifecycle import Phase
from nousd.wire import events
from nousd.wire.events.base import CutOff
from nousd.wire.events.tools import ToolCallEvent
from nousd.wire.objects.policy import PolicySource

_DECIDING: Final = (Phase.BEFORE, Phase.REQUESTED)

CALL_TRANSITIONS: Final[Mapping[Phase, Mapping[type[events.Event], Phase]]] = {
    Phase.BEFORE: {events.ToolCallRequested: Phase.REQUESTED},
    Phase.REQUESTED: {
        events.ToolCallPolicyEvaluated: Phase.REQUESTED,
        events.PermissionRequested: Phase.REQUESTED,
        events.ToolCallApproved: Phase.APPROVED,
        events.ToolCallDenied: Phase.ENDED,
    },
    # A call that is stopped at this point completes without a start.
    Phase.APPROVED: {
        events.ToolCallStarted: Phase.EXECUTING,
        events.ToolCallCompleted: Phase.ENDED,
    },
    Phase.EXECUTING: {
        events.ToolCallOutput: Phase.EXECUTING,
        events.QuestionAsked: Phase.EXECUTING,
        events.QuestionAnswered: Phase.EXECUTING,
        events.QuestionRejected: Phase.EXECUTING,
        events.ToolCallCompleted: Phase.ENDED,
    },
    Phase.ENDED: {},
}
"""The possible next events of a client's call."""


class CallLifecycle:
    """Tracks the events of one call and its open steps."""

    def __init__(self) -> None:
        self.phase = Phase.BEFORE
        self.call: dict[str, Any] = {}
        """The keys by which its events identify the call."""
        self._sources: list[PolicySource] = []
        self._started: events.ToolCallStarted | None = None
        self._questions: dict[str, events.QuestionAsked] = {}

    def note(self, event: events.Event) -> None:
        """Process one event; events that are not steps of the call change nothing.

        Raises:
            AssertionError: the event is not possible in this phase.
        """
        if not isinstance(event, ToolCallEvent):
            return
        after = CALL_TRANSITIONS[self.phase].get(type(event))
        assert after is not None, f"{type(event).__name__} in {self.phase}"
        self.phase = after
        self.call = event.call
        if isinstance(event, events.ToolCallPolicyEvaluated):
            self._sources.append(event.said)
        elif isinstance(event, events.ToolCallStarted):
            self._started = event
        elif isinstance(event, events.QuestionAsked):
            self._questions[event.question_id] = event
        elif isinstance(event, events.QuestionAnswered | events.QuestionRejected):
            self._questions.pop(event.question_id, None)

    def closing_events(self, reason: CutOff) -> tuple[events.Event, ...]:
        """Return the events that close a requested call; none if it has ended."""
        if self.phase is Phase.ENDED:
            return ()
        if self.phase in _DECIDING:
            return (events.ToolCallDenied(**self.call, by="stop", reason=reason),)
        completed = build_interrupted_end(
            self.call, self._sources, self._started, reason, result=f"tool_error: {reason}"
        )
        return (
            *[build_rejection(question, reason) for question in self._questions.values()],
            completed,
        )
