"""Replays the recorded policy decisions on a run's tool calls, in order.

A replay does not use the current rules, mode, hooks and user, because they may have changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from nousd.machine.context import text_offload
from nousd.machine.policy.permission import Judgement, Verdict
from nousd.machine.policy.rules import Rule
from nousd.machine.session.state import SessionState
from nousd.replay.recorded import RecordedRun, run_of
from nousd.runtimes.calls.admission import input_hash
from nousd.runtimes.calls.attempts import GIVEN_AGAIN, EarlierAttempts, StoredResult
from nousd.runtimes.calls.hooks import HookOpinions, Opinion, ShownResult
from nousd.runtimes.calls.host import CallHost
from nousd.tools.interface import Tool, ToolResult
from nousd.wire import events
from nousd.wire.codec.decoding import decode_json
from nousd.wire.events import Event
from nousd.wire.objects.entries import MessageEntry, PermissionMode, ToolCall
from nousd.wire.objects.policy import PolicySnapshot, PolicySource
from nousd.wire.objects.tool_footprint import Access

_REPRODUCED_SOURCES: Final = frozenset({"registry", "session", "arguments", "replay"})
"""The policy sources whose opinion a replay reproduces by itself."""

_EXTENSION: Final = "extension"
_USER: Final = "user"

_BLOCKED: Final = "tool_blocked: "

_ALLOWED_BEFORE_RULES: Final = "every source allows it"
"""The reason in version 3 for every call that ran, because there were no rules."""


_UNLOGGED_SNAPSHOT: Final = PolicySnapshot(sources=())
"""Replaces a policy snapshot that is not logged."""


class JudgedCall(msgspec.Struct):
    """One tool call that reached the rules.

    Args:
        opinions: the opinions of hooks.
        approval_events: the events of its approval, up to the decision if there was one.
        mode: the permission mode at the decision; unknown for a call that did not start.
        hint: the hint to the user about its denial.
        changed_by: the extensions that changed its result.
        result_entry: the entry with the result for the model.
    """

    sources: list[PolicySource] = []
    opinions: list[Opinion] = []
    approval_events: list[Event] = []
    decision: events.ToolCallApproved | events.ToolCallDenied | None = None
    mode: PermissionMode = "auto"
    hint: str = ""
    changed_by: tuple[str, ...] = ()
    result_entry: MessageEntry | None = None

    @property
    def judgement(self) -> Judgement:
        """The recorded decision."""
        verdict: Verdict = "allow"
        if any(source.decision == "deny" for source in self.sources):
            verdict = "deny"
        elif self.approval_events:
            verdict = "ask"
        reason = self.sources[-1].reason if self.sources else _ALLOWED_BEFORE_RULES
        if verdict == "allow" and self.decision is not None:
            # If several sources allow a call, the decision need not contain the reason of the last one.
            reason = self.decision.reason
        return Judgement(verdict, reason, tuple(self.sources), "")

    @property
    def blocked(self) -> str:
        """The reason why a hook blocked the call; "" if none did."""
        if self.decision is None or self.decision.by != _EXTENSION:
            return ""
        return self.decision.reason.removeprefix(_BLOCKED)

    def note(self, event: Event, artifact_data: text_offload.ArtifactData) -> None:
        """Record an event of the call."""
        match event:
            case events.ToolCallPolicyEvaluated(source=source) if source in _REPRODUCED_SOURCES:
                pass
            case events.ToolCallPolicyEvaluated(source=source) if source == _EXTENSION:
                self.opinions.append(Opinion(event.said, _whole_args(event, artifact_data)))
            case events.ToolCallPolicyEvaluated() if (
                event.source != _USER and not self.approval_events
            ):
                self.sources.append(event.said)
            case events.PermissionRequested() | events.ToolCallPolicyEvaluated():
                self.approval_events.append(event)
            case events.ToolCallApproved() | events.ToolCallDenied():
                self.decision = event
                if self.approval_events:
                    self.approval_events.append(event)
            case events.Status() if self.approval_events and self.decision is None:
                self.approval_events.append(event)
            case events.Warning(hint=str(hint)):
                self.hint = hint
            case events.ToolCallStarted(permission_mode=str(mode)):
                self.mode = mode
            case events.ToolCallCompleted():
                self.changed_by = event.changed_by or ()
                # In earlier logs only this event has the mode.
                snapshot = event.policy_snapshot or _UNLOGGED_SNAPSHOT
                self.mode = snapshot.permission_mode or self.mode


def _whole_args(
    event: events.ToolCallPolicyEvaluated | events.ToolCallRequested,
    artifact_data: text_offload.ArtifactData,
) -> dict[str, Any] | None:
    if isinstance(event.args_ref, str):
        data = artifact_data[event.args_ref]
        assert data is not None
        args: dict[str, Any] = decode_json(data)
        return args
    return None if event.args is UNSET else event.args


def find_judged_calls(run: RecordedRun) -> Iterator[JudgedCall]:
    """Yield the tool calls of a run that reached the rules, in order."""
    call: JudgedCall | None = None
    fits = False
    for event in run.events:
        match event:
            case events.ToolCallRequested(run_id=run.run_id):
                call, fits = JudgedCall(), False
            case events.ToolCallPolicyEvaluated(source="arguments", decision="allow"):
                fits = True
            case events.EntryAppended(entry=MessageEntry(role="tool") as entry) if call:
                result_entry = text_offload.whole_entry(entry, run.artifact_data)
                assert isinstance(result_entry, MessageEntry)
                call.result_entry = result_entry
                if fits:
                    yield call
                call = None
            case _ if call is not None and run_of(event) == run.run_id:
                call.note(event, run.artifact_data)


class RecordedPermissions:
    """Returns the recorded decision on each call; see ``Permissions``."""

    def __init__(self, run: RecordedRun) -> None:
        self._calls = find_judged_calls(run)
        self.current = JudgedCall()
        """The call that the gate is judging."""

    def next(self) -> JudgedCall:
        """Make the next recorded call the current one, and return it."""
        self.current = next(self._calls, JudgedCall())
        return self.current

    def mode_of(self, state: SessionState) -> PermissionMode:  # noqa: ARG002
        return self.current.mode

    async def judge(
        self,
        state: SessionState,  # noqa: ARG002
        granted: Sequence[str],  # noqa: ARG002
        tool: Tool,  # noqa: ARG002
        access: Access,  # noqa: ARG002
    ) -> Judgement:
        return self.current.judgement

    async def rules_of(self, state: SessionState) -> Sequence[Rule]:  # noqa: ARG002
        return ()


class RecordedCallHooks:
    """Replays the hooks' opinions on each call and their changes to its result; see ``CallHooks``.
    Hooks run before the rules, so ``before`` advances to the next recorded call.
    """

    def __init__(self, permissions: RecordedPermissions) -> None:
        self._permissions = permissions

    async def before(
        self, _host: CallHost, _tool: Tool, _call: ToolCall, args: Any
    ) -> HookOpinions:
        call = self._permissions.next()
        changed = [opinion.args for opinion in call.opinions if opinion.args is not None]
        return HookOpinions(changed[-1] if changed else args, tuple(call.opinions), call.blocked)

    async def after(
        self, _host: CallHost, _call: ToolCall, _args: Any, result: ToolResult
    ) -> ShownResult:
        call = self._permissions.current
        if not call.changed_by or call.result_entry is None:
            return ShownResult(result)
        changed = msgspec.structs.replace(
            result, text=call.result_entry.text, is_error=call.result_entry.is_error is True
        )
        return ShownResult(changed, call.changed_by)


# --- earlier attempts ----------------------------------------------------------------------------


def earlier_attempts(run: RecordedRun) -> Mapping[str, EarlierAttempts]:
    """Return the earlier attempts of calls that were requested before, by call id."""
    found: dict[str, EarlierAttempts] = {}
    results = {
        event.entry.tool_call_id: text_offload.whole_entry(event.entry, run.artifact_data)
        for event in run.events
        if isinstance(event, events.EntryAppended) and isinstance(event.entry, MessageEntry)
    }
    requested: events.ToolCallRequested | None = None
    for event in run.events:
        match event:
            case events.ToolCallRequested(run_id=run.run_id):
                requested = event
                if event.attempt > 1:
                    found[event.tool_call_id] = EarlierAttempts(event.attempt - 1)
            case events.ToolCallPolicyEvaluated(source="replay") if requested is not None:
                result = results.get(event.tool_call_id)
                args = _whole_args(requested, run.artifact_data)
                found[event.tool_call_id] = _earlier(requested, args, event, result)
    return found


def _earlier(
    requested: events.ToolCallRequested,
    args: Any,
    opinion: events.ToolCallPolicyEvaluated,
    result: Any,
) -> EarlierAttempts:
    """Return the earlier attempts that a recorded opinion implies."""
    attempts = requested.attempt - 1
    if opinion.decision == "ask":
        return EarlierAttempts(attempts, may_have_run=True)
    if opinion.reason != GIVEN_AGAIN:
        return EarlierAttempts(attempts)
    call_hash = input_hash(requested.tool_name, args)
    stored = StoredResult(result.text, result.is_error is True, result.artifact_id)
    return EarlierAttempts(attempts, may_have_run=True, input_hash=call_hash, result=stored)
