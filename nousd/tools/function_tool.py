"""A tool made of a function: what every built-in and every extension's tool is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from nousd.tools.arguments import Arguments, struct_arguments
from nousd.tools.interface import ToolContext, ToolResult


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """Keeps the interface ``Tool``.

    Args:
        function: called with the checked arguments and the context of the call.
    """

    name: str
    description: str
    source: str
    arguments: Arguments
    function: Callable[[Any, ToolContext], Awaitable[ToolResult]]

    @property
    def parameters(self) -> dict[str, Any]:
        return self.arguments.schema

    def validated(self, args: Mapping[str, Any]) -> msgspec.Struct | Mapping[str, Any]:
        checked: msgspec.Struct | Mapping[str, Any] = self.arguments.checked(self.name, args)
        return checked

    async def run(self, args: Any, context: ToolContext) -> ToolResult:
        return await self.function(args, context)


def builtin(
    name: str,
    description: str,
    struct: type[msgspec.Struct],
    function: Callable[[Any, ToolContext], Awaitable[ToolResult]],
    aliases: Mapping[str, str],
) -> FunctionTool:
    """Makes a built-in tool of a function and the struct of its arguments."""
    return FunctionTool(
        name=name,
        description=description,
        source="builtin",
        arguments=struct_arguments(struct, aliases),
        function=function,
    )
