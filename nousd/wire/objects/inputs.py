"""Accepted inputs, and the number of pending ones, as clients, events and the store see them.

``nousd.machine.session.queue`` defines the order in which they are consumed.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from nousd.wire.objects.entries import Attachment


class QueuedInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An accepted input, or a message that was appended during a run and is not an entry yet."""

    input_id: str
    kind: Literal["prompt", "steer", "follow_up", "message"]
    text: str
    run_id: str | UnsetType = UNSET
    client_message_id: str | UnsetType = UNSET
    client_id: str | UnsetType = UNSET
    leaf_id: str | UnsetType = UNSET
    accepted_at: str | UnsetType = UNSET
    promoted_run_id: str | UnsetType = UNSET
    attachments: tuple[Attachment, ...] | UnsetType = UNSET
    changed_by: tuple[str, ...] | UnsetType = UNSET
    entry_id: str | UnsetType = UNSET
    request_hash: str | UnsetType = UNSET
    text_ref: str | UnsetType = UNSET
    text_bytes: int | UnsetType = UNSET


class PendingCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The number of pending inputs."""

    steer: int
    follow_up: int
