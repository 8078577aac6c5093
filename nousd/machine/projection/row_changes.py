"""The changes that events make to the rows of sessions, entries, inputs, runs and tool calls.

Each can be applied whatever rows there are: a row that is put stays as it was first put (facts are
written once), and a change to a row that is not there changes nothing. Which event makes which
change is decided in ``projection``; how a row is kept each store knows.
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
    """A session begins. An id that was ever used, also by a deleted session, is never put again."""

    session_id: str
    created_at: str
    parent_id: str | None
    leaf_id: str | None
    settings: ChangedSettings
    seq: int
    ts: str


class CopyEntries(msgspec.Struct, frozen=True):
    """A branch holds every entry (and artifact) that its parent holds now."""

    session_id: str
    parent_id: str


class UpdateSession(msgspec.Struct, frozen=True):
    """Settings of a session change."""

    session_id: str
    settings: ChangedSettings


class MoveLeaf(msgspec.Struct, frozen=True):
    """Work of a session goes on from another entry."""

    session_id: str
    leaf_id: str


class TouchSession(msgspec.Struct, frozen=True):
    """The session's newest durable event is number ``seq``, of the time ``ts``."""

    session_id: str
    seq: int
    ts: str


class ForgetSession(msgspec.Struct, frozen=True):
    """All of a session goes: its events before number ``seq``, entries, inputs, runs and artifacts.

    What branches share stays with them. The id stays known as deleted, and is no longer active.
    """

    session_id: str
    seq: int


class SetDefaults(msgspec.Struct, frozen=True):
    """New sessions begin with these settings."""

    settings: ChangedSettings


class SetTrust(msgspec.Struct, frozen=True):
    """The user trusts a file of a project while it has that hash; with None, no more."""

    path: str
    hash: str | None


class SetActiveSession(msgspec.Struct, frozen=True):
    """This session is the daemon's active one."""

    session_id: str


class PutEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry joins a session's tree; ``seq`` is its place in the order of appending."""

    session_id: str
    entry: Entry
    parent_id: str | None
    role: str
    snippet: str
    seq: int


class UseArtifact(msgspec.Struct, frozen=True):
    """A session refers to an artifact, which is kept as long as any session does."""

    session_id: str
    artifact_id: str


class PutInput(msgspec.Struct, frozen=True, kw_only=True):
    """An input is pending as it stands here; ``seq`` and ``index`` are its place in the queue."""

    session_id: str
    input: QueuedInput
    seq: int
    index: int


class SetInputState(msgspec.Struct, frozen=True):
    """An input is no longer pending."""

    session_id: str
    input_id: str
    state: InputState


class PutRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run begins; ``seq`` is its place among the runs."""

    run_id: str
    session_id: str
    started_at: str
    runtime: str
    model: str
    seq: int
    request: RunRequest = NOTHING_ASKED


class EndRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run has ended."""

    run_id: str
    status: EndStatus
    ended_at: str
    error: str | None


class CountTurn(msgspec.Struct, frozen=True):
    """A run has begun one more turn."""

    run_id: str


class PutToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt at a tool call is requested, by event number ``seq``."""

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
    """An attempt changes its state; ``by`` names the source of the decision, if that is new."""

    tool_call_id: str
    attempt: int
    state: ToolCallState
    seq: int
    by: str | None = None


class EndToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt has ended: it stays denied if it was, is ``not_started`` if it had not begun, and
    ``completed`` else.
    """

    tool_call_id: str
    attempt: int
    is_error: bool
    seq: int
    ts: str


class AddUsage(msgspec.Struct, frozen=True):
    """A session, and the run if the call was one of a run, has cost this much more."""

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
    | PutEntry
    | UseArtifact
    | PutInput
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
