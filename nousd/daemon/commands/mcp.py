"""Commands about MCP servers."""

from __future__ import annotations

from nousd.daemon.replies import Deferred, Reply
from nousd.daemon.services import Services
from nousd.wire import commands
from nousd.wire.commands.subscribe import cursor
from nousd.wire.responses import Accepted, McpServers


async def add_mcp(services: Services, command: commands.AddMcp) -> Reply:
    """Add a server permanently; events report whether it can be reached."""
    return Deferred(services.mcp.add(command), Accepted(command="add_mcp"))


async def remove_mcp(services: Services, command: commands.RemoveMcp) -> Reply:
    """Remove a server; running calls of its tools fail."""
    return Deferred(services.mcp.remove(command.name), Accepted(command="remove_mcp"))


async def restart_mcp(services: Services, command: commands.RestartMcp) -> Reply:
    """Reconnect to a server at once."""
    services.mcp.restart(command.name)
    return Accepted(command="restart_mcp")


async def list_mcp(services: Services, _command: commands.ListMcp) -> Reply:
    """List the servers and their states."""
    return McpServers(servers=services.mcp.summaries(), cursor=cursor(services.hub.head))
