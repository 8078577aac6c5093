"""How a program reports a tool call: the form of the Agent Client Protocol, to which others are brought.

Further keys are passed over. The protocol lets agents send null for what they leave out.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Content(msgspec.Struct, rename="camel"):
    """A piece of text, or of something else."""

    type: str = ""
    text: str = ""


class ToolContent(msgspec.Struct, rename="camel"):
    """The output of a tool call."""

    type: str = ""
    content: Content | None = None
    path: str = ""


class CallMeta(msgspec.Struct):
    """What codex-acp says of a call beside the protocol."""

    is_mcp_tool_call: bool = False


class ServerCall(msgspec.Struct):
    """The input of a call of an MCP server's tool, as codex-acp has it."""

    server: str
    tool: str
    arguments: Any = None


class ToolCall(msgspec.Struct, rename="camel"):
    """``tool_call`` and ``tool_call_update``; of the latter, what it lacks has not changed."""

    tool_call_id: str
    title: str | None = None
    name: str | None = None
    kind: str | None = None
    status: str | None = None
    raw_input: Any = None
    raw_output: Any = None
    content: list[ToolContent] | None = None
    meta: CallMeta | None = msgspec.field(name="_meta", default=None)
