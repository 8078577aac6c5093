"""The payloads of the normalized view, one struct for each of the 19 event types.

Keys without a value are left out. Texts are those of the log; a text that the log stores as an artifact
is an ``ArtifactRef``, with the beginning of the text beside it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from nousd.wire.events.base import CutOff
from nousd.wire.events.models import Omitted, Purpose, Saving, Source
from nousd.wire.objects.entries import PermissionMode, StopReason, TurnKind
from nousd.wire.objects.field_types import OutputKind
from nousd.wire.objects.policy import ConfirmDecision, SandboxFacts

SCHEMA_VERSION: Final = 1
"""The version of these structs. It increases when a key changes its meaning or is removed."""


class Payload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all payloads."""


class ArtifactRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Bytes that are stored beside the log. The id is the hash of the bytes."""

    artifact_id: str
    content_type: str | UnsetType = UNSET
    size_bytes: int | UnsetType = UNSET
    name: str | UnsetType = UNSET


# --- messages --------------------------------------------------------------------------------


class TextBlock(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """A whole text."""

    text: str


class ArtifactBlock(
    ArtifactRef, frozen=True, kw_only=True, tag_field="type", tag="artifact_ref", omit_defaults=True
):
    """A file, or a text that is too long for an event; ``preview`` is its beginning."""

    preview: str | UnsetType = UNSET


ContentBlock = TextBlock | ArtifactBlock


class UserMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message of the user."""

    content: tuple[ContentBlock, ...]
    message_id: str
    role: Literal["user"] = msgspec.field(default_factory=lambda: "user")
    kind: TurnKind | UnsetType = UNSET
    client_message_id: str | UnsetType = UNSET


# --- sessions and tasks ----------------------------------------------------------------------


class SessionCreated(Payload, frozen=True, kw_only=True):
    """A session was created under this version of the contract."""

    contract_version: str
    created_at: str
    name: str | UnsetType = UNSET
    parent_id: str | UnsetType = UNSET
    workspace: str | UnsetType = UNSET
    permission_mode: PermissionMode | UnsetType = UNSET


class TaskStarted(Payload, frozen=True, kw_only=True):
    """A run begins, with the messages of the user; none if it continues the work of an earlier run."""

    messages: tuple[UserMessage, ...]
    runtime_version: str | UnsetType = UNSET


class TaskCompleted(Payload, frozen=True, kw_only=True):
    """The run ended by itself."""

    reason: str


ErrorCode = Literal["CONTEXT_TOO_LARGE", "AUTH_ERROR", "RUNTIME_ERROR", "INTERNAL"]
"""The failure of a task."""


class TaskFailed(Payload, frozen=True, kw_only=True):
    """The run failed. ``retryable`` is true if the same work may succeed later. ``cause`` is the
    daemon's own code, ``category`` the reason why a model call failed.
    """

    code: ErrorCode
    retryable: bool
    message: str
    hint: str
    cause: str | UnsetType = UNSET
    category: str | UnsetType = UNSET
    raw_ref: ArtifactRef | UnsetType = UNSET


class TaskStopped(Payload, frozen=True, kw_only=True):
    """The run was stopped from outside."""

    reason: str


# --- the runtime and its model ---------------------------------------------------------------


class RuntimeRequestStarted(Payload, frozen=True, kw_only=True):
    """The runtime works on an input. ``messages`` are the user's messages that ``task.started`` does not
    have: steers and follow-ups.
    """

    turn_id: str
    messages: tuple[UserMessage, ...]


class RuntimeRequestCompleted(Payload, frozen=True, kw_only=True):
    """The runtime has finished the input, or has received another one meanwhile."""

    turn_id: str


Strategy = Literal["none", "previews", "compact", "truncate_oldest"]
"""How the context was made to fit into the model's window: the strongest measure that was needed."""


class ContextWindow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the context fits into the model's window, in tokens; ``applied`` has every measure used."""

    strategy: Strategy
    estimated_tokens: int
    max_tokens: int | UnsetType = UNSET
    applied: tuple[Saving, ...] = ()


class ModelInput(Payload, frozen=True, kw_only=True):
    """The input of a model call that is about to start, as an artifact. ``omissions`` are the first of
    ``omitted_count`` entries that the model does not receive whole.
    """

    context_window: ContextWindow
    omitted_count: int
    omissions: tuple[Omitted, ...]
    messages: int
    tools: tuple[str, ...]
    input_ref: ArtifactRef | UnsetType = UNSET
    input_hash: str | UnsetType = UNSET
    rest_ref: ArtifactRef | UnsetType = UNSET
    implicit_sources: tuple[Source, ...] | UnsetType = UNSET
    purpose: Purpose | UnsetType = UNSET
    provider: str | UnsetType = UNSET


class ModelOutputDelta(Payload, frozen=True, kw_only=True):
    """A piece of a block of a message. Text is ``text_delta``. Reasoning is ``unknown_delta`` in a block
    of its own; so is the text of a subagent, with the call that started it. With ``joined_from``, the
    piece replaces every piece of the block from that number on.
    """

    block_id: str
    kind: Literal["text_delta", "unknown_delta"]
    delta: str
    joined_from: int | UnsetType = UNSET
    parent_tool_call_id: str | UnsetType = UNSET


class ModelOutputCompleted(Payload, frozen=True, kw_only=True):
    """A message of the model is complete; it has no content if it only calls tools."""

    message_id: str
    content: tuple[ContentBlock, ...]
    stop_reason: StopReason


class UsageReported(Payload, frozen=True, kw_only=True):
    """The usage of one model call. The tokens are left out if the provider does not report them."""

    input_tokens: int | UnsetType = UNSET
    cached_input_tokens: int | UnsetType = UNSET
    output_tokens: int | UnsetType = UNSET
    reasoning_tokens: int | UnsetType = UNSET
    total_tokens: int | UnsetType = UNSET
    cost_usd: float | UnsetType = UNSET
    duration_ms: int | UnsetType = UNSET
    first_token_ms: int | UnsetType = UNSET
    message_id: str | UnsetType = UNSET
    purpose: Purpose | UnsetType = UNSET
    provider: str | UnsetType = UNSET


# --- tool calls ------------------------------------------------------------------------------


class CallPayload(Payload, frozen=True, kw_only=True):
    """A step of one attempt at a tool call. ``attempt`` counts from 1."""

    tool_call_id: str
    attempt: Annotated[int, msgspec.Meta(ge=1)]
    name: str
    input_hash: str | UnsetType = UNSET


class ToolCallRequested(CallPayload, frozen=True, kw_only=True):
    """The call is requested. If ``input_ref`` has the whole input, ``input`` is an excerpt."""

    input: dict[str, Any]
    runtime_tool_call_id: str | UnsetType = UNSET
    input_ref: ArtifactRef | UnsetType = UNSET


Decider = Literal["runtime", "nousd", "user"]
"""The source of a decision: the agent program's own policy, the daemon's, or the user's answer."""


class ToolCallPolicyEvaluated(CallPayload, frozen=True, kw_only=True):
    """The opinion of one policy. ``policy`` is the policy's name in the daemon."""

    source: Decider
    result: Literal["allow", "deny", "ask"]
    policy: str
    reason: str
    rule: str | UnsetType = UNSET


class ToolCallApproved(CallPayload, frozen=True, kw_only=True):
    """The final decision: the call runs."""

    source: Decider
    reason: str
    decision: ConfirmDecision | UnsetType = UNSET
    rule: str | UnsetType = UNSET


class PolicyOpinion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The opinion of one policy in a snapshot; the keys are those of ``tool.call.policy_evaluated``."""

    source: Decider
    result: Literal["allow", "deny", "ask"]
    policy: str
    rule: str | UnsetType = UNSET


class PolicySnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The decision with the opinions that led to it, in order."""

    decision: Literal["allow", "deny"]
    sources: tuple[PolicyOpinion, ...]
    permission_mode: PermissionMode | UnsetType = UNSET


class ToolCallDenied(CallPayload, frozen=True, kw_only=True):
    """The final decision: the call does not run, and the model receives the reason."""

    source: Decider
    reason: str
    policy_snapshot: PolicySnapshot
    decision: ConfirmDecision | UnsetType = UNSET
    rule: str | UnsetType = UNSET


class ToolCallStarted(CallPayload, frozen=True, kw_only=True):
    """The call is about to run. With ``replayed`` it does not run again: its stored result is returned.
    With ``gated`` false, the agent program had already run it without asking.
    """

    executed_by: Literal["nousd", "runtime"]
    gated: Literal[False] | UnsetType = UNSET
    replayed: Literal[True] | UnsetType = UNSET


class ToolOutputDelta(CallPayload, frozen=True, kw_only=True):
    """A piece of the call's output. With ``joined_from``, the piece replaces every piece of the call
    from that number on.
    """

    stream: OutputKind
    delta: str
    joined_from: int | UnsetType = UNSET


class ToolOutputCompleted(CallPayload, frozen=True, kw_only=True):
    """The whole output by stream, or the beginning of a stream that is too long."""

    stdout: str | UnsetType = UNSET
    stderr: str | UnsetType = UNSET
    is_truncated: Literal[True] | UnsetType = UNSET


ExecutionEnv = Literal["nousd_host", "nousd_sandbox", "runtime_internal", "unknown"]
"""Where a call had its effects: on this machine, in a sandbox, or inside the agent program."""


class ToolCallCompleted(CallPayload, frozen=True, kw_only=True):
    """The call has ended, with the result for the model. ``result_preview`` is the result, or its
    beginning if ``result_ref`` has the whole.
    """

    is_error: bool
    executed_by: Literal["nousd", "runtime"]
    execution_env: ExecutionEnv
    policy_snapshot: PolicySnapshot
    result_preview: str
    result_ref: ArtifactRef | UnsetType = UNSET
    output_ref: ArtifactRef | UnsetType = UNSET
    sandbox: SandboxFacts | UnsetType = UNSET
    duration_ms: int | UnsetType = UNSET
    cut_off: CutOff | UnsetType = UNSET
    gated: Literal[False] | UnsetType = UNSET
    replayed: Literal[True] | UnsetType = UNSET


PAYLOADS: Final[dict[str, type[Payload]]] = {
    "session.created": SessionCreated,
    "task.started": TaskStarted,
    "runtime.request.started": RuntimeRequestStarted,
    "model.input": ModelInput,
    "model.output.delta": ModelOutputDelta,
    "model.output.completed": ModelOutputCompleted,
    "tool.call.requested": ToolCallRequested,
    "tool.call.policy_evaluated": ToolCallPolicyEvaluated,
    "tool.call.approved": ToolCallApproved,
    "tool.call.denied": ToolCallDenied,
    "tool.call.started": ToolCallStarted,
    "tool.output.delta": ToolOutputDelta,
    "tool.output.completed": ToolOutputCompleted,
    "tool.call.completed": ToolCallCompleted,
    "usage.reported": UsageReported,
    "runtime.request.completed": RuntimeRequestCompleted,
    "task.completed": TaskCompleted,
    "task.failed": TaskFailed,
    "task.stopped": TaskStopped,
}
"""type -> payload, for all types."""

TYPES: Final = {struct: name for name, struct in PAYLOADS.items()}
