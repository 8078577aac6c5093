"""The description and the status of an MCP server."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from nousd.wire.limits import (
    MCP_TIMEOUT_MS_MAX,
    MCP_TTL_SECONDS_MAX,
    MCP_VALUE_CHARS_MAX,
    MCP_VALUES_MAX,
)
from nousd.wire.objects.tool_footprint import ToolClass

SERVER_NAME = r"^[a-z0-9][a-z0-9-]{0,31}$(?!\n)"

ServerName = Annotated[str, Meta(pattern=SERVER_NAME, examples=["files"])]
"""The name of a server in nousd; its tools are ``mcp__<server>__<tool>``."""

Value = Annotated[str, Meta(min_length=1, max_length=MCP_VALUE_CHARS_MAX)]
Words = Annotated[tuple[Value, ...], Meta(max_length=MCP_VALUES_MAX)]
Table = Annotated[dict[Value, Value], Meta(max_length=MCP_VALUES_MAX)]
Classes = Annotated[tuple[ToolClass, ...], Meta(max_length=4)]
ClassesOfTools = Annotated[dict[Value, Classes], Meta(max_length=MCP_VALUES_MAX)]
TimeoutMs = Annotated[int, Meta(ge=1, le=MCP_TIMEOUT_MS_MAX)]

ServerTtl = Annotated[int, Meta(ge=1, le=MCP_TTL_SECONDS_MAX)]

McpState = Literal["connecting", "ready", "backoff", "failed"]
"""``backoff``: it failed and is retried automatically. ``failed``: only ``restart_mcp`` retries it."""


class McpServer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How an MCP server is reached: by a ``command`` or a ``url``. The keys are those of ``add_mcp``."""

    name: ServerName
    command: Words | UnsetType = UNSET
    url: Value | UnsetType = UNSET
    env: Table | UnsetType = UNSET
    headers: Table | UnsetType = UNSET
    cwd: Value | UnsetType = UNSET
    classes: Classes | UnsetType = UNSET
    tool_classes: ClassesOfTools | UnsetType = UNSET
    tools: Words | UnsetType = UNSET
    timeout_ms: TimeoutMs | UnsetType = UNSET


class McpServerSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An MCP server and its status. Values of ``env`` and ``headers`` are not shown."""

    name: str
    session_id: str | UnsetType = UNSET
    origin: Literal["config", "add_mcp", "project"]
    transport: Literal["stdio", "http"]
    state: McpState | Literal["disabled"]
    restarts: int
    tools: tuple[str, ...]
    command: tuple[str, ...] | UnsetType = UNSET
    url: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    protocol_version: str | UnsetType = UNSET
    left_out: tuple[str, ...] | UnsetType = UNSET
