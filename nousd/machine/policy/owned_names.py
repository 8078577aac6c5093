"""The names under which nousd offers its own tools to external agents.

An agent has tools of its own called ``read`` or ``bash``; nousd's tools have names that cannot be
mistaken for them. The rules for a tool of nousd also apply to it under such a name.
"""

from __future__ import annotations

from typing import Final

OWNED: Final = {
    "workspace.read": "read",
    "workspace.write": "write",
    "patch.apply": "patch",
    "workspace.exec": "bash",
}
"""name for agents -> nousd's tool; no two names share one."""


def names_of(tool: str) -> tuple[str, ...]:
    """Return the names by which rules can refer to a tool: its own, and that of nousd's tool."""
    ours = OWNED.get(tool)
    return (tool,) if ours is None else (tool, ours)
