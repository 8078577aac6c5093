"""One struct per event of v1: the ``payload`` of a line on the event socket and in the log.

Thirteen types are frozen (``FROZEN_EVENTS``); the others are additions that only subscribers who
ask for them receive. Fields without a default are required keys; ``session_id`` is on every event.

Events are facts. Everything the daemon knows is a fold over them, so an event carries what a reader
needs to fold it and never a reference to something outside the log.

This module has the frozen types, the events of runs and queues, and the tables of all types; the other
events are in modules by subject.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import UNSET, UnsetType

from nousd.wire.events.base import EndStatus, Event, RunEvent, TurnEvent
from nousd.wire.events.daemon import InputHandled, McpServerStatus, TrustUpdated
from nousd.wire.events.models import ModelInput, UsageReported
from nousd.wire.events.sessions import (
    AgentSession,
    SessionActivated,
    SessionAttached,
    SessionCreated,
    SessionDeleted,
    SessionDeletionScheduled,
    SessionRestored,
    SessionSeen,
    SessionUpdated,
    TodoUpdated,
    WorkspaceOverrideExpired,
    WorkspaceOverrideGranted,
)
from nousd.wire.events.tools import (
    PermissionRequested,
    QuestionAnswered,
    QuestionAsked,
    QuestionRejected,
    ToolCallApproved,
    ToolCallCompleted,
    ToolCallDenied,
    ToolCallEvent,
    ToolCallOutput,
    ToolCallPolicyEvaluated,
    ToolCallRequested,
    ToolCallStarted,
    ToolExecutionEnd,
    ToolExecutionStart,
    ToolExecutionUpdate,
)
from nousd.wire.objects.entries import Attachment, Entry, StopReason, TurnKind, Usage
from nousd.wire.objects.inputs import PendingCounts, QueuedInput
from nousd.wire.objects.run_options import RunOptions
from nousd.wire.objects.workers import TaskOrigin

# --- the thirteen frozen types ---------------------------------------------------------------


class AgentStart(RunEvent, frozen=True, kw_only=True):
    """A run begins.

    ``runtime_version`` is the version of the agent program that executes the run.
    ``v1_scope`` is present if clients that name no session reach the run from its start. ``task``, the
    call that the run works for, is present if it is the run of a task.
    """

    runtime: str
    model: str
    v1_scope: Literal[True] | UnsetType = UNSET
    task: TaskOrigin | UnsetType = UNSET
    client_id: str | UnsetType = UNSET
    agent_id: str | UnsetType = UNSET
    agent_profile: str | UnsetType = UNSET
    correlation_id: str | UnsetType = UNSET
    options: RunOptions | UnsetType = UNSET
    runtime_version: str | UnsetType = UNSET


class AgentEnd(RunEvent, frozen=True, kw_only=True):
    """The run has ended; its session accepts the next prompt."""

    status: EndStatus
    error: str | UnsetType = UNSET
    category: str | UnsetType = UNSET


class TurnStart(TurnEvent, frozen=True, kw_only=True):
    """A turn begins: an input is being handled."""


class TurnEnd(TurnEvent, frozen=True, kw_only=True):
    """The turn has ended."""


class MessageStart(TurnEvent, frozen=True, kw_only=True):
    """A message begins. A user message has its text here."""

    message_id: str
    role: Literal["user", "assistant"]
    text: str | UnsetType = UNSET
    turn_kind: TurnKind | UnsetType = UNSET
    input_ids: tuple[str, ...] | UnsetType = UNSET
    client_message_id: str | UnsetType = UNSET
    client_id: str | UnsetType = UNSET
    text_ref: str | UnsetType = UNSET
    text_bytes: int | UnsetType = UNSET
    attachments: tuple[Attachment, ...] | UnsetType = UNSET


class MessageUpdate(TurnEvent, frozen=True, kw_only=True):
    """A piece of an assistant message."""

    message_id: str
    delta: str
    joined_from: str | UnsetType = UNSET


class MessageEnd(TurnEvent, frozen=True, kw_only=True):
    """The message is complete."""

    message_id: str
    text: str
    stop_reason: StopReason | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    text_ref: str | UnsetType = UNSET
    text_bytes: int | UnsetType = UNSET
    raw_ref: str | UnsetType = UNSET


class Status(RunEvent, frozen=True, kw_only=True):
    """A remark about the run."""

    message: str
    turn_id: str | UnsetType = UNSET


class Warning(RunEvent, frozen=True, kw_only=True):
    """Something went wrong; the run continues or is already ending."""

    code: str
    message: str
    turn_id: str | UnsetType = UNSET
    hint: str | UnsetType = UNSET
    raw_ref: str | UnsetType = UNSET


class Error(RunEvent, frozen=True, kw_only=True):
    """The run cannot continue; its closing events follow."""

    code: str
    message: str
    cause: str
    turn_id: str | UnsetType = UNSET
    hint: str | UnsetType = UNSET
    raw_ref: str | UnsetType = UNSET
    category: str | UnsetType = UNSET


# --- additions -------------------------------------------------------------------------------


class EntryAppended(Event, frozen=True, kw_only=True):
    """An entry joined the tree and became the leaf."""

    entry: Entry
    run_id: str | UnsetType = UNSET


class QueueUpdate(Event, frozen=True, kw_only=True):
    """The pending inputs changed."""

    change: Literal["accepted", "consumed", "cleared", "promoted", "edited", "moved", "delivering"]
    inputs: tuple[QueuedInput, ...]
    pending_counts: PendingCounts
    run_id: str | UnsetType = UNSET
    client_id: str | UnsetType = UNSET
    queue_revision: int | UnsetType = UNSET
    before_input_id: str | UnsetType = UNSET


class RunAborting(RunEvent, frozen=True, kw_only=True):
    """An abort was accepted; the run's closing events follow."""

    keep_queue: Literal[True] | UnsetType = UNSET
    client_id: str | UnsetType = UNSET


class RunConflict(RunEvent, frozen=True, kw_only=True):
    """A second run was requested and refused. Reported at most once a second for each active run."""

    client_id: str | UnsetType = UNSET


class V1ScopeEntered(RunEvent, frozen=True, kw_only=True):
    """The session of an active run became the active one, so clients that name no session reach it."""


class SessionDeleteDeferred(RunEvent, frozen=True, kw_only=True):
    """The deletion of a session with ``abort`` is deferred until its active run has stopped."""


class ReasoningUpdate(TurnEvent, frozen=True, kw_only=True):
    """A piece of the model's reasoning, which is never part of the message's text."""

    delta: str
    message_id: str
    joined_from: str | UnsetType = UNSET


class SubagentText(TurnEvent, frozen=True, kw_only=True):
    """A text from a subagent of the agent program to its agent; it is not part of a message."""

    text: str
    runtime_tool_call_id: str
    parent_tool_call_id: str | UnsetType = UNSET
    raw_ref: str | UnsetType = UNSET


FROZEN_EVENTS: Final[dict[str, type[Event]]] = {
    "agent_start": AgentStart,
    "agent_end": AgentEnd,
    "turn_start": TurnStart,
    "turn_end": TurnEnd,
    "message_start": MessageStart,
    "message_update": MessageUpdate,
    "message_end": MessageEnd,
    "tool_execution_start": ToolExecutionStart,
    "tool_execution_update": ToolExecutionUpdate,
    "tool_execution_end": ToolExecutionEnd,
    "status": Status,
    "warning": Warning,
    "error": Error,
}
"""The types that every client receives without asking."""

EVENTS: Final[dict[str, type[Event]]] = {
    **FROZEN_EVENTS,
    "session_created": SessionCreated,
    "session_updated": SessionUpdated,
    "session_seen": SessionSeen,
    "agent_session": AgentSession,
    "session_activated": SessionActivated,
    "session_deletion_scheduled": SessionDeletionScheduled,
    "session_restored": SessionRestored,
    "session_deleted": SessionDeleted,
    "session_delete_deferred": SessionDeleteDeferred,
    "session_attached": SessionAttached,
    "workspace_override_granted": WorkspaceOverrideGranted,
    "workspace_override_expired": WorkspaceOverrideExpired,
    "entry_appended": EntryAppended,
    "queue_update": QueueUpdate,
    "run_aborting": RunAborting,
    "run_conflict": RunConflict,
    "v1_scope_entered": V1ScopeEntered,
    "reasoning_update": ReasoningUpdate,
    "subagent_text": SubagentText,
    "model_input": ModelInput,
    "tool_call_requested": ToolCallRequested,
    "tool_call_policy_evaluated": ToolCallPolicyEvaluated,
    "permission_requested": PermissionRequested,
    "tool_call_approved": ToolCallApproved,
    "tool_call_denied": ToolCallDenied,
    "tool_call_started": ToolCallStarted,
    "tool_call_output": ToolCallOutput,
    "tool_call_completed": ToolCallCompleted,
    "usage_reported": UsageReported,
    "mcp_server_status": McpServerStatus,
    "question_asked": QuestionAsked,
    "question_answered": QuestionAnswered,
    "question_rejected": QuestionRejected,
    "todo_updated": TodoUpdated,
    "input_handled": InputHandled,
    "trust_updated": TrustUpdated,
}
"""type on the wire -> payload struct, for all events."""

EVENT_TYPES: Final[dict[type[Event], str]] = {struct: name for name, struct in EVENTS.items()}

DELTA_EVENTS: Final[frozenset[str]] = frozenset(
    {"message_update", "tool_execution_update", "reasoning_update", "tool_call_output"}
)
"""Types committed without fsync: the ``*_end`` or ``tool_call_completed`` that follows has their texts.

Once they are old, one event of each type replaces all deltas of a message or call
(``machine.projection.retention``); its ``joined_from`` is the cursor of the first event it replaces.
"""


UNUSING_EVENTS: Final[frozenset[str]] = DELTA_EVENTS | {
    "session_seen",
    "session_deletion_scheduled",
    "session_restored",
    "mcp_server_status",
}
"""Types that do not count as use of their session: they leave its last-used time unchanged."""


def thread_of(event: Event) -> str | None:
    """Return the id of the run, or of the client's own tool call, that an event belongs to, if any.

    The log files events under this id, so that the events of a call are read in the same way as those
    of a run.
    """
    run_id = getattr(event, "run_id", UNSET)
    if run_id is not UNSET:
        return run_id  # type: ignore[no-any-return]
    return event.tool_call_id if isinstance(event, ToolCallEvent) else None
