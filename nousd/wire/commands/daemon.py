"""Commands about the daemon itself: its capabilities, models, MCP servers, metrics and extensions."""

from __future__ import annotations

from typing import Any

from nousd.wire.commands.base import AnsweredBy, Command
from nousd.wire.objects.field_types import Name
from nousd.wire.objects.mcp import (
    Classes,
    ClassesOfTools,
    ServerName,
    ServerTtl,
    Table,
    TimeoutMs,
    Value,
    Words,
)
from nousd.wire.responses import (
    Accepted,
    Capabilities,
    McpServers,
    Metrics,
    Models,
    Pong,
)


class AddMcp(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Add an MCP server, permanently or to one session, or replace one added before."""

    name: ServerName
    session_id: Name | None = None
    if_approved: bool = False
    ttl_seconds: ServerTtl | None = None
    command: Words | None = None
    url: Value | None = None
    env: Table | None = None
    headers: Table | None = None
    cwd: Value | None = None
    classes: Classes | None = None
    tool_classes: ClassesOfTools | None = None
    tools: Words | None = None
    timeout_ms: TimeoutMs | None = None


class RemoveMcp(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Remove an MCP server added by ``add_mcp``, and its tools; calls in progress fail."""

    name: ServerName
    session_id: Name | None = None


class RestartMcp(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Close the connection to an MCP server, configured or added, and reconnect at once."""

    name: ServerName
    session_id: Name | None = None


class ListMcp(AnsweredBy[McpServers], frozen=True, kw_only=True):
    """List the MCP servers and their status."""

    session_id: Name | None = None


class GetMetrics(AnsweredBy[Metrics], frozen=True, kw_only=True):
    """Read the metrics of the daemon's process: open, pending and written items."""


class Ping(AnsweredBy[Pong], frozen=True, kw_only=True):
    """Check that the daemon responds."""


class GetCapabilities(AnsweredBy[Capabilities], frozen=True, kw_only=True):
    """List what this daemon supports beyond the frozen contract, and its limits."""

    restricted: bool = False


class ListModels(AnsweredBy[Models], frozen=True, kw_only=True):
    """List the available models, from the providers' servers and from the configuration."""

    provider: Name | None = None
    refresh: bool = False
    runtime: Name | None = None


class ExtensionCommand(Command, frozen=True, kw_only=True):
    """Call a command that an extension registered."""

    name: Name
    payload: Any = None
