"""The rows of the projections, in the form that queries return.

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
    """A session: its settings, its position in the tree, the revision of its queue, and its usage."""

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
        started: whether it was started and may have had an effect.
        by: the source of the decision.
        asked_seq: number of the event that requested approval; None if there was none.
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

    ``trusted`` maps the path of each project file that the user trusts to its expected hash.
    """

    active_session_id: str | None = None
    trusted: Mapping[str, str] = {}


class Path(msgspec.Struct, frozen=True):
    """A part of a path, oldest entry first. ``has_more`` tells whether it continues towards the root."""

    entries: tuple[Entry, ...]
    has_more: bool
