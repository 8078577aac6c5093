"""Builds the events of one tool call. ``runner`` decides what happens, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from nousd.machine.context.text_offload import beginning, deltas
from nousd.machine.session.closing_events import tool_result_entry
from nousd.runtimes.calls.admission import Admission, AdmittedCall, Refused
from nousd.runtimes.calls.hooks import Remark, ShownResult
from nousd.runtimes.calls.host import CallHost, TurnCallHost
from nousd.tools.interface import ToolResult
from nousd.tools.sandbox.trap_watch import remark_of
from nousd.wire import events
from nousd.wire.codec.unset import or_unset
from nousd.wire.objects.entries import ToolCall
from nousd.wire.objects.field_types import OutputKind
from nousd.wire.objects.policy import ExecutedBy, ObeyedFile, PolicySnapshot, PolicySource


class CallEvents:
    """Builds the events of a client's own call, whose request is already in the log."""

    gated: Literal[False] | UnsetType = UNSET
    """False for a call that the gate did not judge."""

    def __init__(self, host: CallHost, call: ToolCall, admission: Admission) -> None:
        self._host = host
        self._call = call
        self._admission = admission
        verdict = admission.verdict
        self.executed_by: ExecutedBy = (
            verdict.tool.executed_by if isinstance(verdict, AdmittedCall) else "nousd"
        )
        """The party whose code carries out the call, if it runs."""
        # Read once: a change of the mode while the call waits or runs applies only to later calls.
        self._mode = host.permission_mode
        self.user_answer: PolicySource | None = None
        """The user's answer, once there is one."""
        self.result = ToolResult("")
        """The result for the caller, once the call has ended."""

    @cached_property
    def keys(self) -> Mapping[str, Any]:
        """The keys of every event of the call."""
        return {
            **self._host.where,
            "tool_call_id": self._call.tool_call_id,
            "tool_name": self._call.name,
            "attempt": self._admission.attempt,
            "input_hash": self._admission.input_hash,
        }

    @property
    def args(self) -> Mapping[str, Any]:
        """The validated arguments, or the model's own if they are invalid."""
        verdict = self._admission.verdict
        if isinstance(verdict, AdmittedCall):
            final: Mapping[str, Any] = msgspec.to_builtins(verdict.args)
            return final
        return self._call.args

    def build_request(self) -> list[events.Event]:
        """Return the events that begin the call, with the opinion of each source."""
        return [
            *[self._build_evaluation(source) for source in self._admission.sources],
            *[
                self._build_evaluation(opinion.source, opinion.args)
                for opinion in self._admission.opinions
            ],
            *self.build_remark_warnings(self._admission.remarks),
        ]

    def _build_evaluation(
        self, source: PolicySource, args: Mapping[str, Any] | None = None
    ) -> events.Event:
        return events.ToolCallPolicyEvaluated(
            **self.keys,
            source=source.source,
            decision=source.decision,
            reason=beginning(source.reason),
            rule=source.rule,
            args=UNSET if args is None else dict(args),
        )

    def build_remark_warnings(self, remarks: Iterable[Remark]) -> list[events.Event]:
        """Return the warnings about hooks."""
        return [
            warning
            for remark in remarks
            for warning in self.build_warnings(Refused(remark.code, remark.message))
        ]

    def build_obeyed_warnings(
        self, files: Sequence[ObeyedFile], *, in_result: bool = False
    ) -> list[events.Event]:
        """Return the warnings that name the files a command left for programs to obey.

        Args:
            in_result: whether the result of the call names them, too.
        """
        # A call without a run has no warnings, so its output names the files.
        return [] if in_result or not files else self.build_updates(f"[{remark_of(files)}]")

    def build_allowed_start(self, reason: str) -> list[events.Event]:
        """Return the events of a call that is allowed and starts."""
        return [self.build_approval(reason), self.build_start()]

    def build_approval(self, reason: str) -> events.Event:
        """Return the event of a call that is allowed without approval."""
        return events.ToolCallApproved(**self.keys, by="policy", reason=beginning(reason))

    def build_start(self) -> events.Event:
        """Return the event of an approved call that starts."""
        return events.ToolCallStarted(
            **self.keys,
            executed_by=self._admitted.tool.executed_by,
            permission_mode=self._mode,
            gated=self.gated,
        )

    def build_denial(self, refused: Refused) -> events.Event:
        """Return the event of a call that is denied."""
        return events.ToolCallDenied(**self.keys, by=refused.by, reason=beginning(refused.message))

    def build_updates(
        self, text: str, stream: OutputKind | UnsetType = UNSET
    ) -> list[events.Event]:
        """Return the events of a piece of output, split to the size limit of an event.

        Args:
            stream: the kind of the output, if the tool knows it.
        """
        return [
            events.ToolCallOutput(**self.keys, delta=delta, stream=stream) for delta in deltas(text)
        ]

    def build_warnings(self, _refused: Refused) -> list[events.Event]:
        """Return the warnings about the call; the end of a call without a run reports them instead."""
        return []

    def build_completion(
        self, shown: ShownResult, seconds: float, artifact_id: str | UnsetType = UNSET
    ) -> list[events.Event]:
        """Return the end of a started call, with its duration."""
        result, changed_by = shown.result, shown.changed_by or UNSET
        completed = events.ToolCallCompleted(
            **self.keys,
            is_error=result.is_error,
            duration_ms=round(seconds * 1000),
            artifact_id=artifact_id,
            executed_by=self._admitted.tool.executed_by,
            gated=self.gated,
            execution_env=result.execution_env,
            policy_snapshot=PolicySnapshot(permission_mode=self._mode, sources=self._sources),
            sandbox=or_unset(result.sandbox),
            changed_by=changed_by,
            result=self._inline_result(result),
        )
        end_events = self.build_end(
            result, executed=True, artifact_id=artifact_id, changed_by=changed_by
        )
        return [completed, *end_events]

    @property
    def _admitted(self) -> AdmittedCall:
        verdict = self._admission.verdict
        assert isinstance(verdict, AdmittedCall), "a call that may not run does not start"
        return verdict

    @property
    def _sources(self) -> tuple[PolicySource, ...]:
        """Return the opinions of all sources, in the order of the log."""
        opinions = [opinion.source for opinion in self._admission.opinions]
        user_answer = () if self.user_answer is None else (self.user_answer,)
        return (*self._admission.sources, *opinions, *user_answer)

    def _inline_result(self, result: ToolResult) -> str | UnsetType:
        """Return the result for the event that completes the call; UNSET if it is stored elsewhere."""
        return result.text

    def build_end(
        self,
        result: ToolResult,
        *,
        executed: bool,  # noqa: ARG002
        artifact_id: str | UnsetType = UNSET,  # noqa: ARG002
        changed_by: tuple[str, ...] | UnsetType = UNSET,  # noqa: ARG002
    ) -> list[events.Event]:
        """Return the end of the call, with its result for the transcript, if it has one."""
        self.result = result
        return []


class TurnCallEvents(CallEvents):
    """Builds the events of one call of a turn: every client receives them, and the transcript contains
    the result.
    """

    def __init__(self, turn: TurnCallHost, call: ToolCall, admission: Admission) -> None:
        super().__init__(turn, call, admission)
        self._turn = turn

    def build_request(self) -> list[events.Event]:
        """See ``CallEvents.build_request``."""
        call = self._call
        request_fields: dict[str, Any] = {
            "args": call.args,
            "runtime_tool_call_id": call.runtime_tool_call_id,
        }
        return [
            events.ToolExecutionStart(**self.keys, **request_fields),
            events.ToolCallRequested(**self.keys, **request_fields),
            *super().build_request(),
        ]

    def build_updates(
        self, text: str, stream: OutputKind | UnsetType = UNSET
    ) -> list[events.Event]:
        """See ``CallEvents.build_updates``."""
        return [
            events.ToolExecutionUpdate(**self.keys, delta=delta, stream=stream)
            for delta in deltas(text)
        ]

    def build_warnings(self, refused: Refused) -> list[events.Event]:
        """See ``CallEvents.build_warnings``. The call's result contains a long text in full."""
        warning = events.Warning(
            **self._turn.tracker.where,
            code=refused.code,
            message=beginning(refused.message),
            hint=refused.hint or UNSET,
        )
        return [warning]

    def build_obeyed_warnings(
        self,
        files: Sequence[ObeyedFile],
        *,
        in_result: bool = False,  # noqa: ARG002
    ) -> list[events.Event]:
        """See ``CallEvents.build_obeyed_warnings``."""
        return self.build_warnings(Refused("obeyed_files_left", remark_of(files))) if files else []

    def _inline_result(self, _result: ToolResult) -> UnsetType:
        return UNSET

    def build_end(
        self,
        result: ToolResult,
        *,
        executed: bool,
        artifact_id: str | UnsetType = UNSET,
        changed_by: tuple[str, ...] | UnsetType = UNSET,
    ) -> list[events.Event]:
        """See ``CallEvents.build_end``."""
        self.result = result
        turn = self._turn
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
            parent_id=turn.leaf_id,
            turn_kind=turn.tracker.turn_kind,
            text=result.text,
            now=turn.now(),
        )
        appended = events.EntryAppended(
            session_id=turn.tracker.session_id, run_id=turn.tracker.run_id, entry=entry
        )
        return [end, appended]


class ObservedCallEvents(TurnCallEvents):
    """Builds the events of a call that an agent program has carried out without asking."""

    gated: Literal[False] | UnsetType = False

    def __init__(self, turn: TurnCallHost, call: ToolCall, admission: Admission) -> None:
        super().__init__(turn, call, admission)
        self.executed_by = "runtime"

    def build_approval(self, reason: str) -> events.Event:
        """See ``CallEvents.build_approval``."""
        return events.ToolCallApproved(**self.keys, by="runtime", reason=beginning(reason))


def events_of(host: CallHost, call: ToolCall, admission: Admission) -> CallEvents:
    """Return the builder of a call's events, for a turn or for a client."""
    turn = host.turn
    if turn is None:
        return CallEvents(host, call, admission)
    return TurnCallEvents(turn, call, admission)
