"""Converts the items of Codex that are calls of its own tools."""

from __future__ import annotations

from typing import Any

from nousd.runtimes.agents.codex.messages import Item
from nousd.runtimes.agents.interface import AgentCall
from nousd.runtimes.agents.tools.own_tools import Facts
from nousd.tools.interface import ToolResult

SHELL = "shell"
PATCH = "apply_patch"
_SEARCH = "web_search"
_IMAGE = "view_image"


def call_of(item: Item) -> AgentCall | None:
    """Return an item as a call of the program's own tool; None if it is not such a call."""
    args: dict[str, Any]
    match item.type:
        case "commandExecution":
            name, args = SHELL, {"command": item.command, "cwd": item.cwd}
        case "fileChange":
            name, args = PATCH, {"changes": item.changes}
        case "webSearch":
            name, args = _SEARCH, {"query": item.query}
        case "imageView":
            name, args = _IMAGE, {"path": item.path}
        case _:
            return None
    return AgentCall(agent_call_id=item.id, name=name, args=args)


def result_of(item: Item) -> ToolResult:
    """Return the result of a call. A search or a viewed picture reports only that it has ended."""
    text = item.aggregated_output or ""
    if item.exit_code:
        text = f"{text}\n[exit code {item.exit_code}]".strip()
    return ToolResult(text or item.status or "done", is_error=item.status == "failed")


def facts_of(call: AgentCall) -> Facts:
    """Return the effects of a call of the program's own tool, as its arguments show them."""
    match call.name:
        case "shell" if isinstance(command := call.args.get("command"), str):
            return Facts(command=command)
        case "apply_patch":
            paths = _list_changed_files(call.args.get("changes"))
            return Facts(frozenset({"read", "write"}), paths) if paths else Facts()
        case _:
            return Facts()


def _list_changed_files(changes: Any) -> tuple[str, ...]:
    """Return the files that a patch changes; none if one of its changes has an unknown form."""
    paths: list[str] = []
    for change in changes if isinstance(changes, list) else ():
        kind = change.get("kind") if isinstance(change, dict) else None
        if not isinstance(kind, dict) or not isinstance(path := change.get("path"), str):
            return ()
        moved = kind.get("move_path")
        paths += [path, *([moved] if isinstance(moved, str) else [])]
    return tuple(paths)
