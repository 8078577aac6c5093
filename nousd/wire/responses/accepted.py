"""The response to commands that have no response type of their own."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from nousd.wire.objects.entries import PermissionMode, Thinking
from nousd.wire.objects.field_types import QueueMode
from nousd.wire.objects.inputs import QueuedInput
from nousd.wire.objects.policy import ConfirmDecision
from nousd.wire.objects.remarks import Remark
from nousd.wire.responses.base import Response


class Accepted(Response, frozen=True, kw_only=True):
    """The command was accepted and is durable."""

    command: str
    run_id: str | UnsetType = UNSET
    session_id: str | UnsetType = UNSET
    leaf_id: str | UnsetType = UNSET
    input_id: str | UnsetType = UNSET
    entry_id: str | UnsetType = UNSET
    repeated: Literal[True] | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET
    count: int | UnsetType = UNSET
    mode: QueueMode | PermissionMode | UnsetType = UNSET
    provider: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    level: Thinking | UnsetType = UNSET
    runtime: str | UnsetType = UNSET
    decision: ConfirmDecision | UnsetType = UNSET
    rule: str | UnsetType = UNSET
    path: str | UnsetType = UNSET
    cleared: tuple[QueuedInput, ...] | UnsetType = UNSET
    queue_revision: int | UnsetType = UNSET
    handled_by: str | UnsetType = UNSET
    reply: str | UnsetType = UNSET
    warnings: tuple[Remark, ...] | UnsetType = UNSET
