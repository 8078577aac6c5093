"""One struct per command of v1: the payload a client sends.

The struct's fields are the contract: a required field has no default, ``null`` is allowed only where
``None`` is. ``COMMANDS`` maps the wire's ``type`` to the struct. This package does not know what the
daemon does with a command.

The structs are in modules by subject. This module has the tables of all of them, and other rooms import
them from here.

A required field that is missing or has the wrong type is reported as "<field> is required", a message
that v1 clients know; ``MESSAGES`` has the exceptions.
"""

from __future__ import annotations

from typing import Final

from nousd.wire.commands.artifacts import GetArtifact, PutArtifact
from nousd.wire.commands.base import Command
from nousd.wire.commands.daemon import (
    AddMcp,
    ExtensionCommand,
    GetCapabilities,
    GetMetrics,
    ListMcp,
    ListModels,
    Ping,
    RemoveMcp,
    RestartMcp,
)
from nousd.wire.commands.inputs import (
    Abort,
    AppendMessage,
    ClearQueue,
    EditQueued,
    FollowUp,
    GetQueue,
    MoveQueued,
    Promote,
    Prompt,
    RemoveQueued,
    Resume,
    Steer,
)
from nousd.wire.commands.log import GetEvents, GetRun, ListRuns
from nousd.wire.commands.sessions import (
    AttachSession,
    BranchSession,
    DeleteSession,
    GetAuthStatus,
    GetRuntimes,
    GetSession,
    GetState,
    ListSessions,
    MarkSeen,
    NewSession,
    OverrideWorkspace,
    RenameSession,
    RestoreSession,
    SearchSessions,
    SetFollowUpMode,
    SetModel,
    SetRuntime,
    SetSteeringMode,
    SetThinking,
    SwitchSession,
    UpdateSession,
)
from nousd.wire.commands.tools import (
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
    ListTools,
    ListTrust,
    RejectQuestion,
    RevokePermission,
    SetActiveTools,
    SetPermissionMode,
    Trust,
    Untrust,
)
from nousd.wire.commands.transcripts import CompactSession, GetMessages, GetTree, SetLeaf

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
    "search_sessions": SearchSessions,
    "get_session": GetSession,
    "update_session": UpdateSession,
    "attach_session": AttachSession,
    "override_workspace": OverrideWorkspace,
    "rename_session": RenameSession,
    "mark_seen": MarkSeen,
    "delete_session": DeleteSession,
    "restore_session": RestoreSession,
    "list_runs": ListRuns,
    "get_run": GetRun,
    "get_events": GetEvents,
    "get_queue": GetQueue,
    "clear_queue": ClearQueue,
    "promote": Promote,
    "edit_queued": EditQueued,
    "move_queued": MoveQueued,
    "remove_queued": RemoveQueued,
    "resume": Resume,
    "list_tools": ListTools,
    "list_agents": ListAgents,
    "set_model": SetModel,
    "set_thinking": SetThinking,
    "list_models": ListModels,
    "set_runtime": SetRuntime,
    "get_runtimes": GetRuntimes,
    "get_auth_status": GetAuthStatus,
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
"""(struct, field) -> v1's messages for (a missing value or a wrong outer type, a wrong inner value)."""

LENIENT: Final[frozenset[tuple[type[Command], str]]] = frozenset(
    {(GetMessages, "session_id"), (GetMessages, "leaf_id")}
)
"""Fields whose wrongly typed value v1 treats as absent (protocol/reference/commands/get_messages.md)."""
