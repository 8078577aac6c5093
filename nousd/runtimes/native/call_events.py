"""The events of one tool call, made as the run stands. What happens, and in which order, is decided in
``tool_calls``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from msgspec import UNSET, UnsetType

from nousd.machine.lifecycle import tool_result_entry
from nousd.machine.long_texts import beginning, deltas
from nousd.runtimes.interface import TurnHost
from nousd.runtimes.native.admission import Evaluation, Refused
from nousd.tools.interface import ToolResult
from nousd.wire import events
from nousd.wire.entries import ToolCall

_ATTEMPT: Final = 1
"""Nothing runs a call a second time yet."""


class CallEvents:
    """Makes the events of one call."""

    def __init__(self, host: TurnHost, call: ToolCall) -> None:
        self._host = host
        self._call = call

    @property
    def _shown(self) -> dict[str, Any]:
        """The keys of the ``tool_execution_*`` events."""
        return {
            **self._host.ledger.where,
            "tool_call_id": self._call.tool_call_id,
            "tool_name": self._call.name,
        }

    @property
    def _known(self) -> dict[str, Any]:
        """The keys of the ``tool_call_*`` events."""
        return self._shown | {"attempt": _ATTEMPT}

    def requested(self, evaluations: Iterable[Evaluation]) -> list[events.Event]:
        """The call begins, and what every source that was asked says of it."""
        call = self._call
        own: dict[str, Any] = {
            "args": call.args,
            "runtime_tool_call_id": call.runtime_tool_call_id,
        }
        return [
            events.ToolExecutionStart(**self._shown, **own),
            events.ToolCallRequested(**self._known, **own),
            *[
                events.ToolCallPolicyEvaluated(
                    **self._known,
                    source=evaluation.source,
                    decision="allow" if evaluation.allows else "deny",
                    reason=beginning(evaluation.reason),
                )
                for evaluation in evaluations
            ],
        ]

    def started(self) -> list[events.Event]:
        """The call may run, and runs."""
        return [
            events.ToolCallApproved(**self._known, by="policy", reason="every source allows it"),
            events.ToolCallStarted(**self._known),
        ]

    def denied(self, refused: Refused) -> events.Event:
        return events.ToolCallDenied(
            **self._known, by=refused.by, reason=beginning(refused.message)
        )

    def updates(self, text: str) -> list[events.Event]:
        """The call says something, in pieces that are small enough for an event."""
        return [events.ToolExecutionUpdate(**self._shown, delta=delta) for delta in deltas(text)]

    def warning(self, refused: Refused) -> events.Event:
        """What went wrong; the whole of a long text is in the call's result."""
        return events.Warning(
            **self._host.ledger.where, code=refused.code, message=beginning(refused.message)
        )

    def completed(
        self, result: ToolResult, seconds: float, artifact_id: str | UnsetType = UNSET
    ) -> list[events.Event]:
        """A call that was started is over, after so many seconds."""
        completed = events.ToolCallCompleted(
            **self._known,
            is_error=result.is_error,
            duration_ms=round(seconds * 1000),
            artifact_id=artifact_id,
        )
        return [completed, *self.ends(result, executed=True, artifact_id=artifact_id)]

    def ends(
        self, result: ToolResult, *, executed: bool, artifact_id: str | UnsetType = UNSET
    ) -> list[events.Event]:
        """The call is over, and its result stands in the transcript."""
        host = self._host
        end = events.ToolExecutionEnd(
            **self._shown,
            result=result.text,
            is_error=result.is_error,
            executed=executed,
            artifact_id=artifact_id,
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
