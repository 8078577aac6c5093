"""The events around one model call: what the model is given, and what the call cost."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from nousd.wire.events.base import Event
from nousd.wire.objects.entries import Sampling, Thinking, Usage


class Omitted(msgspec.Struct, frozen=True):
    """An entry of the context that the model is not given, or not whole; ``reason`` is for programs.

    ``empty``: an answer without text and calls. ``no_call``: a result that no call waits for.
    ``preview``: only the beginning of its text is given. ``attachment``: a file was left out that the
    model cannot take. ``oldest``: it did not fit.
    """

    entry_id: str
    reason: str


Saving = Literal["full", "previews", "compacted", "oldest_dropped"]
"""How a transcript was fitted into a model's window."""

Purpose = Literal["answer", "summary"]
"""What a model is asked for: to go on, or to summarise what a compaction cuts off."""


class Source(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a part of the system prompt came from, or might have.

    Without ``hash`` nothing of it was used. ``hash`` and ``bytes`` are of the text as it was used, in
    UTF-8. ``reason`` says why none or not all of it was used: ``off``, ``not_found``, ``not_a_file``,
    ``outside``, ``unreadable``, ``empty``, ``not_utf8``, ``cut``, ``no_room``. ``extension`` names the
    one that added the part for this run.
    """

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
    """A model is about to be asked; what it is given, in figures and as an artifact.

    One for each model call, further attempts at the same call included. ``input_hash`` is of the
    neutral input's canonical JSON, ``input_ref`` the artifact that leads to all its parts, ``rest_ref``
    the one that holds everything but the messages. ``entries`` counts what of the transcript stands in
    the context (a compaction for all that it stands for), ``messages`` what the model is given for
    them. ``tokens_estimated`` is of everything it is given, ``context_window`` what it can take.
    ``omitted`` names the oldest of the ``omitted_count`` entries that it is not told, or not whole.

    A summary that was asked for by hand belongs to no run. ``sampling`` is what was asked for; it is not
    sent to a family of models that is known to refuse it. Of the keys that may be missing, logs of
    earlier versions have ``omitted`` and ``leaf_id`` alone.
    """

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
    """What one model call cost: tokens, milliseconds, and dollars where the price is known.

    One for each call that a provider answered, if only in part. Without ``usage`` the provider did not
    report tokens. A summary that was asked for by hand belongs to no run. ``correlation_id`` is what the
    run's prompt gave.
    """

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
