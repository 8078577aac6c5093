"""The events of one tool call, made as the run stands. What happens, and in which order, is decided in
``runner``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from nousd.machine.lifecycle import tool_result_entry
from nousd.machine.long_texts import beginning, deltas
from nousd.runtimes.calls.admission import Admission, Admitted, Refused
from nousd.runtimes.calls.hooks import Remark, Shown
from nousd.runtimes.interface import TurnHost
from nousd.tools.interface import ToolResult
from nousd.wire import events
from nousd.wire.entries import ToolCall
from nousd.wire.optional import or_unset
from nousd.wire.tool_events import PolicySnapshot, PolicySource

_ATTEMPT: Final = 1
"""Nothing runs a call a second time yet."""


class CallEvents:
    """Makes the events of one call."""

    def __init__(self, host: TurnHost, call: ToolCall, admission: Admission) -> None:
        self._host = host
        self._call = call
        self._admission = admission

    @property
    def keys(self) -> dict[str, Any]:
        """The keys of every event of the call."""
        return {
            **self._host.where,
            "tool_call_id": self._call.tool_call_id,
            "tool_name": self._call.name,
            "attempt": _ATTEMPT,
            "input_hash": self._admission.input_hash,
        }

    @property
    def args(self) -> Mapping[str, Any]:
        """The arguments as they run, if they were found to fit, else as the model wrote them."""
        verdict = self._admission.verdict
        if isinstance(verdict, Admitted):
            final: Mapping[str, Any] = msgspec.to_builtins(verdict.args)
            return final
        return self._call.args

    def requested(self) -> list[events.Event]:
        """The call begins, and what every source that was asked says of it."""
        call = self._call
        own: dict[str, Any] = {
            "args": call.args,
            "runtime_tool_call_id": call.runtime_tool_call_id,
        }
        return [
            events.ToolExecutionStart(**self.keys, **own),
            events.ToolCallRequested(**self.keys, **own),
            *[self._evaluated(said) for said in self._admission.sources],
            *[self._evaluated(said.source, said.args) for said in self._admission.opinions],
            *self.remarks(self._admission.remarks),
        ]

    def _evaluated(self, said: PolicySource, args: Mapping[str, Any] | None = None) -> events.Event:
        return events.ToolCallPolicyEvaluated(
            **self.keys,
            source=said.source,
            decision=said.decision,
            reason=beginning(said.reason),
            rule=said.rule,
            args=UNSET if args is None else dict(args),
        )

    def remarks(self, remarks: Iterable[Remark]) -> list[events.Event]:
        """What went wrong with hooks."""
        return [self.warning(Refused(said.code, said.message)) for said in remarks]

    def started(self, reason: str) -> list[events.Event]:
        """The call may run, and runs."""
        return [
            events.ToolCallApproved(**self.keys, by="policy", reason=beginning(reason)),
            self.begun(),
        ]

    def begun(self) -> events.Event:
        """The call, which was approved, runs."""
        return events.ToolCallStarted(**self.keys)

    def denied(self, refused: Refused) -> events.Event:
        return events.ToolCallDenied(**self.keys, by=refused.by, reason=beginning(refused.message))

    def updates(self, text: str) -> list[events.Event]:
        """The call says something, in pieces that are small enough for an event."""
        return [events.ToolExecutionUpdate(**self.keys, delta=delta) for delta in deltas(text)]

    def warning(self, refused: Refused) -> events.Event:
        """What went wrong; the whole of a long text is in the call's result."""
        return events.Warning(
            **self._host.ledger.where, code=refused.code, message=beginning(refused.message)
        )

    def completed(
        self, shown: Shown, seconds: float, artifact_id: str | UnsetType = UNSET
    ) -> list[events.Event]:
        """A call that was started is over, after so many seconds."""
        result, changed_by = shown.result, shown.changed_by or UNSET
        verdict = self._admission.verdict
        assert isinstance(verdict, Admitted)
        completed = events.ToolCallCompleted(
            **self.keys,
            is_error=result.is_error,
            duration_ms=round(seconds * 1000),
            artifact_id=artifact_id,
            executed_by=verdict.tool.executed_by,
            execution_env=result.execution_env,
            policy_snapshot=PolicySnapshot(
                permission_mode=self._host.permission_mode,
                sources=(
                    *self._admission.sources,
                    *[said.source for said in self._admission.opinions],
                ),
            ),
            sandbox=or_unset(result.sandbox),
            changed_by=changed_by,
        )
        ends = self.ends(result, executed=True, artifact_id=artifact_id, changed_by=changed_by)
        return [completed, *ends]

    def ends(
        self,
        result: ToolResult,
        *,
        executed: bool,
        artifact_id: str | UnsetType = UNSET,
        changed_by: tuple[str, ...] | UnsetType = UNSET,
    ) -> list[events.Event]:
        """The call is over, and its result stands in the transcript."""
        host = self._host
        end = events.ToolExecutionEnd(
            **self.keys,
            result=result.text,
            is_error=result.is_error,
            executed=executed,
            artifact_id=artifact_id,
            changed_by=changed_by,
        )
        entry = tool_result_entry(
            end,
            parent_id=host.leaf_id,
            turn_kind=host.ledger.turn_kind,
            text=result.text,
            now=host.now(),
        )
        appended = events.EntryAppended(
            session_id=host.ledger.session_id, run_id=host.ledger.run_id, entry=entry
        )
        return [end, appended]
