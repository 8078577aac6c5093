"""A tool of an MCP server, as any other tool."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from nousd.tools.interface import ToolContext, ToolResult
from nousd.tools.mcp.definitions import Definition
from nousd.wire.objects.policy import ExecutedBy
from nousd.wire.objects.tool_footprint import Access, ToolClass

Call = Callable[[str, Mapping[str, Any], ToolContext], Awaitable[ToolResult]]
"""Takes the server's own name of a tool, arguments and the context of the call."""


class McpTool(msgspec.Struct, frozen=True):
    """Keeps the interface ``Tool``.

    Args:
        classes: what a call may do, by the user's word and never the server's.
        call: has the server carry out a call.
    """

    definition: Definition
    source: str
    classes: frozenset[ToolClass]
    call: Call
    executed_by: ExecutedBy = "mcp"
    is_read_only: bool = False

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def description(self) -> str:
        return self.definition.description

    @property
    def parameters(self) -> dict[str, Any]:
        return self.definition.schema

    def validated(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        checked: Mapping[str, Any] = self.definition.arguments.checked(self.name, args)
        return checked

    async def access(self, args: Any, context: ToolContext) -> Access:  # noqa: ARG002
        return Access(classes=self.classes, definition=self.definition.hash)

    async def run(self, args: Any, context: ToolContext) -> ToolResult:
        return await self.call(self.definition.original, args, context)
