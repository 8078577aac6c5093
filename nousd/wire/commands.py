"""One struct per command of v1: the payload a client sends.

The struct's fields are the contract: a required field has no default, ``null`` is allowed only where
``None`` is. ``COMMANDS`` maps the wire's ``type`` to the struct. What the daemon does with a command
is not known here.

Wording: a missing or wrongly typed required field is reported as "<field> is required", because that
is what v1 clients know; ``MESSAGES`` holds the few texts that differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from nousd.wire.command_base import (
    AnsweredBy,
    ArtifactOffset,
    Command,
    EventTypes,
    MediaType,
    Name,
    OptionalCursor,
    PageSize,
    QueueKind,
    QueueMode,
    Text,
)
from nousd.wire.entries import Sampling, Thinking
from nousd.wire.limits import (
    ARTIFACT_RANGE_BYTES_MAX,
    ATTACHMENTS_MAX,
    PAGE_ROWS_MAX,
    PATH_CHARS_MAX,
    TEXT_CHARS_MAX,
    TOOLS_MAX,
)
from nousd.wire.mcp import AddMcp, ListMcp, RemoveMcp, RestartMcp
from nousd.wire.metrics import GetMetrics
from nousd.wire.run_options import ToolChoice
from nousd.wire.session_commands import (
    BranchSession,
    DeleteSession,
    GetSession,
    ListSessions,
    NewSession,
    RenameSession,
    SwitchSession,
    UpdateSession,
)
from nousd.wire.tool_commands import (
    AnswerQuestion,
    CallTool,
    CancelToolCall,
    ConfirmTool,
    GetTodos,
    GetToolCall,
    ListAgents,
    ListPermissions,
    ListQuestions,
    ListToolCalls,
    ListTrust,
    RejectQuestion,
    RevokePermission,
    SetPermissionMode,
    Trust,
    Untrust,
)
from nousd.wire.workspaces import AttachSession, OverrideWorkspace

if TYPE_CHECKING:
    from nousd.wire.responses import (  # noqa: F401  in quotes below
        Accepted,
        Artifact,
        Capabilities,
        Compaction,
        Events,
        Leaf,
        Messages,
        Models,
        Pong,
        Queue,
        Result,
        Run,
        Runs,
        State,
        Tools,
        Tree,
        Upload,
    )


class AttachmentGiven(msgspec.Struct, frozen=True, kw_only=True):
    """A file that goes with a text: ``data`` (base64), a ``path`` in the workdir, or an artifact.

    Exactly one of the three. ``media_type`` is required with ``data``; otherwise the file's suffix, or
    the artifact, decides it. ``name`` is for people and models; with ``path`` it is the file's own.
    """

    media_type: Name | None = None
    data: bytes | None = None
    path: Annotated[str, Meta(min_length=1, max_length=PATH_CHARS_MAX)] | None = None
    artifact_id: Name | None = None
    name: Name | None = None


AttachmentsGiven = Annotated[tuple[AttachmentGiven, ...], Meta(max_length=ATTACHMENTS_MAX)]


class Ping(AnsweredBy["Pong"], frozen=True, kw_only=True):
    """Answers ``pong``."""


class Prompt(AnsweredBy["Accepted | Result"], frozen=True, kw_only=True):
    """Starts a run. ``wait: false`` answers ``accepted`` at once, ``true`` the ``result``.

    ``text_ref``: the artifact with the whole of what ``text`` is the beginning of.
    ``reuse_appended``: a text that was appended last and not answered is not repeated.
    ``strict_resend``: the same ``client_message_id`` with another text is refused. ``client_id`` and the
    three behind it are shown with the run; ``tools`` and what follows hold for this run alone.
    """

    text: Text
    text_ref: Name | None = None
    wait: bool = True
    leaf_id: Name | None = None
    session_id: Name | None = None
    client_message_id: Name | None = None
    attachments: AttachmentsGiven = ()
    reuse_appended: bool = False
    strict_resend: bool = False
    client_id: Name | None = None
    agent_id: Name | None = None
    agent_profile: Name | None = None
    correlation_id: Name | None = None
    tools: Annotated[tuple[Name, ...], Meta(max_length=TOOLS_MAX)] | None = None
    model: Name | None = None
    provider: Name | None = None
    sampling: Sampling | None = None
    tool_choice: ToolChoice | None = None


class AppendMessage(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Stores a message of the user without starting a run; a run that is going on is not disturbed."""

    text: Text
    text_ref: Name | None = None
    session_id: Name | None = None
    client_message_id: Name | None = None
    attachments: AttachmentsGiven = ()


class Steer(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Hands the running run a text that goes before whatever it would do next."""

    text: Text
    text_ref: Name | None = None
    session_id: Name | None = None
    expected_run_id: Name | None = None
    client_message_id: Name | None = None
    attachments: AttachmentsGiven = ()


class FollowUp(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Hands the running run a text for when it would otherwise end."""

    text: Text
    text_ref: Name | None = None
    session_id: Name | None = None
    expected_run_id: Name | None = None
    client_message_id: Name | None = None
    attachments: AttachmentsGiven = ()


class Abort(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Stops the run at once, empties its session's queues and returns their texts.

    ``keep_queue``: steers and follow-ups go on waiting.
    """

    session_id: Name | None = None
    expected_run_id: Name | None = None
    keep_queue: bool = False


class SetActiveTools(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Sets which tools models are offered, from the next model call on."""

    tools: Annotated[tuple[Name, ...], Meta(max_length=TOOLS_MAX)]
    session_id: Name | None = None


class SetSteeringMode(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Sets how pending steers are emptied into turns."""

    mode: QueueMode
    session_id: Name | None = None


class SetFollowUpMode(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Sets how pending follow-ups are emptied into turns."""

    mode: QueueMode
    session_id: Name | None = None


class GetState(AnsweredBy["State"], frozen=True, kw_only=True):
    """Reads what a client needs to draw its status line and to reconnect."""

    session_id: Name | None = None


class GetMessages(AnsweredBy["Messages"], frozen=True, kw_only=True):
    """Reads the path root -> leaf, newest page first.

    ``before`` (an entry id) continues a page that said ``has_more``; ``compacted`` gives what a
    model would get.
    """

    session_id: Name | None = None
    leaf_id: Name | None = None
    before: Name | None = None
    limit: PageSize = PAGE_ROWS_MAX
    compacted: bool = False


class CompactSession(AnsweredBy["Compaction"], frozen=True, kw_only=True):
    """Replaces the older part of what models see by a summary; nothing is deleted."""

    session_id: Name | None = None
    instruction: Annotated[str, Meta(max_length=TEXT_CHARS_MAX)] | None = None


class SetLeaf(AnsweredBy["Leaf"], frozen=True, kw_only=True):
    """Moves the place that new work continues from."""

    leaf_id: Name
    session_id: Name | None = None


class GetTree(AnsweredBy["Tree"], frozen=True, kw_only=True):
    """Reads the tree of a session, oldest first; ``after`` (an entry id) continues a page."""

    session_id: Name | None = None
    after: Name | None = None
    limit: PageSize = PAGE_ROWS_MAX


class ExtensionCommand(Command, frozen=True, kw_only=True):
    """Calls a command that an extension registered. A payload that is no object counts as {}."""

    name: Name
    payload: Any = None


class GetCapabilities(AnsweredBy["Capabilities"], frozen=True, kw_only=True):
    """Lists what this daemon can do beyond the frozen contract."""


class ListRuns(AnsweredBy["Runs"], frozen=True, kw_only=True):
    """Lists runs of one session, or of all, newest first; ``before`` continues a page."""

    session_id: Name | None = None
    limit: PageSize = 100
    before: Name | None = None


class GetRun(AnsweredBy["Run"], frozen=True, kw_only=True):
    """Reads one run's record."""

    run_id: Name


class GetEvents(AnsweredBy["Events"], frozen=True, kw_only=True):
    """Reads a page of the log: events after a cursor, filtered as a subscription is."""

    after: OptionalCursor = None
    session_id: Name | None = None
    run_id: Name | None = None
    types: EventTypes = "v1"
    limit: PageSize = PAGE_ROWS_MAX


class GetQueue(AnsweredBy["Queue"], frozen=True, kw_only=True):
    """Reads the inputs that were accepted and not yet consumed, in the order they will be."""

    session_id: Name | None = None


class ClearQueue(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Takes back pending inputs (all, or of one kind) and returns their texts."""

    session_id: Name | None = None
    kind: QueueKind | None = None


class Promote(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Turns a pending follow-up into a steer."""

    input_id: Name
    session_id: Name | None = None


class Resume(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Starts a run on what is pending, or on an unanswered leaf."""

    session_id: Name | None = None


class ListTools(AnsweredBy["Tools"], frozen=True, kw_only=True):
    """Lists the tools that exist and which of them are active."""

    session_id: Name | None = None


class SetModel(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Names the model for the session's next model calls."""

    model: Name
    session_id: Name | None = None


class PutArtifact(AnsweredBy["Artifact | Upload"], frozen=True, kw_only=True):
    """Stores bytes of any size, in pieces that fit into a line; ``final`` ends them.

    Without ``upload_id`` a new upload begins. ``offset`` is how much was sent before, for whoever wants
    that checked.
    """

    data: bytes
    media_type: MediaType
    upload_id: Name | None = None
    offset: ArtifactOffset | None = None
    final: bool = False


class GetArtifact(AnsweredBy["Artifact"], frozen=True, kw_only=True):
    """Reads a part of an artifact."""

    artifact_id: Name
    offset: ArtifactOffset = 0
    length: Annotated[int, Meta(ge=1, le=ARTIFACT_RANGE_BYTES_MAX)] = 1024 * 1024


class SetThinking(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Sets how much a session's model reasons before it answers; null leaves that to the model."""

    level: Thinking | None
    session_id: Name | None = None


class ListModels(AnsweredBy["Models"], frozen=True, kw_only=True):
    """Lists the models that can be asked: those that the servers list, and those that are configured."""

    provider: Name | None = None
    refresh: bool = False


COMMANDS: Final[dict[str, type[Command]]] = {
    "ping": Ping,
    "prompt": Prompt,
    "append_message": AppendMessage,
    "steer": Steer,
    "follow_up": FollowUp,
    "abort": Abort,
    "set_active_tools": SetActiveTools,
    "set_steering_mode": SetSteeringMode,
    "set_follow_up_mode": SetFollowUpMode,
    "get_state": GetState,
    "get_messages": GetMessages,
    "compact_session": CompactSession,
    "set_leaf": SetLeaf,
    "get_tree": GetTree,
    "new_session": NewSession,
    "switch_session": SwitchSession,
    "branch_session": BranchSession,
    "extension_command": ExtensionCommand,
    "get_capabilities": GetCapabilities,
    "list_sessions": ListSessions,
    "get_session": GetSession,
    "update_session": UpdateSession,
    "attach_session": AttachSession,
    "override_workspace": OverrideWorkspace,
    "rename_session": RenameSession,
    "delete_session": DeleteSession,
    "list_runs": ListRuns,
    "get_run": GetRun,
    "get_events": GetEvents,
    "get_queue": GetQueue,
    "clear_queue": ClearQueue,
    "promote": Promote,
    "resume": Resume,
    "list_tools": ListTools,
    "list_agents": ListAgents,
    "set_model": SetModel,
    "set_thinking": SetThinking,
    "list_models": ListModels,
    "set_permission_mode": SetPermissionMode,
    "confirm_tool": ConfirmTool,
    "call_tool": CallTool,
    "cancel_tool_call": CancelToolCall,
    "get_tool_call": GetToolCall,
    "list_tool_calls": ListToolCalls,
    "list_permissions": ListPermissions,
    "revoke_permission": RevokePermission,
    "trust": Trust,
    "untrust": Untrust,
    "list_trust": ListTrust,
    "list_questions": ListQuestions,
    "answer_question": AnswerQuestion,
    "reject_question": RejectQuestion,
    "get_todos": GetTodos,
    "add_mcp": AddMcp,
    "remove_mcp": RemoveMcp,
    "restart_mcp": RestartMcp,
    "list_mcp": ListMcp,
    "put_artifact": PutArtifact,
    "get_artifact": GetArtifact,
    "get_metrics": GetMetrics,
}
"""type on the wire -> payload struct; every command of the daemon is here and nowhere else."""

MESSAGES: Final[dict[tuple[type[Command], str], tuple[str, str]]] = {
    (SetActiveTools, "tools"): ("tools must be an array", "tools must be string array"),
    (SetSteeringMode, "mode"): ("mode is required", "mode must be one-at-a-time or all"),
    (SetFollowUpMode, "mode"): ("mode is required", "mode must be one-at-a-time or all"),
    (SetPermissionMode, "mode"): ("mode is required", "mode must be ask, auto or yolo"),
    (ConfirmTool, "decision"): (
        "decision is required",
        "decision must be once, session, always, deny or deny_session",
    ),
    **dict.fromkeys(
        [(AddMcp, "name"), (RemoveMcp, "name"), (RestartMcp, "name")],
        (
            "name is required",
            "name must be 1 to 32 lower-case letters, digits and dashes, like files",
        ),
    ),
    (SetThinking, "level"): ("level is required", "level must be off, low, medium, high or null"),
    (PutArtifact, "data"): ("data is required", "data must be base64"),
    (PutArtifact, "media_type"): (
        "media_type is required",
        "media_type must be a media type like image/png",
    ),
}
"""(struct, field) -> v1's texts for (missing or not of the outer type, of a wrong inner value)."""

LENIENT: Final[frozenset[tuple[type[Command], str]]] = frozenset(
    {(GetMessages, "session_id"), (GetMessages, "leaf_id")}
)
"""Fields whose wrongly typed value v1 treats as absent (protocol/v1.md, "get_messages")."""
