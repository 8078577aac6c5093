"""Converting values of the log to those of the normalized view."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import UNSET, UnsetType

from nousd.errors import without_category
from nousd.views.normalized.payloads import (
    ArtifactBlock,
    ArtifactRef,
    ContentBlock,
    ContextWindow,
    Decider,
    ErrorCode,
    ExecutionEnv,
    ModelInput,
    Payload,
    PolicyOpinion,
    PolicySnapshot,
    Strategy,
    TaskCompleted,
    TaskFailed,
    TaskStopped,
    TextBlock,
    UsageReported,
    UserMessage,
)
from nousd.wire import events
from nousd.wire.events.models import Saving
from nousd.wire.objects import policy
from nousd.wire.objects.entries import PermissionMode

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"


def artifact(
    artifact_id: str | UnsetType,
    content_type: str | UnsetType = UNSET,
    size_bytes: int | UnsetType = UNSET,
) -> ArtifactRef | UnsetType:
    """Return a reference to an artifact; UNSET if there is none."""
    if artifact_id is UNSET:
        return UNSET
    return ArtifactRef(artifact_id=artifact_id, content_type=content_type, size_bytes=size_bytes)


def text_content(
    text: str, ref: str | UnsetType = UNSET, size_bytes: int | UnsetType = UNSET
) -> tuple[ContentBlock, ...]:
    """Return the blocks of a text; empty for an empty text."""
    if ref is not UNSET:
        return (
            ArtifactBlock(artifact_id=ref, content_type=TEXT, size_bytes=size_bytes, preview=text),
        )
    return (TextBlock(text=text),) if text else ()


def user_message(event: events.MessageStart) -> UserMessage:
    """Return a message of the user, with its files."""
    files = (
        ArtifactBlock(
            artifact_id=attached.artifact_id,
            content_type=attached.media_type,
            size_bytes=attached.size_bytes,
            name=attached.name,
        )
        for attached in event.attachments or ()
    )
    return UserMessage(
        message_id=event.message_id,
        kind=event.turn_kind,
        client_message_id=event.client_message_id,
        content=(*text_content(event.text or "", event.text_ref, event.text_bytes), *files),
    )


# --- models ----------------------------------------------------------------------------------

_STRATEGIES: Final[dict[Saving, Strategy]] = {
    "full": "none",
    "previews": "previews",
    "compacted": "compact",
    "oldest_dropped": "truncate_oldest",
}
"""measure that fits a context into the window -> its name in the view, from the weakest measure on."""


def model_input(event: events.ModelInput) -> ModelInput:
    """Return the input of a model call."""
    applied = event.strategy or ()
    strongest: Saving = max(applied, key=list(_STRATEGIES).index, default="full")
    return ModelInput(
        input_ref=artifact(event.input_ref, JSON),
        input_hash=event.input_hash,
        rest_ref=artifact(event.rest_ref, JSON),
        context_window=ContextWindow(
            strategy=_STRATEGIES[strongest],
            estimated_tokens=event.tokens_estimated,
            max_tokens=event.context_window,
            applied=applied,
        ),
        omitted_count=event.omitted_count,
        omissions=event.omitted or (),
        implicit_sources=event.sources,
        messages=event.messages,
        tools=event.tools,
        purpose=event.purpose,
        provider=event.provider,
    )


def usage(event: events.UsageReported) -> UsageReported:
    """Return the usage of a model call."""
    counts = event.usage
    tokens = {}
    if counts is not UNSET:
        tokens = {
            "input_tokens": counts.input,
            "cached_input_tokens": counts.cache_read,
            "output_tokens": counts.output,
            "reasoning_tokens": counts.reasoning,
            "total_tokens": counts.total,
        }
    return UsageReported(
        **tokens,
        cost_usd=event.cost_usd,
        duration_ms=event.duration_ms,
        first_token_ms=event.first_token_ms,
        message_id=event.message_id,
        purpose=event.purpose,
        provider=event.provider,
    )


# --- policies --------------------------------------------------------------------------------


def decider(source: str) -> Decider:
    """Return the view's name for a policy source, or for the decider of a call."""
    return source if source in ("runtime", "user") else "nousd"  # type: ignore[return-value]


def opinion(source: policy.PolicySource) -> PolicyOpinion | None:
    """Return the opinion of a policy; None if it abstained."""
    if source.decision == "abstain":
        return None
    return PolicyOpinion(
        source=decider(source.source),
        result=source.decision,
        policy=source.source,
        rule=source.rule,
    )


def snapshot(
    decision: Literal["allow", "deny"],
    sources: list[policy.PolicySource],
    mode: PermissionMode | UnsetType = UNSET,
) -> PolicySnapshot:
    """Return a decision with the opinions that led to it."""
    opinions = [rendered for source in sources if (rendered := opinion(source)) is not None]
    return PolicySnapshot(decision=decision, sources=tuple(opinions), permission_mode=mode)


def to_executor(by: policy.ExecutedBy | UnsetType) -> Literal["nousd", "runtime"]:
    """Return who carried out a call: the agent program or the daemon."""
    return "runtime" if by == "runtime" else "nousd"


def execution_env(
    env: policy.ExecutionEnv | UnsetType, by: policy.ExecutedBy | UnsetType
) -> ExecutionEnv:
    """Return where a call had its effects."""
    if by == "runtime":
        return "runtime_internal"
    match env:
        case "host":
            return "nousd_host"
        case "sandbox":
            return "nousd_sandbox"
    return "unknown"


# --- ends of runs ----------------------------------------------------------------------------

_CODES: Final[dict[str, ErrorCode]] = {
    "context_length": "CONTEXT_TOO_LARGE",
    "context_too_large": "CONTEXT_TOO_LARGE",
    "authentication": "AUTH_ERROR",
    "permission_denied": "AUTH_ERROR",
    "not_configured": "AUTH_ERROR",
    "internal_error": "INTERNAL",
}
"""category of a failed model call, or code of an ``error`` event -> code of the view."""

_TEMPORARY_FAILURES: Final = frozenset(
    {"rate_limit", "overloaded", "server_error", "timeout", "unreachable", "agent_failed"}
)
"""Temporary failures, as categories of model calls or as codes: the same work may succeed later."""

_HINTS: Final[dict[ErrorCode, str]] = {
    "CONTEXT_TOO_LARGE": "compact the session, or choose a model with a larger window",
    "AUTH_ERROR": "check the key or the login of the provider or runtime",
    "RUNTIME_ERROR": "resume the session, or send the message again",
    "INTERNAL": "look into the daemon's log, then resume the session",
}
"""code of the view -> hint, for errors without a hint in the log."""

_MESSAGES: Final = {
    "error": "the run failed",
    "timeout": "the run was silent for too long",
    "interrupted": "the daemon was stopped during the run",
}
"""status -> message, for runs that ended without a message."""


def task_end(end: events.AgentEnd, error: events.Error | None) -> Payload:
    """Return the end of a run.

    Args:
        error: the run's last ``error`` event.
    """
    if end.status == "completed":
        return TaskCompleted(reason="completed")
    if end.status == "cancelled":
        return TaskStopped(reason=end.error or "aborted")
    category = end.category
    if error is not None and category is UNSET:
        category = error.category
    cause = UNSET if error is None else error.code
    code: ErrorCode = "RUNTIME_ERROR"
    for word in (category, cause):
        if word is not UNSET and word in _CODES:
            code = _CODES[word]
            break
    error_message = "" if error is None else error.message
    message = without_category(
        category or None, end.error or error_message or _MESSAGES[end.status]
    )
    hint = UNSET if error is None else error.hint
    return TaskFailed(
        code=code,
        retryable=end.status in ("timeout", "interrupted")
        or not _TEMPORARY_FAILURES.isdisjoint((category, cause)),
        message=message,
        hint=hint or _HINTS[code],
        cause=cause,
        category=category,
        raw_ref=artifact(UNSET if error is None else error.raw_ref),
    )
