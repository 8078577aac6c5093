"""The command that reads the todo list of a session's model."""

from __future__ import annotations

from nousd.daemon.replies import Reply
from nousd.daemon.services import Services
from nousd.wire import commands
from nousd.wire.commands.subscribe import cursor
from nousd.wire.responses import TodosNow


async def get_todos(services: Services, command: commands.GetTodos) -> Reply:
    """Read the list; empty without a session."""
    live = await services.sessions.target(command.session_id)
    state = services.sessions.without_session() if live is None else live.committed
    return TodosNow(
        session_id=state.session_id, todos=state.todos, cursor=cursor(services.hub.head)
    )
