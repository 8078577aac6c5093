"""The rows that events are projected to, as reads return them.

How they follow from events is in ``nousd.machine.projection.row_projection``, how they are kept in
``_rows_sqlite`` and ``memory.rows``.
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
    """A session as its events left it: its settings, its place in the tree and its cost."""

    session_id: str
    created_at: str
    updated_at: str
    parent_id: str | None = None
    leaf_id: str | None = None
    usage: UsageTotals | None = None


class InputRow(msgspec.Struct, frozen=True, kw_only=True):
    """An accepted input and its state."""

    input: QueuedInput
    session_id: str
    state: Literal["pending", "consumed", "cleared"]


class ToolCallRow(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a tool call: where it stands, and between which events its own are.

    Args:
        run_id: None for a call that a client made itself.
        seq: of the event that requested it.
        last_seq: of the newest event that is known to be its own.
        started: whether it may have had an effect.
        by: who decided on it.
        asked_seq: of the event that asked whether it may run; None if nobody was asked.
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
    """A stretch of the way from the root to a leaf, oldest first; ``has_more`` towards the root."""

    entries: tuple[Entry, ...]
    has_more: bool
