"""Responses about runs: records, active runs, and the result of a run that a client waited for."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from nousd.wire.objects.entries import UsageTotals
from nousd.wire.objects.field_types import OutputKind
from nousd.wire.objects.inputs import PendingCounts, QueuedInput
from nousd.wire.objects.remarks import Remark
from nousd.wire.objects.run_options import RunOptions
from nousd.wire.objects.workers import TaskOrigin
from nousd.wire.responses.base import Response, RunState

RunStatus = Literal["running", "completed", "cancelled", "error", "timeout", "interrupted"]
"""The status of a run; all but ``running`` are final."""


class FlatEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event as ``result.events`` shows it: flat, with ``turn`` as a number."""

    type: str
    run_id: str
    id: str
    ts: str
    turn: int | UnsetType = UNSET
    message_id: str | UnsetType = UNSET
    role: str | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    stream: OutputKind | UnsetType = UNSET
    text: str | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET
    tool_name: str | UnsetType = UNSET
    is_error: bool | UnsetType = UNSET
    code: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    cause: str | UnsetType = UNSET
    hint: str | UnsetType = UNSET
    status: str | UnsetType = UNSET


class Result(Response, frozen=True, kw_only=True):
    """The outcome of a run that the client waited for."""

    output: str
    events: tuple[FlatEvent, ...]
    session_id: str
    run_id: str
    status: RunStatus
    leaf_id: str | UnsetType = UNSET
    events_truncated: bool | UnsetType = UNSET
    handled_by: str | UnsetType = UNSET
    warnings: tuple[Remark, ...] | UnsetType = UNSET


class ActiveRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run that has not ended."""

    run_id: str
    session_id: str
    run_state: RunState
    started_at: str
    last_activity_at: str | UnsetType = UNSET
    client_id: str | UnsetType = UNSET
    agent_id: str | UnsetType = UNSET
    agent_profile: str | UnsetType = UNSET
    correlation_id: str | UnsetType = UNSET
    origin: TaskOrigin | UnsetType = UNSET


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of a run."""

    run_id: str
    session_id: str
    status: RunStatus
    started_at: str
    runtime: str
    model: str
    turns: int
    last_activity_at: str | UnsetType = UNSET
    ended_at: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    usage: UsageTotals | UnsetType = UNSET
    client_id: str | UnsetType = UNSET
    agent_id: str | UnsetType = UNSET
    agent_profile: str | UnsetType = UNSET
    correlation_id: str | UnsetType = UNSET
    options: RunOptions | UnsetType = UNSET


class Runs(Response, frozen=True, kw_only=True):
    """A page of run records."""

    runs: tuple[RunRecord, ...]
    has_more: bool


class Run(Response, frozen=True, kw_only=True):
    """The record of one run."""

    run: RunRecord


class Queue(Response, frozen=True, kw_only=True):
    """The pending inputs in the order in which turns will consume them."""

    session_id: str
    inputs: tuple[QueuedInput, ...]
    pending_counts: PendingCounts
    queue_revision: int
    cursor: str
