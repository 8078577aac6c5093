"""What the contract calls tools, and which of ours that means.

A name that is not one of the engine's means the tool of that very name. Which of ours there are is not
known here.
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
"""tool of the engine -> those of ours that do this, none if nothing does; of the same name where it is
not here."""

_OF_SERVER: Final = "mcp."


def tools_of(name: str) -> tuple[str, ...]:
    """Returns the names of ours that a name of the contract's means; ``*`` stands for any characters."""
    theirs = _canonical(name)
    if theirs.startswith(_OF_SERVER):
        return ("__".join(name.strip().split(".", 2)),)
    if ANY not in theirs:
        return _OURS.get(theirs, (name,))
    meant = [
        ours for tool, several in _OURS.items() if fnmatchcase(tool, theirs) for ours in several
    ]
    # Of two patterns the narrower says nothing that the other does not.
    return tuple(dict.fromkeys((name, *(ours for ours in meant if not fnmatchcase(ours, name)))))


def tools_ruled(name: str) -> tuple[str, ...]:
    """Returns what ``tools_of`` does of a name as it is and as the engine would write it: a rule about a
    tool that is not there decides nothing, and ``Bash`` is one that nobody has.
    """
    theirs = _canonical(name)
    spelled = (name,) if theirs.startswith(_OF_SERVER) else (name, theirs)
    return tuple(dict.fromkeys(ours for each in spelled for ours in tools_of(each)))


def is_same_tool(one: str, other: str) -> bool:
    """Whether two names of the contract's are the same one."""
    return _canonical(one) == _canonical(other)


def allowed_tools(names: Iterable[str], there: Iterable[str] = ()) -> tuple[str, ...]:
    """Returns the tools that a list of names allows.

    Args:
        there: those that names with ``*`` are looked for in.
    """
    found: dict[str, None] = {}
    for tool in (tool for name in names for tool in tools_of(name)):
        matching = [each for each in there if fnmatchcase(each, tool)] if ANY in tool else [tool]
        found.update(dict.fromkeys(matching))
    return tuple(found)


def _canonical(name: str) -> str:
    return name.strip().lower().replace("-", "_")
