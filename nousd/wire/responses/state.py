"""The response to ``get_state``."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from nousd.wire.objects.entries import PermissionMode, Thinking, UsageTotals
from nousd.wire.objects.field_types import QueueMode
from nousd.wire.objects.inputs import PendingCounts
from nousd.wire.objects.workspaces import OverrideInForce
from nousd.wire.responses.base import Response, RunState
from nousd.wire.responses.runs import ActiveRun


class OpenMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is being streamed, with its text so far."""

    message_id: str
    role: str
    text: str


class State(Response, frozen=True, kw_only=True):
    """The state of a session, as of ``cursor``."""

    run_state: RunState
    run_id: str
    session_id: str
    steering_mode: QueueMode
    follow_up_mode: QueueMode
    pending_counts: PendingCounts
    queue_revision: int
    cursor: str
    runs: tuple[ActiveRun, ...]
    provider: str
    model: str
    permission_mode: PermissionMode
    workspace: str
    override: OverrideInForce | UnsetType = UNSET
    thinking: Thinking | UnsetType = UNSET
    leaf_id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    open_message: OpenMessage | UnsetType = UNSET
    usage: UsageTotals | UnsetType = UNSET
    runtime: str | UnsetType = UNSET
    runtime_model: str | UnsetType = UNSET
    runtime_namespace: str | UnsetType = UNSET
