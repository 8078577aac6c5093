"""The events of a model call: its input and its cost."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from nousd.wire.events.base import Event
from nousd.wire.objects.entries import Sampling, Thinking, Usage


class Omitted(msgspec.Struct, frozen=True):
    """An entry of the context that the model receives only in part, or not at all."""

    entry_id: str
    reason: str


Saving = Literal["full", "previews", "compacted", "oldest_dropped"]
"""How a transcript was fitted into a model's window."""

Purpose = Literal["answer", "summary"]
"""The purpose of a model call: to answer, or to summarize the entries that a compaction cuts off."""


class Source(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The source of a part of the system prompt, used or left out."""

    kind: Literal[
        "system_prompt",
        "agent_prompt",
        "agents",
        "user_instructions",
        "project_instructions",
        "extension",
    ]
    enabled: bool
    path: str | UnsetType = UNSET
    extension: str | UnsetType = UNSET
    hash: str | UnsetType = UNSET
    bytes: int | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class ModelInput(Event, frozen=True, kw_only=True):
    """The input of a model call that is about to start, in figures and as an artifact."""

    model: str
    entries: int
    messages: int
    tokens_estimated: int
    tools: tuple[str, ...]
    omitted_count: int
    run_id: str | UnsetType = UNSET
    turn_id: str | UnsetType = UNSET
    purpose: Purpose | UnsetType = UNSET
    provider: str | UnsetType = UNSET
    thinking: Thinking | UnsetType = UNSET
    sampling: Sampling | UnsetType = UNSET
    context_window: int | UnsetType = UNSET
    input_hash: str | UnsetType = UNSET
    input_ref: str | UnsetType = UNSET
    rest_ref: str | UnsetType = UNSET
    strategy: tuple[Saving, ...] | UnsetType = UNSET
    sources: tuple[Source, ...] | UnsetType = UNSET
    omitted: tuple[Omitted, ...] | UnsetType = UNSET
    leaf_id: str | UnsetType = UNSET


class UsageReported(Event, frozen=True, kw_only=True):
    """The cost of one model call: tokens, milliseconds, and dollars where the price is known."""

    model: str
    usage: Usage | UnsetType = UNSET
    purpose: Purpose | UnsetType = UNSET
    run_id: str | UnsetType = UNSET
    turn_id: str | UnsetType = UNSET
    message_id: str | UnsetType = UNSET
    provider: str | UnsetType = UNSET
    first_token_ms: int | UnsetType = UNSET
    duration_ms: int | UnsetType = UNSET
    cost_usd: float | UnsetType = UNSET
    correlation_id: str | UnsetType = UNSET
    raw_ref: str | UnsetType = UNSET
