"""The command table: one row for each command of v1, and the only place that knows them all.

A handler receives the daemon's services and the command, and returns a reply or raises. It writes no
line and starts no task itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from nousd.daemon.commands import (
    agents,
    artifacts,
    compacting,
    extensions,
    inputs,
    mcp,
    messages,
    metrics,
    models,
    permissions,
    questions,
    queued_inputs,
    reading,
    session_lists,
    session_settings,
    sessions,
    settings,
    todos,
    tool_calls,
    trust,
    workspaces,
)
from nousd.daemon.replies import Reply
from nousd.daemon.services import Services

Handler = Callable[[Services, Any], Awaitable[Reply]]

HANDLERS: Final[dict[str, Handler]] = {
    "ping": reading.ping,
    "prompt": inputs.prompt,
    "append_message": inputs.append_message,
    "steer": inputs.steer,
    "follow_up": inputs.follow_up,
    "abort": inputs.abort,
    "set_active_tools": settings.set_active_tools,
    "set_steering_mode": settings.set_steering_mode,
    "set_follow_up_mode": settings.set_follow_up_mode,
    "get_state": reading.get_state,
    "get_messages": messages.get_messages,
    "compact_session": compacting.compact_session,
    "set_leaf": sessions.set_leaf,
    "get_tree": sessions.get_tree,
    "new_session": sessions.new_session,
    "switch_session": sessions.switch_session,
    "branch_session": sessions.branch_session,
    "extension_command": extensions.extension_command,
    "get_capabilities": reading.get_capabilities,
    "list_sessions": session_lists.list_sessions,
    "search_sessions": session_lists.search_sessions,
    "get_session": session_lists.get_session,
    "update_session": session_settings.update_session,
    "attach_session": workspaces.attach_session,
    "override_workspace": workspaces.override_workspace,
    "rename_session": sessions.rename_session,
    "mark_seen": sessions.mark_seen,
    "delete_session": sessions.delete_session,
    "restore_session": sessions.restore_session,
    "list_runs": reading.list_runs,
    "get_run": reading.get_run,
    "get_events": reading.get_events,
    "get_queue": inputs.get_queue,
    "clear_queue": inputs.clear_queue,
    "promote": inputs.promote,
    "edit_queued": queued_inputs.edit_queued,
    "move_queued": queued_inputs.move_queued,
    "remove_queued": queued_inputs.remove_queued,
    "resume": inputs.resume,
    "list_tools": settings.list_tools,
    "list_agents": agents.list_agents,
    "set_model": models.set_model,
    "set_thinking": models.set_thinking,
    "list_models": models.list_models,
    "set_permission_mode": permissions.set_permission_mode,
    "confirm_tool": permissions.confirm_tool,
    "call_tool": tool_calls.call_tool,
    "cancel_tool_call": tool_calls.cancel_tool_call,
    "get_tool_call": tool_calls.get_tool_call,
    "list_tool_calls": tool_calls.list_tool_calls,
    "list_permissions": permissions.list_permissions,
    "revoke_permission": permissions.revoke_permission,
    "trust": trust.trust,
    "untrust": trust.untrust,
    "list_trust": trust.list_trust,
    "list_questions": questions.list_questions,
    "answer_question": questions.answer_question,
    "reject_question": questions.reject_question,
    "get_todos": todos.get_todos,
    "add_mcp": mcp.add_mcp,
    "remove_mcp": mcp.remove_mcp,
    "restart_mcp": mcp.restart_mcp,
    "list_mcp": mcp.list_mcp,
    "put_artifact": artifacts.put_artifact,
    "get_artifact": artifacts.get_artifact,
    "get_metrics": metrics.get_metrics,
}
"""type on the wire -> handler. A test compares its keys with ``wire.commands.COMMANDS``."""
