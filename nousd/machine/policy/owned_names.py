"""The names under which external agents are offered tools of ours.

An agent has tools of its own called ``read`` or ``bash``; ours have names that cannot be mistaken for
them. Each is one of our tools, so the rules for that one bind it too.
"""

from __future__ import annotations

from typing import Final

OWNED: Final = {
    "workspace.read": "read",
    "workspace.write": "write",
    "patch.apply": "patch",
    "workspace.exec": "bash",
}
"""Name towards agents -> our tool. No two share one."""


def names_of(tool: str) -> tuple[str, ...]:
    """Return the names under which rules can mean a tool: its own, and that of the tool that it is."""
    ours = OWNED.get(tool)
    return (tool,) if ours is None else (tool, ours)
