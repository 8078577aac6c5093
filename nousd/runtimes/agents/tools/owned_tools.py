"""Our tools as external agents are offered them: the same tools under names of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from nousd.machine.policy.owned_names import OWNED
from nousd.runtimes.agents.interface import AgentTool
from nousd.tools.function_tool import FunctionTool
from nousd.tools.interface import Tool
from nousd.wire.codec.canonical_json import expressible, nearest


class OwnedTools(Mapping[str, Tool]):
    """The tools of the daemon that have a name towards agents, under these names.

    Args:
        tools: the daemon's current tools.
    """

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._tools = tools

    def __getitem__(self, name: str) -> Tool:
        tool = self._tools[OWNED[name]]
        assert isinstance(tool, FunctionTool), "owned tools are built in"
        return msgspec.structs.replace(tool, name=name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, ours in OWNED.items() if ours in self._tools)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def offered(tools: OwnedTools, is_active: frozenset[str]) -> tuple[AgentTool, ...]:
    """Return the tools that a session's agent is offered.

    Args:
        is_active: the names that the session may use.
    """
    return tuple(
        AgentTool(tool.name, tool.description, expressible(tool.parameters, nearest))
        for name, tool in tools.items()
        if name in is_active
    )
