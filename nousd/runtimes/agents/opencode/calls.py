"""The calls that ``opencode serve`` reports and asks about, and the effects of its own tools."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

import trio

from nousd.runtimes.agents.interface import AgentCall
from nousd.runtimes.agents.opencode import messages
from nousd.runtimes.agents.time_limits import REPORT_SECONDS
from nousd.runtimes.agents.tools.call_reports import ToolCall
from nousd.runtimes.agents.tools.own_tools import Facts

_CALLS_MAX: Final = 1000
"""Maximum number of calls of one turn that are remembered for permission requests."""

STATUSES: Final = {"running": "in_progress", "completed": "completed", "error": "failed"}
"""The program's status of a call -> the status in the Agent Client Protocol."""


class CallParts:
    """The calls of the current turn, each as last reported by the program."""

    def __init__(self) -> None:
        self._parts: dict[str, messages.Part] = {}
        self._has_news = trio.Event()

    def clear(self) -> None:
        """Forget all calls, because a turn begins."""
        self._parts.clear()

    def take(self, part: messages.Part, state: messages.ToolState) -> ToolCall:
        """Remember the state of a call; return it as a report."""
        if part.call_id in self._parts or len(self._parts) < _CALLS_MAX:
            self._parts[part.call_id] = part
        self._has_news.set()
        self._has_news = trio.Event()
        return _build_report(part, state)

    async def find_call(self, request: messages.PermissionNote) -> ToolCall:
        """Return the call of a permission request, as soon as the program has reported it. If the report
        does not come in time, return the request as a call.
        """
        id_ = request.tool.call_id if request.tool is not None else ""
        with trio.move_on_after(REPORT_SECONDS if id_ else 0):
            while id_ not in self._parts:
                await self._has_news.wait()
        part = self._parts.get(id_)
        if part is not None and part.state is not None:
            return _build_report(part, part.state)
        return ToolCall(id_ or request.id, name=request.permission, raw_input=request.metadata)


def facts_of(call: AgentCall) -> Facts:
    """Return the effects of a call of the program's own tool, as its arguments show them."""
    args = {name: value for name, value in call.args.items() if isinstance(value, str)}
    path = args.get("filePath")
    match call.name:
        case "read" if path:
            return Facts(frozenset({"read"}), (path,))
        case "grep" | "glob" | "list":
            return Facts(frozenset({"read"}), (args.get("path") or ".",))
        case "write" | "edit" if path:
            return Facts(frozenset({"read", "write"}), (path,))
        case "bash" if "command" in args:
            return Facts(command=args["command"])
        case "webfetch" if host := urlsplit(args.get("url", "")).hostname:
            return Facts(frozenset({"network"}), hosts=(host,))
        case "websearch":
            return Facts(frozenset({"network"}))
        case _:
            return Facts()


def _build_report(part: messages.Part, state: messages.ToolState) -> ToolCall:
    return ToolCall(
        part.call_id,
        title=part.tool,
        name=part.tool,
        status=STATUSES.get(state.status),
        raw_input=state.input,
        raw_output=state.error or state.output,
    )
