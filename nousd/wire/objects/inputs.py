"""Accepted inputs as clients, events and the store see them: one input, and how many wait.

In which order they are consumed is not known here (``nousd.machine.session.queue``).
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from nousd.wire.objects.entries import Attachment


class QueuedInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An accepted input. ``kind`` is ``prompt``, ``steer`` or ``follow_up``; ``leaf_id`` is the leaf a
    prompt was accepted on, ``promoted_run_id`` the run that a promoted follow-up became a steer of.
    ``changed_by`` names the extensions that changed its text before it was accepted.

    A ``message`` was appended during a run and waits for its place in the tree: ``entry_id`` is the
    entry that it becomes. For a prompt that is the entry which already holds the text.
    ``request_hash`` tells whether a second command under the same client message id has the same
    text.
    """

    input_id: str
    kind: Literal["prompt", "steer", "follow_up", "message"]
    text: str
    run_id: str | UnsetType = UNSET
    client_message_id: str | UnsetType = UNSET
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
    """How many inputs wait."""

    steer: int
    follow_up: int
