"""The current tools of one daemon, by name.

Tools appear and disappear while the daemon runs, with the servers that offer them. So callers keep no
copies, and compare ``version`` before they use derived data. Tools with an owner are found only in the
owner's name. The registry does not decide which of the other tools a session may use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from nousd.errors import ConfigError
from nousd.tools.interface import Tool

TOOL_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", re.ASCII)
"""Model APIs accept at most 64 characters."""


class ToolRegistry(Mapping[str, Tool]):
    """Permanent tools in the order of registration, followed by temporary ones by source and name, so
    that permanent tools never change their position.

    Args:
        late: returns tools that precede all others. It is called at the first lookup, because importing
            them takes time.

    Raises:
        ConfigError: a name is taken or unusable; for a late tool, raised at the first lookup.
    """

    def __init__(
        self, tools: Iterable[Tool] = (), *, late: Callable[[], Iterable[Tool]] | None = None
    ) -> None:
        self._known: dict[str, Tool] = {}
        self._late = late
        self._sources: dict[str, str] = {}
        self._owned: dict[str, ToolRegistry] = {}
        self.version = 0
        for tool in tools:
            _add(self._known, tool)
            self.version += 1

    @property
    def _tools(self) -> dict[str, Tool]:
        if self._late is not None:
            merged: dict[str, Tool] = {}
            for tool in (*self._late(), *self._known.values()):
                _add(merged, tool)
            self._known, self._late = merged, None
        return self._known

    def register(self, tool: Tool) -> None:
        """Add a permanent tool.

        Raises:
            ConfigError: its name is taken or unusable.
        """
        _add(self._tools, tool)
        self.version += 1

    def replace_all(self, source: str, tools: Iterable[Tool]) -> None:
        """Replace the tools of a source; an active call keeps its tool.

        Raises:
            ConfigError: as ``register``; then the source has no tools.
        """
        for name in [name for name, owner in self._sources.items() if owner == source]:
            del self._tools[name], self._sources[name]
        self.version += 1
        merged = dict(self._tools)
        for tool in tools:
            _add(merged, tool)
        sources = self._sources | dict.fromkeys(merged.keys() - self._tools.keys(), source)
        permanent = [name for name in merged if name not in sources]
        ordered = sorted(sources, key=lambda name: (sources[name], name))
        self._known = {name: merged[name] for name in (*permanent, *ordered)}
        self._sources = sources

    def ensure_registry(self, owner: str) -> ToolRegistry:
        """Return the registry of an owner's own tools, whose names must differ from all others; create
        it if needed. It is kept until ``disown``.
        """
        return self._owned.setdefault(owner, ToolRegistry())

    def disown(self, owner: str) -> None:
        """Remove the tools of an owner."""
        self._owned.pop(owner, None)

    def own(self, owner: str) -> Mapping[str, Tool]:
        """Return the tools that only this owner has."""
        return self._owned.get(owner, _NO_TOOLS)

    def of(self, owner: str) -> Mapping[str, Tool]:
        """Return the tools that an owner finds: the common ones, followed by its own."""
        own = self._owned.get(owner)
        return self if own is None else _JoinedTools(self, own)

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)


class _JoinedTools(Mapping[str, Tool]):
    """The tools of two registries, which have no name in common."""

    def __init__(self, first: ToolRegistry, second: ToolRegistry) -> None:
        self._first = first
        self._second = second

    def __getitem__(self, name: str) -> Tool:
        return self._second[name] if name in self._second else self._first[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._first
        yield from self._second

    def __len__(self) -> int:
        return len(self._first) + len(self._second)


_NO_TOOLS: Final[Mapping[str, Tool]] = {}


def _add(tools: dict[str, Tool], tool: Tool) -> None:
    if not TOOL_NAME.fullmatch(tool.name):
        raise ConfigError(f"tool name {tool.name!r} must match {TOOL_NAME.pattern}")
    if tool.name in tools:
        source = tools[tool.name].source
        raise ConfigError(f"tool {tool.name} of {tool.source} exists already, from {source}")
    tools[tool.name] = tool
