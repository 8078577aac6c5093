"""Commands that set a session's tools and delivery modes, and that list tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from nousd.daemon.commands.pages import page_of
from nousd.daemon.eventlog.log import CommitHandle
from nousd.daemon.replies import Deferred, Reply
from nousd.daemon.services import Services
from nousd.errors import CommandRejected
from nousd.wire import commands
from nousd.wire.responses import Accepted, Tools
from nousd.wire.responses.tools import ToolSummary


async def set_active_tools(services: Services, command: commands.SetActiveTools) -> Reply:
    """Set the built-in tools that the model is offered; extensions' tools are always offered."""
    require_builtin(services, command.tools)
    handle = await _set(services, command.session_id, active_tools=command.tools)
    return Deferred(handle, Accepted(command="set_active_tools", count=len(command.tools)))


async def set_steering_mode(services: Services, command: commands.SetSteeringMode) -> Reply:
    """Set how pending steers are delivered: one per turn, or all together."""
    handle = await _set(services, command.session_id, steering_mode=command.mode)
    return Deferred(handle, Accepted(command="set_steering_mode", mode=command.mode))


async def set_follow_up_mode(services: Services, command: commands.SetFollowUpMode) -> Reply:
    """Set how pending follow-ups are delivered: one per turn, or all together."""
    handle = await _set(services, command.session_id, follow_up_mode=command.mode)
    return Deferred(handle, Accepted(command="set_follow_up_mode", mode=command.mode))


async def _set(services: Services, session_id: str | None, **setting: Any) -> CommitHandle:
    """Set a session's own value, or the value for all sessions if none is named."""
    if session_id is not None:
        return services.sessions.update(await services.sessions.get(session_id), **setting)
    return services.sessions.update_shared(await services.sessions.active(), **setting)


def require_builtin(services: Services, names: Sequence[str]) -> None:
    """Raise CommandRejected ``tool_not_registered`` for a name that no built-in tool has."""
    for name in names:
        tool = services.tools.get(name)
        if tool is None or tool.source != "builtin":
            raise CommandRejected(f"tool_not_registered: {name}")


async def list_tools(services: Services, command: commands.ListTools) -> Reply:
    """List the tools that exist, and whether the session's model is offered them, up to one page."""
    live = await services.sessions.target(command.session_id)
    state = services.sessions.without_session() if live is None else live.committed
    tools = list(services.tools.of(state.session_id).values())
    if command.after is not None:
        names = [tool.name for tool in tools]
        if command.after not in names:
            raise CommandRejected(f"tool_not_registered: {command.after}")
        del tools[: names.index(command.after) + 1]
    page = page_of(
        [
            ToolSummary(
                name=tool.name,
                description=tool.description,
                active=services.run_services.tool_is_active(state, tool.name),
                source=tool.source,
                parameters=tool.parameters,
            )
            for tool in tools
        ]
    )
    return Tools(
        session_id=state.session_id,
        tools=page,
        has_more=UNSET if len(page) == len(tools) else True,
    )
