"""What was decided about the run's tool calls, and by whom: played as it was, in the calls' order.

The rules, the mode and whoever was asked are outside of a play: they may be others by now.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from msgspec import UNSET

from nousd.machine.permission import Judgement, Verdict
from nousd.machine.rules import Rule
from nousd.machine.session import SessionState
from nousd.replay.recorded import RecordedRun
from nousd.tools.interface import Tool
from nousd.wire import events
from nousd.wire.access import Access
from nousd.wire.entries import PermissionMode
from nousd.wire.events import Event
from nousd.wire.tool_events import PolicySource

_BEFORE_RULES: Final = frozenset({"registry", "session", "arguments"})
"""The sources that say the same in a play by themselves."""

_USER: Final = "user"

_ALLOWED_BEFORE_RULES: Final = "every source allows it"
"""What version 3 said of every call that ran: there were no rules."""

Asked = tuple[Event, ...]
"""What was told of a question and its answer, from the first event to the decision if there was one."""


class JudgedCall(msgspec.Struct):
    """One call that came as far as the rules."""

    sources: list[PolicySource] = []
    asked: list[Event] = []
    decision: events.ToolCallApproved | events.ToolCallDenied | None = None

    @property
    def judgement(self) -> Judgement:
        """What the sources came to."""
        verdict: Verdict = "allow"
        if any(source.decision == "deny" for source in self.sources):
            verdict = "deny"
        elif self.asked:
            verdict = "ask"
        reason = self.sources[-1].reason if self.sources else _ALLOWED_BEFORE_RULES
        if verdict == "allow" and self.decision is not None:
            # Where several sources allow a call, the last one need not be what is named.
            reason = self.decision.reason
        return Judgement(verdict, reason, tuple(self.sources), "")


def judged_calls(run: RecordedRun) -> Iterator[JudgedCall]:
    """Yields the calls of a run that came as far as the rules, in their order."""
    call: JudgedCall | None = None
    fits = False
    for event in run.events:
        match event:
            case events.ToolCallRequested():
                call, fits = JudgedCall(), False
            case events.ToolCallPolicyEvaluated(source="arguments", decision="allow"):
                fits = True
            case _ if call is not None:
                _note(call, event)
        if call is not None and isinstance(event, events.ToolExecutionEnd):
            if fits:
                yield call
            call = None


def _note(call: JudgedCall, event: Event) -> None:
    match event:
        case events.ToolCallPolicyEvaluated(source=source) if source in _BEFORE_RULES:
            pass
        case events.ToolCallPolicyEvaluated() if event.source != _USER and not call.asked:
            said = PolicySource(
                source=event.source,
                decision=event.decision,
                reason=event.reason,
                rule=event.rule,
            )
            call.sources.append(said)
        case events.PermissionRequested() | events.ToolCallPolicyEvaluated():
            call.asked.append(event)
        case events.ToolCallApproved() | events.ToolCallDenied():
            call.decision = event
            if call.asked:
                call.asked.append(event)
        case events.Status() if call.asked and call.decision is None:
            call.asked.append(event)


class RecordedPermissions:
    """Says of each call what was said; see ``Permissions``."""

    def __init__(self, run: RecordedRun) -> None:
        self._calls = list(judged_calls(run))
        self._mode = _mode_of(run)
        self.current = JudgedCall()
        """The call that was judged last."""

    def mode_of(self, state: SessionState) -> PermissionMode:
        return state.permission_mode or self._mode

    async def judge(
        self,
        state: SessionState,  # noqa: ARG002
        granted: Sequence[str],  # noqa: ARG002
        tool: Tool,  # noqa: ARG002
        access: Access,  # noqa: ARG002
    ) -> Judgement:
        self.current = self._calls.pop(0) if self._calls else JudgedCall()
        return self.current.judgement

    async def rules_of(self, state: SessionState) -> Sequence[Rule]:  # noqa: ARG002
        return ()


def _mode_of(run: RecordedRun) -> PermissionMode:
    """Returns the mode of a session that had none of its own, as far as the run shows it."""
    for event in run.events:
        if isinstance(event, events.ToolCallCompleted) and event.policy_snapshot is not UNSET:
            return event.policy_snapshot.permission_mode
    return "auto"
