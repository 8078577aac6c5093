"""Mapping the contract's names of tools to tools of nousd.

A name that is not in the table is the tool of nousd with the same name. This module does not know which
tools are registered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

ANY: Final = "*"

_EQUIVALENT_TOOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "apply_patch": ("patch",),
    "cmd": ("bash",),
    "codesearch": ("grep",),
    "glob": ("find",),
    "list": ("ls",),
    "memory_delete": (),
    "memory_list": (),
    "memory_search": (),
    "memory_store": (),
    "pack_builder": (),
    "powershell": ("bash",),
    "run_command": ("bash",),
    "search": ("grep",),
    "shell": ("bash",),
    "todo_write": ("todo",),
    "todowrite": ("todo",),
    "update_todo_list": ("todo",),
    "update_todos": ("todo",),
    "webfetch": ("web_fetch",),
    "webfetch_html": ("web_fetch",),
    "websearch": (),
}
"""tool of the engine -> the equivalent tools of nousd, possibly none."""

_SERVER_PREFIX: Final = "mcp."


def tools_of(name: str) -> tuple[str, ...]:
    """Return nousd's names for a name in the contract; ``*`` matches any characters."""
    canonical = _canonical(name)
    if canonical.startswith(_SERVER_PREFIX):
        return ("__".join(name.strip().split(".", 2)),)
    if ANY not in canonical:
        return _EQUIVALENT_TOOLS.get(canonical, (name,))
    equivalents = [
        ours
        for tool, own_names in _EQUIVALENT_TOOLS.items()
        if fnmatchcase(tool, canonical)
        for ours in own_names
    ]
    # Names of nousd that the pattern itself matches would be redundant.
    return tuple(
        dict.fromkeys((name, *(ours for ours in equivalents if not fnmatchcase(ours, name))))
    )


def list_ruled_tools(name: str) -> tuple[str, ...]:
    """Return the tools that a rule covers: those of ``tools_of`` for the name as given, and for its
    spelling in the engine. Without the latter, a rule about ``Bash`` would match no tool.
    """
    canonical = _canonical(name)
    spellings = (name,) if canonical.startswith(_SERVER_PREFIX) else (name, canonical)
    return tuple(dict.fromkeys(ours for each in spellings for ours in tools_of(each)))


def is_same_tool(one: str, other: str) -> bool:
    """Return whether two names in the contract denote the same tool."""
    return _canonical(one) == _canonical(other)


def list_allowed_tools(names: Iterable[str], registered: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the tools that a list of names allows.

    Args:
        registered: the registered tools, among which names with ``*`` are resolved.
    """
    found: dict[str, None] = {}
    for tool in (tool for name in names for tool in tools_of(name)):
        matching = (
            [each for each in registered if fnmatchcase(each, tool)] if ANY in tool else [tool]
        )
        found.update(dict.fromkeys(matching))
    return tuple(found)


def _canonical(name: str) -> str:
    return name.strip().lower().replace("-", "_")
