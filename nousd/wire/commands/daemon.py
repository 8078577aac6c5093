"""Commands about the daemon itself: its capabilities, models, MCP servers, metrics and extensions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nousd.wire.commands.base import AnsweredBy, Command
from nousd.wire.objects.mcp import (
    Classes,
    ClassesOfTools,
    ServerName,
    Table,
    TimeoutMs,
    Value,
    Words,
)
from nousd.wire.objects.words import Name

if TYPE_CHECKING:
    from nousd.wire.responses import (  # noqa: F401  in quotes below
        Accepted,
        Capabilities,
        McpServers,
        Metrics,
        Models,
        Pong,
    )


class AddMcp(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Adds an MCP server, for good, or replaces one that was added so."""

    name: ServerName
    command: Words | None = None
    url: Value | None = None
    env: Table | None = None
    headers: Table | None = None
    cwd: Value | None = None
    classes: Classes | None = None
    tool_classes: ClassesOfTools | None = None
    tools: Words | None = None
    timeout_ms: TimeoutMs | None = None


class RemoveMcp(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Takes away an MCP server that was added by ``add_mcp``."""

    name: ServerName


class RestartMcp(AnsweredBy["Accepted"], frozen=True, kw_only=True):
    """Ends the connection to an MCP server and connects anew at once."""

    name: ServerName


class ListMcp(AnsweredBy["McpServers"], frozen=True, kw_only=True):
    """Reads which MCP servers there are, and the status of each."""


class GetMetrics(AnsweredBy["Metrics"], frozen=True, kw_only=True):
    """Reads the figures of the daemon's process: how much is open, waits and was written."""


class Ping(AnsweredBy["Pong"], frozen=True, kw_only=True):
    """Answers ``pong``."""


class GetCapabilities(AnsweredBy["Capabilities"], frozen=True, kw_only=True):
    """Lists what this daemon can do beyond the frozen contract."""


class ListModels(AnsweredBy["Models"], frozen=True, kw_only=True):
    """Lists the models that can be asked: those that the servers list, and those that are configured."""

    provider: Name | None = None
    refresh: bool = False


class ExtensionCommand(Command, frozen=True, kw_only=True):
    """Calls a command that an extension registered. A payload that is no object counts as {}."""

    name: Name
    payload: Any = None
