"""Mapping the contract's names of tools to tools of nousd.

A name that is not in the table is the tool of nousd with the same name. This module does not know which
tools are registered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

ANY: Final = "*"

_OURS: Final[Mapping[str, tuple[str, ...]]] = {
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

_OF_SERVER: Final = "mcp."


def tools_of(name: str) -> tuple[str, ...]:
    """Return nousd's names for a name in the contract; ``*`` matches any characters."""
    theirs = _canonical(name)
    if theirs.startswith(_OF_SERVER):
        return ("__".join(name.strip().split(".", 2)),)
    if ANY not in theirs:
        return _OURS.get(theirs, (name,))
    meant = [
        ours for tool, several in _OURS.items() if fnmatchcase(tool, theirs) for ours in several
    ]
    # Names of nousd that the pattern itself matches would be redundant.
    return tuple(dict.fromkeys((name, *(ours for ours in meant if not fnmatchcase(ours, name)))))


def list_ruled_tools(name: str) -> tuple[str, ...]:
    """Return the tools that a rule covers: those of ``tools_of`` for the name as given, and for its
    spelling in the engine. Without the latter, a rule about ``Bash`` would match no tool.
    """
    theirs = _canonical(name)
    spelled = (name,) if theirs.startswith(_OF_SERVER) else (name, theirs)
    return tuple(dict.fromkeys(ours for each in spelled for ours in tools_of(each)))


def is_same_tool(one: str, other: str) -> bool:
    """Return whether two names in the contract denote the same tool."""
    return _canonical(one) == _canonical(other)


def list_allowed_tools(names: Iterable[str], there: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the tools that a list of names allows.

    Args:
        there: the registered tools, among which names with ``*`` are resolved.
    """
    found: dict[str, None] = {}
    for tool in (tool for name in names for tool in tools_of(name)):
        matching = [each for each in there if fnmatchcase(each, tool)] if ANY in tool else [tool]
        found.update(dict.fromkeys(matching))
    return tuple(found)


def _canonical(name: str) -> str:
    return name.strip().lower().replace("-", "_")
