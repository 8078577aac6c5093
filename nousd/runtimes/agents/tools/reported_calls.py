"""The tool calls that a program reports in its stream, from the first report to the result.

Those of our tools are carried out by the daemon, which writes them itself; they are recognized by the
names that programs give the tools of an MCP server. The program's own ones are observed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import trio

from nousd.machine.policy.owned_names import OWNED
from nousd.runtimes.agents.interface import AgentCall, AgentTool
from nousd.runtimes.agents.time_limits import REPORT_SECONDS
from nousd.runtimes.agents.tools.call_reports import ServerCall, ToolCall
from nousd.runtimes.agents.tools.mcp_tools import SERVER, mcp_name
from nousd.tools.interface import ToolResult
from nousd.wire.codec.decoding import convert
from nousd.wire.codec.envelope import encode_json

_CALLS_MAX: Final = 1000
"""Calls of one turn that are remembered; further ones are not observed."""

_RESULT_CHARS_MAX: Final = 65_536
"""Maximum size of a kept result of the program's own."""

_OTHER: Final = "other"
"""The kind of a call of which the program knows nothing else, such as one of an MCP server."""

_NAME: Final = r"[A-Za-z_][A-Za-z0-9_-]{0,63}"

_UNKNOWN_KINDS: Final = frozenset({None, _OTHER})

_OVER: Final = frozenset({"completed", "failed"})


class ObservedCall(NamedTuple):
    """A call that the program has carried out itself in so many seconds, without asking."""

    call: AgentCall
    result: ToolResult
    seconds: float


class _ReportedCall(msgspec.Struct):
    """A call as far as it is known."""

    told: ToolCall
    title: str
    ours: str | None
    is_settled: bool = False
    since: float = msgspec.field(default_factory=trio.current_time)

    def to_observed(self, result: ToolResult) -> ObservedCall:
        """Return the call with its result."""
        # Programs without names begin with the name as the title, and then describe the call.
        label = self.title if re.fullmatch(_NAME, self.title) else ""
        return ObservedCall(
            to_agent_call(self.told, label), result, trio.current_time() - self.since
        )


class ReportedCalls:
    """The calls of one turn at a time.

    Args:
        tools: ours.
    """

    def __init__(self, tools: Sequence[AgentTool]) -> None:
        self._ours = {label: tool.name for tool in tools for label in _labels(tool.name)}
        self._of_server = {mcp_name(tool.name): tool.name for tool in tools}
        self._calls: dict[str, _ReportedCall] = {}
        self._has_news = trio.Event()
        self._reports_calls = True

    def clear(self) -> None:
        """Forget the calls, because a turn begins."""
        self._calls.clear()

    def is_ours(self, told: ToolCall) -> bool:
        """Return whether a call that the program asks about is one of our tools."""
        reported = self._remember(told)
        is_known_else = told.kind not in _UNKNOWN_KINDS and _server_call(reported.told) is None
        return reported.ours is not None and not is_known_else

    def begin_judgement(self, told: ToolCall) -> AgentCall:
        """Return a call of the program's own for the gate to judge. Until ``allow`` its result is not
        observed.
        """
        reported = self._remember(told)
        reported.is_settled = True
        return to_agent_call(reported.told)

    def allow(self, call: AgentCall) -> None:
        """Let the result of a judged call be observed: the program may carry it out."""
        if call.agent_call_id in self._calls:
            self._calls[call.agent_call_id].is_settled = False

    def take(self, told: ToolCall) -> ObservedCall | None:
        """Take a report; return a call of the program's own, with its result, once it is over."""
        reported = self._remember(told)
        if reported.told.status not in _OVER or reported.is_settled or reported.ours is not None:
            return None
        reported.is_settled = True
        ended = reported.to_observed(_result(reported.told))
        reported.told.content = reported.told.raw_output = None
        return ended

    def list_unfinished(self) -> list[ObservedCall]:
        """Return the program's own calls that it has not reported as ended."""
        lost = ToolResult("The agent did not say how the call ended.", is_error=True)
        return [
            reported.to_observed(lost)
            for reported in self._calls.values()
            if not reported.is_settled and reported.ours is None
        ]

    async def id_of(self, name: str, args: Mapping[str, Any], sent: str) -> str:
        """Return the program's id of a call of ours: that of the oldest reported one that fits; empty
        if there is none.

        The report may come a little later than the call, and behind it what the model said before: it
        is waited for, unless the last one did not come.

        Args:
            sent: the id that came with the call, if one did.
        """
        found = self._find_id(name, args, sent)
        with trio.move_on_after(REPORT_SECONDS if self._reports_calls else 0) as limit:
            while not found:
                await self._has_news.wait()
                found = self._find_id(name, args, sent)
        self._reports_calls = not limit.cancelled_caught
        return found or sent

    def _find_id(self, name: str, args: Mapping[str, Any], sent: str) -> str:
        if sent:
            return sent if sent in self._calls else ""
        for id_, reported in self._calls.items():
            of_server = _server_call(reported.told)
            given = reported.told.raw_input if of_server is None else of_server.arguments
            fits = reported.ours == name and given in (None, {}, args)
            if fits and not reported.is_settled:
                reported.is_settled = True
                return id_
        return ""

    def _remember(self, told: ToolCall) -> _ReportedCall:
        self._has_news.set()
        self._has_news = trio.Event()
        reported = self._calls.get(told.tool_call_id)
        if reported is None:
            reported = _ReportedCall(told, told.title or "", self._owner(told))
            self._reports_calls |= reported.ours is not None
            if len(self._calls) < _CALLS_MAX:
                self._calls[told.tool_call_id] = reported
            return reported
        changed = {
            field: value
            for field in told.__struct_fields__
            if (value := getattr(told, field)) is not None
        }
        reported.told = msgspec.structs.replace(reported.told, **changed)
        if reported.is_settled or reported.ours is not None:
            # What it gave is not asked for any more, and may be long.
            reported.told.content = reported.told.raw_output = None
        return reported

    def _owner(self, told: ToolCall) -> str | None:
        """Return our tool that is called. A title may be chosen by the model, so it counts only if the
        program knows the call as nothing else; the mark of a server's tool is the program's own.
        """
        of_server = _server_call(told)
        if of_server is not None:
            return self._of_server.get(of_server.tool) if of_server.server == SERVER else None
        if told.kind not in _UNKNOWN_KINDS:
            return None
        return self._ours.get(told.name or told.title or "")


def _labels(tool: str) -> tuple[str, ...]:
    """Return the names that programs give a tool of our server. Without the server in it, the name of an
    MCP server's tool may as well mean one of the program's own, so that does not count.
    """
    name = mcp_name(tool)
    return (
        *((name,) if tool in OWNED else ()),
        f"{SERVER}_{name}",
        f"mcp_{SERVER}_{name}",
        f"mcp__{SERVER}__{name}",
        f"{SERVER}/{name}",
        f"{SERVER}.{name}",
        f"{name} ({SERVER} MCP Server)",
    )


def _server_call(told: ToolCall) -> ServerCall | None:
    """Return the server's tool of a call that the program marks as such."""
    if told.meta is None or not told.meta.is_mcp_tool_call:
        return None
    try:
        return convert(told.raw_input, ServerCall)
    except msgspec.ValidationError:
        return None


def to_agent_call(told: ToolCall, label: str = "") -> AgentCall:
    """Return a call of the program's own as far as it is reported; ``label`` is its name if none is."""
    # None of ours, most of which have dots: it would look like one in the log.
    name = (told.name or "").replace(".", "_")
    known = told.raw_input if isinstance(told.raw_input, dict) else {}
    return AgentCall(
        agent_call_id=told.tool_call_id,
        name=name or label or told.kind or _OTHER,
        args=known or ({"title": told.title} if told.title else {}),
    )


def _result(told: ToolCall) -> ToolResult:
    said = [
        part.content.text if part.content is not None else f"[{part.type} {part.path}]"
        for part in told.content or ()
    ]
    if not said and told.raw_output is not None:
        raw = told.raw_output
        said = [raw if isinstance(raw, str) else encode_json(raw).decode()]
    text = "\n".join(said)
    if len(text) > _RESULT_CHARS_MAX:
        text = f"{text[:_RESULT_CHARS_MAX]}\n[{len(text)} characters; the rest is left out]"
    return ToolResult(text, is_error=told.status == "failed")
