"""The tools offered to external agents: some built-in tools under names of their own, and MCP tools
under the names that they have in the session.
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
"""Maximum number of tools offered to an agent: some models accept no more."""

OFFERED_BYTES_MAX: Final = 256 * 1024
"""Maximum size of the JSON of all these tools, which every model call of the agent contains."""


class AgentTools(Mapping[str, Tool]):
    """The tools that can be offered to an agent in a session, by name: first built-in tools, then
    tools of the session's own MCP servers, then tools of the daemon's.

    Args:
        tools: the daemon's current tools.
    """

    def __init__(self, tools: ToolRegistry, session_id: str) -> None:
        self._own = tools.own(session_id)
        self._tools = tools

    def __getitem__(self, name: str) -> Tool:
        builtin_name = OWNED.get(name)
        if builtin_name is not None:
            tool = self._tools[builtin_name]
            assert isinstance(tool, FunctionTool), "owned tools are built in"
            return msgspec.structs.replace(tool, name=name)
        found = self._own[name] if name in self._own else self._tools[name]
        if not _is_of_server(found):
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        yield from (name for name, builtin_name in OWNED.items() if builtin_name in self._tools)
        for tools in (self._own, self._tools):
            yield from (name for name, tool in tools.items() if _is_of_server(tool))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Offer(NamedTuple):
    """The tools offered to an agent, and the names of the tools left out."""

    tools: tuple[AgentTool, ...]
    left_out: tuple[str, ...]


def offer_of(tools: AgentTools, is_active: Callable[[str], bool]) -> Offer:
    """Return the offer for a session's agent: the first tools, in their order, that fit into the limits.
    A tool whose name for programs is already taken is left out.

    Args:
        is_active: returns whether the session may use the tool of a name.
    """
    offered: dict[str, AgentTool] = {}
    left_out: list[str] = []
    size, is_full = 0, False
    for name in filter(is_active, tools):
        program_name = mcp_name(name)
        if is_full or program_name in offered:
            left_out.append(name)
            continue
        tool = describe_tool(tools[name])
        size += len(encode_json(tool))
        is_full = len(offered) >= OFFERED_MAX or size > OFFERED_BYTES_MAX
        if is_full:
            left_out.append(name)
        else:
            offered[program_name] = tool
    return Offer(tuple(offered.values()), tuple(left_out))


def _is_of_server(tool: Tool) -> bool:
    return tool.executed_by == "mcp"
