"""Reports of tool calls in the form of the Agent Client Protocol, to which other forms are converted.

Unknown keys are ignored. The protocol lets agents send null for missing values.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Content(msgspec.Struct, rename="camel"):
    """A piece of text, or of another content type."""

    type: str = ""
    text: str = ""


class ToolContent(msgspec.Struct, rename="camel"):
    """The output of a tool call."""

    type: str = ""
    content: Content | None = None
    path: str = ""


class CallMeta(msgspec.Struct):
    """Facts about a call that codex-acp adds to the protocol."""

    is_mcp_tool_call: bool = False


class ServerCall(msgspec.Struct):
    """The input of a call of an MCP server's tool, as codex-acp reports it."""

    server: str
    tool: str
    arguments: Any = None


class ToolCall(msgspec.Struct, rename="camel"):
    """``tool_call`` and ``tool_call_update``; values missing from an update have not changed."""

    tool_call_id: str
    title: str | None = None
    name: str | None = None
    kind: str | None = None
    status: str | None = None
    raw_input: Any = None
    raw_output: Any = None
    content: list[ToolContent] | None = None
    meta: CallMeta | None = msgspec.field(name="_meta", default=None)
