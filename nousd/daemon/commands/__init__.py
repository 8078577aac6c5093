"""The command table: one row for each command of v1, and the only place that knows them all.

A handler receives the daemon's services and the command, and returns a reply or raises. It neither
writes to the connection nor starts tasks. It is named after the command's type. Its module is imported
with the first of its commands, or shortly after the daemon's start (``import_all``), so that the start
does not wait for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from nousd.daemon.replies import Reply
    from nousd.daemon.services import Services

Handler = Callable[["Services", Any], Awaitable["Reply"]]

MODULES: Final[dict[str, str]] = {
    "ping": "reading",
    "prompt": "inputs",
    "append_message": "inputs",
    "steer": "inputs",
    "follow_up": "inputs",
    "abort": "inputs",
    "set_active_tools": "settings",
    "set_steering_mode": "settings",
    "set_follow_up_mode": "settings",
    "get_state": "reading",
    "get_messages": "messages",
    "compact_session": "compacting",
    "set_leaf": "sessions",
    "get_tree": "sessions",
    "new_session": "sessions",
    "switch_session": "sessions",
    "branch_session": "sessions",
    "extension_command": "extensions",
    "get_capabilities": "reading",
    "list_sessions": "session_lists",
    "search_sessions": "session_lists",
    "get_session": "session_lists",
    "update_session": "session_settings",
    "attach_session": "workspaces",
    "override_workspace": "workspaces",
    "rename_session": "sessions",
    "mark_seen": "sessions",
    "delete_session": "sessions",
    "restore_session": "sessions",
    "list_runs": "reading",
    "get_run": "reading",
    "get_events": "reading",
    "get_queue": "inputs",
    "clear_queue": "inputs",
    "promote": "inputs",
    "edit_queued": "queued_inputs",
    "move_queued": "queued_inputs",
    "remove_queued": "queued_inputs",
    "resume": "inputs",
    "list_tools": "settings",
    "list_agents": "agents",
    "set_model": "models",
    "set_thinking": "models",
    "list_models": "models",
    "set_runtime": "runtimes",
    "get_runtimes": "runtimes",
    "get_auth_status": "runtimes",
    "set_permission_mode": "permissions",
    "confirm_tool": "permissions",
    "call_tool": "tool_calls",
    "cancel_tool_call": "tool_calls",
    "get_tool_call": "tool_calls",
    "list_tool_calls": "tool_calls",
    "list_permissions": "permissions",
    "revoke_permission": "permissions",
    "trust": "trust",
    "untrust": "trust",
    "list_trust": "trust",
    "list_questions": "questions",
    "answer_question": "questions",
    "reject_question": "questions",
    "get_todos": "todos",
    "add_mcp": "mcp",
    "remove_mcp": "mcp",
    "restart_mcp": "mcp",
    "list_mcp": "mcp",
    "put_artifact": "artifacts",
    "get_artifact": "artifacts",
    "get_metrics": "metrics",
}
"""type on the wire -> module of this package. A test compares the keys with those of
``wire.commands.COMMANDS``.
"""


class _Handlers(dict[str, Handler]):
    """type on the wire -> handler; a missing one is looked up in its module."""

    def __missing__(self, name: str) -> Handler:
        module = import_module(f"{__name__}.{MODULES[name]}")
        handler: Handler = getattr(module, name)
        self[name] = handler
        return handler


HANDLERS: Final = _Handlers()


def import_all() -> None:
    """Import the modules of all handlers."""
    for module in MODULES.values():
        import_module(f"{__name__}.{module}")
