"""One struct per event of v1: the ``payload`` of a line on the event socket and in the log.

Thirteen types are frozen (``FROZEN_EVENTS``); the others are additions that only subscribers who
ask for them receive. Fields without a default are required keys; ``session_id`` is on every event.

Events are facts. Everything the daemon knows is a fold over them, so an event carries what a reader
needs to fold it and never a reference to something outside the log.

The events of tool calls are in ``tool_events``; whoever reads events finds all of them here.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from nousd.wire.command_base import QueueMode
from nousd.wire.entries import (
    Attachment,
    Entry,
    PermissionMode,
    Sampling,
    StopReason,
    Thinking,
    TurnKind,
    Usage,
)
from nousd.wire.event_base import EndStatus, Event, RunEvent, TurnEvent
from nousd.wire.extension_events import InputHandled
from nousd.wire.inputs import PendingCounts, QueuedInput
from nousd.wire.mcp import McpServer, McpServerStatus
from nousd.wire.questions import QuestionAnswered, QuestionAsked, QuestionRejected
from nousd.wire.run_options import RunOptions
from nousd.wire.session_settings import SessionRules, SourceMetadata
from nousd.wire.todos import Todo, TodoUpdated
from nousd.wire.tool_events import (
    PermissionRequested,
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
from nousd.wire.trust import TrustUpdated
from nousd.wire.workers import TaskOrigin, WorkerSpec
from nousd.wire.workspaces import (
    SessionAttached,
    WorkspaceOverrideExpired,
    WorkspaceOverrideGranted,
)

CONTRACT_VERSION: Final = "1"
"""The version of the protocol that sessions are created under."""


# --- the thirteen frozen types ---------------------------------------------------------------


class AgentStart(RunEvent, frozen=True, kw_only=True):
    """``client_id`` and what follows are what its prompt said of the run."""

    runtime: str
    model: str
    client_id: str | UnsetType = UNSET
    agent_id: str | UnsetType = UNSET
    agent_profile: str | UnsetType = UNSET
    options: RunOptions | UnsetType = UNSET


class AgentEnd(RunEvent, frozen=True, kw_only=True):
    """The one end of a run. ``error`` says what failed, for people."""

    status: EndStatus
    error: str | UnsetType = UNSET


class TurnStart(TurnEvent, frozen=True, kw_only=True):
    pass


class TurnEnd(TurnEvent, frozen=True, kw_only=True):
    pass


class MessageStart(TurnEvent, frozen=True, kw_only=True):
    """``message_id`` is the id of the entry that will hold the message.

    For ``role: user`` the text is here, with what it came from.
    """

    message_id: str
    role: Literal["user", "assistant"]
    text: str | UnsetType = UNSET
    turn_kind: TurnKind | UnsetType = UNSET
    input_ids: tuple[str, ...] | UnsetType = UNSET
    client_message_id: str | UnsetType = UNSET
    text_ref: str | UnsetType = UNSET
    text_bytes: int | UnsetType = UNSET
    attachments: tuple[Attachment, ...] | UnsetType = UNSET


class MessageUpdate(TurnEvent, frozen=True, kw_only=True):
    message_id: str
    delta: str
    joined_from: str | UnsetType = UNSET


class MessageEnd(TurnEvent, frozen=True, kw_only=True):
    message_id: str
    text: str
    stop_reason: StopReason | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    text_ref: str | UnsetType = UNSET
    text_bytes: int | UnsetType = UNSET


class Status(RunEvent, frozen=True, kw_only=True):
    message: str
    turn_id: str | UnsetType = UNSET


class Warning(RunEvent, frozen=True, kw_only=True):
    code: str
    message: str
    turn_id: str | UnsetType = UNSET


class Error(RunEvent, frozen=True, kw_only=True):
    """``raw_ref`` names the artifact that holds what a server answered, where it is too long."""

    code: str
    message: str
    cause: str
    turn_id: str | UnsetType = UNSET
    hint: str | UnsetType = UNSET
    raw_ref: str | UnsetType = UNSET


# --- additions -------------------------------------------------------------------------------


class SessionCreated(Event, frozen=True, kw_only=True):
    """A branch names its parent and holds, from the start, everything the parent held. One with a parent
    and without ``leaf_id`` begins empty.

    ``contract_version`` is that of the protocol the session was created under. ``origin`` is of a
    session that a call of ``task`` made, ``worker`` who carries that task out. ``workspace`` is the real
    path of the folder that the session works in; logs of earlier versions do not have it.
    """

    created_at: str
    contract_version: str
    name: str | UnsetType = UNSET
    parent_id: str | UnsetType = UNSET
    leaf_id: str | UnsetType = UNSET
    steering_mode: QueueMode | UnsetType = UNSET
    follow_up_mode: QueueMode | UnsetType = UNSET
    active_tools: tuple[str, ...] | UnsetType = UNSET
    provider: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    thinking: Thinking | UnsetType = UNSET
    permission_mode: PermissionMode | UnsetType = UNSET
    origin: TaskOrigin | UnsetType = UNSET
    worker: WorkerSpec | UnsetType = UNSET
    todos: tuple[Todo, ...] | UnsetType = UNSET
    workspace: str | UnsetType = UNSET
    source: str | UnsetType = UNSET
    source_metadata: SourceMetadata | UnsetType = UNSET
    sampling: Sampling | UnsetType = UNSET
    rules: SessionRules | UnsetType = UNSET


class SessionUpdated(Event, frozen=True, kw_only=True):
    """Only what changed is present; null takes back what was set.

    ``granted`` are all the rules by which the user allows calls in this session alone. ``mcp_servers``
    are all that were added since, and stand where ``session_id`` is "".
    """

    name: str | UnsetType = UNSET
    leaf_id: str | UnsetType = UNSET
    steering_mode: QueueMode | UnsetType = UNSET
    follow_up_mode: QueueMode | UnsetType = UNSET
    active_tools: tuple[str, ...] | UnsetType = UNSET
    provider: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    thinking: Thinking | UnsetType | None = UNSET
    permission_mode: PermissionMode | UnsetType = UNSET
    granted: tuple[str, ...] | UnsetType = UNSET
    mcp_servers: tuple[McpServer, ...] | UnsetType = UNSET
    archived: bool | UnsetType = UNSET
    source_metadata: SourceMetadata | UnsetType | None = UNSET
    sampling: Sampling | UnsetType | None = UNSET
    rules: SessionRules | UnsetType | None = UNSET


class SessionActivated(Event, frozen=True, kw_only=True):
    """This session is the daemon's active one from here on."""


class SessionDeleted(Event, frozen=True, kw_only=True):
    """The tombstone: the session's other events are gone from the log."""


class EntryAppended(Event, frozen=True, kw_only=True):
    """``entry`` joined the tree and became the leaf."""

    entry: Entry
    run_id: str | UnsetType = UNSET


class QueueUpdate(Event, frozen=True, kw_only=True):
    """The pending inputs changed.

    ``accepted`` and ``promoted`` carry the inputs as they are now, ``consumed`` and ``cleared`` the
    inputs that are no longer pending.
    """

    change: Literal["accepted", "consumed", "cleared", "promoted"]
    inputs: tuple[QueuedInput, ...]
    pending_counts: PendingCounts
    run_id: str | UnsetType = UNSET


class RunAborting(RunEvent, frozen=True, kw_only=True):
    """An abort was accepted; the run's balanced ends follow. ``keep_queue``: what waits still does."""

    keep_queue: Literal[True] | UnsetType = UNSET


class RunConflict(RunEvent, frozen=True, kw_only=True):
    """A second run was asked for and refused while ``run_id`` went on; ``client_id`` is who asked.

    Told once a second for each run at most, however often one is refused.
    """

    client_id: str | UnsetType = UNSET


class ReasoningUpdate(TurnEvent, frozen=True, kw_only=True):
    """A piece of the model's reasoning, which is never part of ``message_update``."""

    delta: str
    message_id: str
    joined_from: str | UnsetType = UNSET


class Omitted(msgspec.Struct, frozen=True):
    """An entry of the context that the model is not told, or not whole; ``reason`` is for programs.

    ``empty``: an answer without text and calls. ``no_call``: a result that no call waits for.
    ``preview``: only the beginning of its text is told. ``attachment``: a file was left out that the
    model cannot take. ``oldest``: it did not fit.
    """

    entry_id: str
    reason: str


Saving = Literal["full", "previews", "compacted", "oldest_dropped"]
"""How a transcript was fitted into a model's window."""

Purpose = Literal["answer", "summary"]
"""What a model is asked for: to go on, or to summarise what a compaction cuts off."""


class Source(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a part of the system prompt came from, or might have.

    Without ``hash`` nothing of it was used. ``hash`` and ``bytes`` are of the text as it was used, in
    UTF-8. ``reason`` says why nothing or not all was: ``off``, ``not_found``, ``not_a_file``,
    ``outside``, ``unreadable``, ``empty``, ``not_utf8``, ``cut``, ``no_room``. ``extension`` names the
    one that added the part for this run.
    """

    kind: Literal[
        "system_prompt",
        "agent_prompt",
        "agents",
        "user_instructions",
        "project_instructions",
        "extension",
    ]
    enabled: bool
    path: str | UnsetType = UNSET
    extension: str | UnsetType = UNSET
    hash: str | UnsetType = UNSET
    bytes: int | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class ModelInput(Event, frozen=True, kw_only=True):
    """A model is about to be asked; what it is given, in figures and as an artifact.

    One for each model call, further attempts at the same call included. ``input_hash`` is of the
    neutral input's canonical JSON, ``input_ref`` the artifact that leads to all its parts, ``rest_ref``
    the one that holds everything but the messages. ``entries`` counts what of the transcript stands in
    the context (a compaction for all that it stands for), ``messages`` what the model is given for
    them. ``tokens_estimated`` is of everything it is given, ``context_window`` what it can take.
    ``omitted`` names the oldest of the ``omitted_count`` entries that it is not told, or not whole.

    A summary that was asked for by hand belongs to no run. Logs of earlier versions have none of the
    keys that may be missing but ``omitted`` and ``leaf_id``. ``sampling`` is what was asked for; a
    family of models that is known to refuse it is not told.
    """

    model: str
    entries: int
    messages: int
    tokens_estimated: int
    tools: tuple[str, ...]
    omitted_count: int
    run_id: str | UnsetType = UNSET
    turn_id: str | UnsetType = UNSET
    purpose: Purpose | UnsetType = UNSET
    provider: str | UnsetType = UNSET
    thinking: Thinking | UnsetType = UNSET
    sampling: Sampling | UnsetType = UNSET
    context_window: int | UnsetType = UNSET
    input_hash: str | UnsetType = UNSET
    input_ref: str | UnsetType = UNSET
    rest_ref: str | UnsetType = UNSET
    strategy: tuple[Saving, ...] | UnsetType = UNSET
    sources: tuple[Source, ...] | UnsetType = UNSET
    omitted: tuple[Omitted, ...] | UnsetType = UNSET
    leaf_id: str | UnsetType = UNSET


class UsageReported(Event, frozen=True, kw_only=True):
    """What one model call cost: tokens, milliseconds, and dollars where the price is known.

    One for each call that a provider answered, if only in part. Without ``usage`` it did not say how
    many tokens that took. A summary that was asked for by hand belongs to no run.
    """

    model: str
    usage: Usage | UnsetType = UNSET
    purpose: Purpose | UnsetType = UNSET
    run_id: str | UnsetType = UNSET
    turn_id: str | UnsetType = UNSET
    message_id: str | UnsetType = UNSET
    provider: str | UnsetType = UNSET
    first_token_ms: int | UnsetType = UNSET
    duration_ms: int | UnsetType = UNSET
    cost_usd: float | UnsetType = UNSET


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
"""The types that every client gets without asking."""

EVENTS: Final[dict[str, type[Event]]] = {
    **FROZEN_EVENTS,
    "session_created": SessionCreated,
    "session_updated": SessionUpdated,
    "session_activated": SessionActivated,
    "session_deleted": SessionDeleted,
    "session_attached": SessionAttached,
    "workspace_override_granted": WorkspaceOverrideGranted,
    "workspace_override_expired": WorkspaceOverrideExpired,
    "entry_appended": EntryAppended,
    "queue_update": QueueUpdate,
    "run_aborting": RunAborting,
    "run_conflict": RunConflict,
    "reasoning_update": ReasoningUpdate,
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
"""type on the wire -> payload struct; every event there is."""

EVENT_TYPES: Final[dict[type[Event], str]] = {struct: name for name, struct in EVENTS.items()}

DELTA_EVENTS: Final[frozenset[str]] = frozenset(
    {"message_update", "tool_execution_update", "reasoning_update", "tool_call_output"}
)
"""Committed without fsync: their texts are in the ``*_end`` or ``tool_call_completed`` that follows.

Once they are old, one of each type stands for all of a message (``machine.retention``): its
``joined_from`` is the cursor of the first event that it stands for.
"""


def thread_of(event: Event) -> str | None:
    """Returns the id of the run that an event belongs to, or of the client's own call; None of neither.

    Who asks for the events of a run by its id can ask for those of a call in the same way.
    """
    run_id = getattr(event, "run_id", UNSET)
    if run_id is not UNSET:
        return run_id  # type: ignore[no-any-return]
    return event.tool_call_id if isinstance(event, ToolCallEvent) else None
