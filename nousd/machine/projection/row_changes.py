"""The changes that events make to the rows of sessions, entries, inputs, runs and tool calls.

Each can be applied to any rows: putting a row that exists changes nothing (facts are written once),
except that an input put again gets a new place, and a change to a missing row does nothing.
``row_projection`` decides which event makes which change; each store decides how to store a row.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from nousd.machine.session.settings import ChangedSettings
from nousd.wire import events
from nousd.wire.events.base import EndStatus
from nousd.wire.objects.entries import Entry
from nousd.wire.objects.inputs import QueuedInput
from nousd.wire.objects.policy import ToolCallState
from nousd.wire.objects.run_options import NOTHING_ASKED, RunRequest

InputState = Literal["pending", "consumed", "cleared"]


class PutSession(msgspec.Struct, frozen=True, kw_only=True):
    """Put a session. An id that was ever used, even by a deleted session, is never put again."""

    session_id: str
    created_at: str
    parent_id: str | None
    leaf_id: str | None
    settings: ChangedSettings
    seq: int
    ts: str


class CopyEntries(msgspec.Struct, frozen=True):
    """Give a branch every entry (and artifact) that its parent has now."""

    session_id: str
    parent_id: str


class UpdateSession(msgspec.Struct, frozen=True):
    """Change settings of a session."""

    session_id: str
    settings: ChangedSettings


class MoveLeaf(msgspec.Struct, frozen=True):
    """Move a session's leaf."""

    session_id: str
    leaf_id: str


class TouchSession(msgspec.Struct, frozen=True):
    """Record the number ``seq`` and the time ``ts`` of the newest event that counts as a use of the
    session, and the revision of its queue if that event set one.
    """

    session_id: str
    seq: int
    ts: str
    queue_revision: int | None = None


class ForgetSession(msgspec.Struct, frozen=True):
    """Delete a session: its events before number ``seq``, entries, inputs, runs and artifacts.

    Entries and artifacts that other sessions share stay. The id stays known as deleted, and is no longer
    active.
    """

    session_id: str
    seq: int


class SetDefaults(msgspec.Struct, frozen=True):
    """Change the settings of new sessions."""

    settings: ChangedSettings


class SetTrust(msgspec.Struct, frozen=True):
    """Trust a project file as long as it has that hash; None ends the trust."""

    path: str
    hash: str | None


class SetActiveSession(msgspec.Struct, frozen=True):
    """Make a session the daemon's active one."""

    session_id: str


class Deactivate(msgspec.Struct, frozen=True):
    """Make no session the active one, if this one is."""

    session_id: str


class PutEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Put an entry into a session's tree; ``seq`` is its position in the order of appending."""

    session_id: str
    entry: Entry
    parent_id: str | None
    role: str
    snippet: str
    seq: int


class UseArtifact(msgspec.Struct, frozen=True):
    """Record that a session refers to an artifact, which is kept as long as any session does."""

    session_id: str
    artifact_id: str


class PutInput(msgspec.Struct, frozen=True, kw_only=True):
    """Put a pending input; ``seq`` and ``index`` are its position in the queue."""

    session_id: str
    input: QueuedInput
    seq: int
    index: int


class EditInput(msgspec.Struct, frozen=True):
    """Replace a pending input; it keeps its position in the queue."""

    session_id: str
    input: QueuedInput


class MoveInput(msgspec.Struct, frozen=True):
    """Move a pending input directly before another one."""

    session_id: str
    input_id: str
    before_input_id: str


class SetInputState(msgspec.Struct, frozen=True):
    """Mark an input as no longer pending."""

    session_id: str
    input_id: str
    state: InputState


class PutRun(msgspec.Struct, frozen=True, kw_only=True):
    """Put a run; ``seq`` is its position among the runs."""

    run_id: str
    session_id: str
    started_at: str
    runtime: str
    model: str
    seq: int
    request: RunRequest = NOTHING_ASKED


class EndRun(msgspec.Struct, frozen=True, kw_only=True):
    """End a run."""

    run_id: str
    status: EndStatus
    ended_at: str
    error: str | None


class CountTurn(msgspec.Struct, frozen=True):
    """Count one more turn of a run."""

    run_id: str


class PutToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """Put an attempt at a tool call, requested by event number ``seq``."""

    tool_call_id: str
    attempt: int
    session_id: str
    run_id: str | None
    tool_name: str
    input_hash: str | None
    client_call_id: str | None
    seq: int
    ts: str


class SetToolCallState(msgspec.Struct, frozen=True, kw_only=True):
    """Change the state of an attempt; ``by`` names the source of a new decision."""

    tool_call_id: str
    attempt: int
    state: ToolCallState
    seq: int
    by: str | None = None


class EndToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """End an attempt: one that was denied stays so, one that was approved but did not start becomes
    ``not_started``, any other ``completed``.
    """

    tool_call_id: str
    attempt: int
    is_error: bool
    seq: int
    ts: str


class AddUsage(msgspec.Struct, frozen=True):
    """Add usage to a session, and to the run if the call belonged to one."""

    call: events.UsageReported


RowChange = (
    PutSession
    | CopyEntries
    | UpdateSession
    | MoveLeaf
    | TouchSession
    | ForgetSession
    | SetDefaults
    | SetTrust
    | SetActiveSession
    | Deactivate
    | PutEntry
    | UseArtifact
    | PutInput
    | EditInput
    | MoveInput
    | SetInputState
    | PutRun
    | EndRun
    | CountTurn
    | PutToolCall
    | SetToolCallState
    | EndToolCall
    | AddUsage
)

Changes = tuple[RowChange, ...]
