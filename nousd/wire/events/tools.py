"""The events of tool calls: the frozen ones, and the steps for subscribers that ask for them.

The steps (``tool_call_*``, ``permission_requested``) belong to a run, or to none if a client called the
tool itself. Keys that logs of earlier versions may lack have a default; current versions always write
``input_hash``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from nousd.wire.events.base import CutOff, Event, TurnEvent
from nousd.wire.objects.entries import PermissionMode
from nousd.wire.objects.field_types import OutputKind
from nousd.wire.objects.policy import (
    ConfirmDecision,
    ExecutedBy,
    ExecutionEnv,
    PolicyDecision,
    PolicySnapshot,
    PolicySource,
    SandboxFacts,
)
from nousd.wire.objects.questions import QuestionAnswer, UserQuestion
from nousd.wire.objects.workers import Origin

# --- frozen: sent to every client -------------------------------------------------------------


class ToolExecutionEvent(TurnEvent, frozen=True, kw_only=True):
    """Base of the tool call events that every client receives."""

    tool_call_id: str
    tool_name: str


class ToolExecutionStart(ToolExecutionEvent, frozen=True, kw_only=True):
    """A tool call is next; it may still be skipped or denied."""

    args: dict[str, Any]
    runtime_tool_call_id: str | UnsetType = UNSET
    args_ref: str | UnsetType = UNSET
    args_bytes: int | UnsetType = UNSET
    attempt: int | UnsetType = UNSET
    input_hash: str | UnsetType = UNSET


class ToolExecutionUpdate(ToolExecutionEvent, frozen=True, kw_only=True):
    """A piece of a tool's output."""

    delta: str
    joined_from: str | UnsetType = UNSET
    attempt: int | UnsetType = UNSET
    input_hash: str | UnsetType = UNSET
    stream: OutputKind | UnsetType = UNSET


class ToolExecutionEnd(ToolExecutionEvent, frozen=True, kw_only=True):
    """The tool call has ended."""

    result: str
    is_error: bool
    executed: bool
    artifact_id: str | UnsetType = UNSET
    changed_by: tuple[str, ...] | UnsetType = UNSET
    text_ref: str | UnsetType = UNSET
    text_bytes: int | UnsetType = UNSET
    attempt: int | UnsetType = UNSET
    input_hash: str | UnsetType = UNSET


# --- the steps of a call ---------------------------------------------------------------------


class ToolCallEvent(Event, frozen=True, kw_only=True):
    """A step of one tool call.

    ``attempt`` counts the requests of the same call, from 1. ``input_hash`` is the hash of the tool's
    name and of the arguments that run, or would run. A client's own call has neither run nor turn.
    """

    run_id: str | UnsetType = UNSET
    turn_id: str | UnsetType = UNSET
    tool_call_id: str
    attempt: Annotated[int, msgspec.Meta(ge=1)]
    tool_name: str
    input_hash: str | UnsetType = UNSET

    @property
    def call(self) -> dict[str, Any]:
        """The keys that identify the call in each of its events."""
        return {key: getattr(self, key) for key in ToolCallEvent.__struct_fields__}


class ToolCallRequested(ToolCallEvent, frozen=True, kw_only=True):
    """A tool call is next; the policy decision follows."""

    args: dict[str, Any]
    runtime_tool_call_id: str | UnsetType = UNSET
    client_call_id: str | UnsetType = UNSET
    args_ref: str | UnsetType = UNSET
    args_bytes: int | UnsetType = UNSET
    client_id: str | UnsetType = UNSET
    runtime: str | UnsetType = UNSET


class ToolCallPolicyEvaluated(ToolCallEvent, frozen=True, kw_only=True):
    """The decision of one policy source about the call."""

    source: str
    decision: PolicyDecision
    reason: str
    rule: str | UnsetType = UNSET
    args: dict[str, Any] | UnsetType = UNSET
    args_ref: str | UnsetType = UNSET
    args_bytes: int | UnsetType = UNSET

    @property
    def said(self) -> PolicySource:
        """The decision, without the keys of the call."""
        return PolicySource(
            source=self.source, decision=self.decision, reason=self.reason, rule=self.rule
        )


class PermissionRequested(ToolCallEvent, frozen=True, kw_only=True):
    """The user is asked to approve the call, which waits until ``expires_at``."""

    input_hash: str
    args: dict[str, Any]
    reason: str
    expires_at: str
    requested_at: str | UnsetType = UNSET
    rule: str | UnsetType = UNSET
    outside: tuple[str, ...] | UnsetType = UNSET
    args_ref: str | UnsetType = UNSET
    args_bytes: int | UnsetType = UNSET
    origin: Origin | UnsetType = UNSET


class ToolCallApproved(ToolCallEvent, frozen=True, kw_only=True):
    """The final decision about the call: it may run."""

    by: str
    reason: str
    decision: ConfirmDecision | UnsetType = UNSET
    rule: str | UnsetType = UNSET
    origin: Origin | UnsetType = UNSET
    client_id: str | UnsetType = UNSET


class ToolCallDenied(ToolCallEvent, frozen=True, kw_only=True):
    """The final decision about the call: it does not run."""

    by: str
    reason: str
    decision: ConfirmDecision | UnsetType = UNSET
    rule: str | UnsetType = UNSET
    origin: Origin | UnsetType = UNSET
    client_id: str | UnsetType = UNSET


class ToolCallStarted(ToolCallEvent, frozen=True, kw_only=True):
    """The call is about to have an effect; from here on it is never repeated automatically."""

    executed_by: ExecutedBy | UnsetType = UNSET
    permission_mode: PermissionMode | UnsetType = UNSET
    gated: Literal[False] | UnsetType = UNSET


class ToolCallOutput(ToolCallEvent, frozen=True, kw_only=True):
    """Output of a client's own call, or of a call whose ``tool_execution_start`` is still held back."""

    delta: str
    joined_from: str | UnsetType = UNSET
    stream: OutputKind | UnsetType = UNSET


class ToolCallCompleted(ToolCallEvent, frozen=True, kw_only=True):
    """A started call has ended; the event has either ``duration_ms`` or ``stop_reason``."""

    is_error: bool
    duration_ms: int | UnsetType = UNSET
    stop_reason: CutOff | UnsetType = UNSET
    artifact_id: str | UnsetType = UNSET
    executed_by: ExecutedBy | UnsetType = UNSET
    gated: Literal[False] | UnsetType = UNSET
    execution_env: ExecutionEnv | UnsetType = UNSET
    policy_snapshot: PolicySnapshot | UnsetType = UNSET
    sandbox: SandboxFacts | UnsetType = UNSET
    changed_by: tuple[str, ...] | UnsetType = UNSET
    result: str | UnsetType = UNSET
    text_ref: str | UnsetType = UNSET
    text_bytes: int | UnsetType = UNSET


class QuestionAsked(ToolCallEvent, frozen=True, kw_only=True):
    """A running call asks the user questions, and waits until ``expires_at``."""

    question_id: str
    questions: tuple[UserQuestion, ...]
    expires_at: str
    origin: Origin | UnsetType = UNSET


class QuestionAnswered(ToolCallEvent, frozen=True, kw_only=True):
    """The user has answered: one answer for each question, in order."""

    question_id: str
    answers: tuple[QuestionAnswer, ...]
    origin: Origin | UnsetType = UNSET
    client_id: str | UnsetType = UNSET


class QuestionRejected(ToolCallEvent, frozen=True, kw_only=True):
    """A question ended without an answer."""

    question_id: str
    by: Literal["user", "timeout", "stop", "steer"]
    reason: str
    origin: Origin | UnsetType = UNSET
    client_id: str | UnsetType = UNSET
