"""Commands about MCP servers, whose tools are offered beside our own."""

from __future__ import annotations

from nousd.daemon.replies import Deferred, Reply
from nousd.daemon.services import Core
from nousd.wire import commands
from nousd.wire.commands.subscribe import cursor
from nousd.wire.responses import Accepted, McpServers


async def add_mcp(core: Core, command: commands.AddMcp) -> Reply:
    """Adds a server for good; that it can be reached is told by events."""
    return Deferred(core.mcp.add(command), Accepted(command="add_mcp"))


async def remove_mcp(core: Core, command: commands.RemoveMcp) -> Reply:
    """Takes a server away; calls of its tools that run fail."""
    return Deferred(core.mcp.remove(command.name), Accepted(command="remove_mcp"))


async def restart_mcp(core: Core, command: commands.RestartMcp) -> Reply:
    """Connects to a server anew, at once."""
    core.mcp.restart(command.name)
    return Accepted(command="restart_mcp")


async def list_mcp(core: Core, _command: commands.ListMcp) -> Reply:
    """Lists the servers and how they are."""
    return McpServers(servers=core.mcp.summaries(), cursor=cursor(core.hub.head))
