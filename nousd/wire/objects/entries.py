"""The nodes of a session's tree, as clients see them and as the log stores them.

An entry is written once and never changed. ``id`` and ``parent_id`` make the tree; the path from
the root to a leaf is the transcript (protocol/v1.md, "Nouns").
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from nousd.wire.limits import OUTPUT_TOKENS_MAX, TEMPERATURE_MAX, TOP_P_MAX

TurnKind = Literal["prompt", "steer", "follow_up", "resume"]
"""The kind of input of a turn. ``resume`` continues an unanswered leaf and has no input of its own."""

StopReason = Literal["stop", "length", "tool_use", "aborted", "error", "interrupted", "timeout"]
"""Why an assistant message ended. ``aborted``, ``error``, ``interrupted`` and ``timeout`` leave
partial text; ``tool_use`` is followed by tool calls."""


Thinking = Literal["off", "low", "medium", "high"]
"""How much a model reasons before it answers."""

PermissionMode = Literal["ask", "auto", "yolo"]
"""Which tool calls need the user's approval where no rule decides."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a model samples its answer, and its maximum length. The provider decides omitted values."""

    temperature: Annotated[float, Meta(ge=0, le=TEMPERATURE_MAX)] | UnsetType = UNSET
    top_p: Annotated[float, Meta(ge=0, le=TOP_P_MAX)] | UnsetType = UNSET
    max_tokens: Annotated[int, Meta(ge=1, le=OUTPUT_TOKENS_MAX)] | UnsetType = UNSET


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens of one model call, as the provider reported them."""

    input: int
    output: int
    total: int
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0


class UsageTotals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sums over several model calls."""

    calls: int
    input: int
    output: int
    total: int
    duration_ms: int
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    cost_usd: float | UnsetType = UNSET
    uncounted_calls: int = 0
    unpriced_calls: int = 0


class Attachment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that belongs to a user's text; its bytes are the artifact."""

    artifact_id: str
    media_type: str
    size_bytes: int
    name: str | UnsetType = UNSET


class ReasoningBlock(msgspec.Struct, frozen=True, kw_only=True):
    """Reasoning in the form in which its provider expects it back, such as a signed block; opaque to
    others.
    """

    dialect: str
    data: dict[str, Any]


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool call in a model's answer."""

    tool_call_id: str
    runtime_tool_call_id: str
    name: str
    args: dict[str, Any]
    args_ref: str | UnsetType = UNSET
    args_bytes: int | UnsetType = UNSET


class MessageEntry(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message", omit_defaults=True
):
    """One message of the transcript: of the user, of the assistant, or the result of a tool."""

    id: str
    parent_id: str | UnsetType = UNSET
    role: Literal["user", "assistant", "tool"]
    text: str
    run_id: str
    turn_kind: TurnKind
    created_at: str
    pending: Literal[True] | UnsetType = UNSET
    input_ids: tuple[str, ...] | UnsetType = UNSET
    client_message_id: str | UnsetType = UNSET
    client_id: str | UnsetType = UNSET
    text_ref: str | UnsetType = UNSET
    text_bytes: int | UnsetType = UNSET
    attachments: tuple[Attachment, ...] | UnsetType = UNSET
    provider: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_blocks: tuple[ReasoningBlock, ...] | UnsetType = UNSET
    tool_calls: tuple[ToolCall, ...] | UnsetType = UNSET
    stop_reason: StopReason | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    error: str | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET
    tool_name: str | UnsetType = UNSET
    is_error: bool | UnsetType = UNSET
    executed: bool | UnsetType = UNSET
    artifact_id: str | UnsetType = UNSET


class CompactionEntry(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="compaction",
    omit_defaults=True,
):
    """From here on models receive ``summary`` instead of all entries before ``first_kept_entry_id``."""

    id: str
    parent_id: str | UnsetType = UNSET
    summary: str
    first_kept_entry_id: str
    tokens_before: int
    trigger: Literal["manual", "auto", "overflow"]
    created_at: str
    run_id: str | UnsetType = UNSET
    instruction: str | UnsetType = UNSET


Entry = MessageEntry | CompactionEntry
"""A node of the tree; ``type`` tells its kind."""


def parent_of(entry: Entry) -> str | None:
    """Return the id of the entry's parent, or None for a root."""
    return None if entry.parent_id is UNSET else entry.parent_id
