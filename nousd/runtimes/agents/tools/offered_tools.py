"""The tools that external agents are offered: some of ours under names of their own, and those of MCP
servers under the names that they have in the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from nousd.machine.policy.owned_names import OWNED
from nousd.runtimes.agents.interface import AgentTool
from nousd.runtimes.agents.tools.mcp_tools import mcp_name
from nousd.runtimes.agents.tools.schemas import describe_tool
from nousd.tools.function_tool import FunctionTool
from nousd.tools.interface import Tool
from nousd.tools.registry import ToolRegistry
from nousd.wire.codec.envelope import encode_json

OFFERED_MAX: Final = 128
"""Tools that an agent is offered: some models take no more."""

OFFERED_BYTES_MAX: Final = 256 * 1024
"""JSON of these tools, all together: every model call of the agent has it."""


class AgentTools(Mapping[str, Tool]):
    """The tools that agents may be offered in a session, by name; those of its own servers come before
    those of the daemon's.

    Args:
        tools: the daemon's current tools.
    """

    def __init__(self, tools: ToolRegistry, session_id: str) -> None:
        self._own = tools.own(session_id)
        self._tools = tools

    def __getitem__(self, name: str) -> Tool:
        ours = OWNED.get(name)
        if ours is not None:
            tool = self._tools[ours]
            assert isinstance(tool, FunctionTool), "owned tools are built in"
            return msgspec.structs.replace(tool, name=name)
        found = self._own[name] if name in self._own else self._tools[name]
        if not _is_of_server(found):
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        yield from (name for name, ours in OWNED.items() if ours in self._tools)
        for tools in (self._own, self._tools):
            yield from (name for name, tool in tools.items() if _is_of_server(tool))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Offer(NamedTuple):
    """The tools that an agent is offered, and the names of those for which there is no room."""

    tools: tuple[AgentTool, ...]
    left_out: tuple[str, ...]


def offer_of(tools: AgentTools, is_active: Callable[[str], bool]) -> Offer:
    """Return what a session's agent is offered: as many of the tools, in their order, as there is room
    for. One that would have the name of another towards programs is left out.

    Args:
        is_active: says of a name whether the session may use it.
    """
    offered: dict[str, AgentTool] = {}
    left_out: list[str] = []
    size, is_full = 0, False
    for name in filter(is_active, tools):
        towards = mcp_name(name)
        if is_full or towards in offered:
            left_out.append(name)
            continue
        tool = describe_tool(tools[name])
        size += len(encode_json(tool))
        is_full = len(offered) >= OFFERED_MAX or size > OFFERED_BYTES_MAX
        if is_full:
            left_out.append(name)
        else:
            offered[towards] = tool
    return Offer(tuple(offered.values()), tuple(left_out))


def _is_of_server(tool: Tool) -> bool:
    return tool.executed_by == "mcp"
