"""Commands about MCP servers."""

from __future__ import annotations

from nousd.daemon.replies import Deferred, Reply
from nousd.daemon.services import Services
from nousd.wire import commands
from nousd.wire.codec.unset import or_unset
from nousd.wire.commands.subscribe import cursor
from nousd.wire.responses import Accepted, McpServers


async def add_mcp(services: Services, command: commands.AddMcp) -> Reply:
    """Add a server permanently, or to a session; events report whether it can be reached."""
    services.mcp.require_available()
    if command.session_id is None:
        handle = services.mcp.add(command)
    else:
        handle = await services.mcp.of_sessions.add(command, command.session_id)
    return Deferred(handle, _acknowledge("add_mcp", command.session_id))


async def remove_mcp(services: Services, command: commands.RemoveMcp) -> Reply:
    """Remove a server; running calls of its tools fail."""
    answer = _acknowledge("remove_mcp", command.session_id)
    if command.session_id is None:
        return Deferred(services.mcp.remove(command.name), answer)
    await services.sessions.get(command.session_id)
    services.mcp.of_sessions.remove(command.session_id, command.name)
    return answer


async def restart_mcp(services: Services, command: commands.RestartMcp) -> Reply:
    """Reconnect to a server at once."""
    if command.session_id is None:
        services.mcp.restart(command.name)
    else:
        await services.mcp.of_sessions.restart(command.session_id, command.name)
    return _acknowledge("restart_mcp", command.session_id)


async def list_mcp(services: Services, command: commands.ListMcp) -> Reply:
    """List the servers and their states."""
    servers = services.mcp.summaries()
    if command.session_id is not None:
        await services.sessions.get(command.session_id)
        servers = tuple(each for each in servers if each.session_id == command.session_id)
    return McpServers(servers=servers, cursor=cursor(services.hub.head))


def _acknowledge(command: str, session_id: str | None) -> Accepted:
    return Accepted(command=command, session_id=or_unset(session_id))
