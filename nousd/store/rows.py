"""The rows that events are projected to, in the form that reads return.

``nousd.machine.projection.row_projection`` derives them from events; ``sqlite.rows`` and
``memory.rows`` store them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from nousd.machine.session.settings import DefaultSettings, SessionSettings
from nousd.wire.objects.entries import Entry, UsageTotals
from nousd.wire.objects.inputs import QueuedInput
from nousd.wire.objects.policy import ToolCallState


class SessionRow(SessionSettings, frozen=True, kw_only=True):
    """A session after its events: its settings, its place in the tree, its queue's revision and its
    cost.
    """

    session_id: str
    created_at: str
    updated_at: str
    parent_id: str | None = None
    leaf_id: str | None = None
    queue_revision: int = 0
    usage: UsageTotals | None = None


class InputRow(msgspec.Struct, frozen=True, kw_only=True):
    """An accepted input and its state."""

    input: QueuedInput
    session_id: str
    state: Literal["pending", "consumed", "cleared"]


class ToolCallRow(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a tool call: its state and the range of its events.

    Args:
        run_id: None for a client's own call.
        seq: number of the event that requested it.
        last_seq: number of the newest event of the attempt.
        started: whether it may have had an effect.
        by: the source that decided on it.
        asked_seq: number of the approval request; None if there was none.
    """

    tool_call_id: str
    attempt: int
    session_id: str
    run_id: str | None
    seq: int
    last_seq: int
    tool_name: str
    input_hash: str | None
    client_call_id: str | None
    state: ToolCallState
    requested_at: str
    started: bool = False
    ended_at: str | None = None
    is_error: bool | None = None
    by: str | None = None
    asked_seq: int | None = None


class Defaults(DefaultSettings, frozen=True, kw_only=True):
    """The settings of new sessions, and the active session.

    ``trusted`` are the files of projects that the user trusts: path -> the hash that it must have.
    """

    active_session_id: str | None = None
    trusted: Mapping[str, str] = {}


class Path(msgspec.Struct, frozen=True):
    """A part of the path from the root to a leaf, oldest first; ``has_more`` towards the root."""

    entries: tuple[Entry, ...]
    has_more: bool
