"""Offers tools as an MCP server, to agents that take them in that form, and names tools for programs.

The adapter transports the messages.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from nousd.machine.policy.owned_names import OWNED
from nousd.net.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, RpcError
from nousd.runtimes.agents.interface import AgentTool
from nousd.tools.interface import ToolResult
from nousd.wire.codec.decoding import decode_json

SERVER: Final = "nousd"
"""The name of the server, as agents and their models see it."""

_PROTOCOL_VERSION: Final = "2025-06-18"


class ToolCallParams(msgspec.Struct):
    """The parameters of ``tools/call``. ``meta`` has the client's additions, such as its id of the
    call.
    """

    name: str
    arguments: dict[str, Any] = {}
    meta: dict[str, Any] = msgspec.field(name="_meta", default_factory=dict)


class _InitializeParams(msgspec.Struct, rename="camel"):
    protocol_version: str = _PROTOCOL_VERSION


RunTool = Callable[[str, ToolCallParams], Awaitable[ToolResult]]
"""Carries out a call of a tool, given its name in nousd."""


_MCP_PREFIX: Final = "mcp__"
"""The prefix of MCP tool names in nousd and in Codex, which accepts no offered tool with such a name."""

_CHARS_MAX: Final = 52
"""With a program's prefix, such as ``mcp__nousd__``, a name has 64 characters, the limit of models."""

_HASH_CHARS: Final = 8
_HASH_PREFIX: Final = "tool_"
_UNUSABLE: Final = re.compile(r"[^A-Za-z0-9_-]")


def mcp_name(tool: str) -> str:
    """Return a tool's name for programs: letters, digits, ``_`` and ``-``, without the ``mcp__`` of
    an MCP tool. If that is not usable or too long, the name becomes a hash of the whole name and as
    much of its end as fits, so that different tools keep different names.
    """
    if tool in OWNED:
        return tool.replace(".", "_")
    name = tool.removeprefix(_MCP_PREFIX)
    usable = _UNUSABLE.sub("_", name)
    if usable == name and len(name) <= _CHARS_MAX and not f"{name}__".startswith(_MCP_PREFIX):
        return name
    digest = hashlib.sha256(tool.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    prefix = f"{_HASH_PREFIX}{digest}_"
    return f"{prefix}{usable[len(prefix) - _CHARS_MAX :]}"


class McpTools:
    """Answers the requests of one MCP client."""

    def __init__(self, tools: Sequence[AgentTool], run: RunTool) -> None:
        self._tools = {mcp_name(tool.name): tool for tool in tools}
        self._run = run

    async def answer(self, method: str, params: msgspec.Raw) -> Any:
        """Return the result of a request.

        Raises:
            RpcError: the request fails; the error is its answer.
        """
        match method:
            case "initialize":
                initialize_params = decode_json(params, type=_InitializeParams)
                return {
                    "protocolVersion": initialize_params.protocol_version,
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": SERVER, "version": "1"},
                }
            case "ping":
                return {}
            case "tools/list":
                return {"tools": [self._describe_tool(name) for name in self._tools]}
            case "tools/call":
                return await self._call(decode_json(params, type=ToolCallParams))
            case _:
                raise RpcError(METHOD_NOT_FOUND, f"there is no method {method}")

    def _describe_tool(self, name: str) -> dict[str, Any]:
        tool = self._tools[name]
        return {"name": name, "description": tool.description, "inputSchema": tool.parameters}

    async def _call(self, params: ToolCallParams) -> Any:
        tool = self._tools.get(params.name)
        if tool is None:
            raise RpcError(INVALID_PARAMS, f"there is no tool {params.name}")
        result = await self._run(tool.name, params)
        return {"content": [{"type": "text", "text": result.text}], "isError": result.is_error}
