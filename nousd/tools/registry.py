"""The tools of one daemon, by name. Which of them a session may use is not decided here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from nousd.errors import ConfigError
from nousd.tools.interface import Tool

TOOL_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", re.ASCII)
"""Model APIs take 64 characters at most."""


class ToolRegistry:
    """Tools in the order in which they were registered.

    Raises:
        ConfigError: if a name is taken or unusable.
    """

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            self.register(tool)

    def register(self, tool: Tool) -> None:
        """Adds a tool.

        Raises:
            ConfigError: if its name is taken or unusable.
        """
        if not TOOL_NAME.fullmatch(tool.name):
            raise ConfigError(f"tool name {tool.name!r} must match {TOOL_NAME.pattern}")
        if tool.name in self._tools:
            taken = self._tools[tool.name].source
            raise ConfigError(f"tool {tool.name} of {tool.source} exists already, from {taken}")
        self._tools[tool.name] = tool

    def get(self, name: str) -> Tool | None:
        """Returns the tool, None if there is none of that name."""
        return self._tools.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools
