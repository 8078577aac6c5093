"""Follows the tool calls that a program reports in its stream, from the first report to the result.

The daemon carries out and logs the calls of offered tools itself; here they are recognized by the names
that programs give to the tools of an MCP server. Calls of the program's own tools are observed.
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
"""Maximum number of remembered calls of one turn; reports of further calls are not combined."""

_RESULT_CHARS_MAX: Final = 65_536
"""Maximum number of characters kept of the result of a program's own tool."""

_OTHER_KIND: Final = "other"
"""The kind of a call that the program does not classify, such as a call of an MCP tool."""

_NAME: Final = r"[A-Za-z_][A-Za-z0-9_-]{0,63}"

_UNKNOWN_KINDS: Final = frozenset({None, _OTHER_KIND})

_FINAL_STATUSES: Final = frozenset({"completed", "failed"})


class ObservedCall(NamedTuple):
    """A finished call of the program's own tool, with its result and duration."""

    call: AgentCall
    result: ToolResult
    seconds: float


class _ReportedCall(msgspec.Struct):
    """A call as far as it has been reported."""

    report: ToolCall
    title: str
    offered_name: str | None
    is_settled: bool = False
    started_at: float = msgspec.field(default_factory=trio.current_time)

    def to_observed(self, result: ToolResult) -> ObservedCall:
        """Return the call with its result."""
        # A program without a field for the name first sends the name as the title, then a description.
        label = self.title if re.fullmatch(_NAME, self.title) else ""
        return ObservedCall(
            to_agent_call(self.report, label), result, trio.current_time() - self.started_at
        )


class ReportedCalls:
    """The reported calls of the current turn.

    Args:
        tools: the offered tools.
    """

    def __init__(self, tools: Sequence[AgentTool]) -> None:
        self._offered_by_label = {
            label: tool.name for tool in tools for label in _labels(tool.name)
        }
        self._offered_by_mcp_name = {mcp_name(tool.name): tool.name for tool in tools}
        self._calls: dict[str, _ReportedCall] = {}
        self._has_news = trio.Event()
        self._reports_calls = True

    def clear(self) -> None:
        """Forget all calls, because a turn begins."""
        self._calls.clear()

    def is_ours(self, report: ToolCall) -> bool:
        """Return whether a call that the program asks about is a call of an offered tool."""
        reported = self._remember(report)
        is_other_kind = report.kind not in _UNKNOWN_KINDS and _server_call(reported.report) is None
        return reported.offered_name is not None and not is_other_kind

    def begin_judgement(self, report: ToolCall) -> AgentCall:
        """Return a call of the program's own tool for the gate to judge. Its result is not observed
        before ``allow``.
        """
        reported = self._remember(report)
        reported.is_settled = True
        return to_agent_call(reported.report)

    def allow(self, call: AgentCall) -> None:
        """Observe the result of a judged call from now on, because the program may carry it out."""
        if call.agent_call_id in self._calls:
            self._calls[call.agent_call_id].is_settled = False

    def take(self, report: ToolCall) -> ObservedCall | None:
        """Handle a report. Return a call of the program's own tool when it has ended; else None."""
        reported = self._remember(report)
        if (
            reported.report.status not in _FINAL_STATUSES
            or reported.is_settled
            or reported.offered_name is not None
        ):
            return None
        reported.is_settled = True
        observed = reported.to_observed(_result(reported.report))
        reported.report.content = reported.report.raw_output = None
        return observed

    def list_unfinished(self) -> list[ObservedCall]:
        """Return the calls of the program's own tools whose end was not reported."""
        no_result = ToolResult("The agent did not say how the call ended.", is_error=True)
        return [
            reported.to_observed(no_result)
            for reported in self._calls.values()
            if not reported.is_settled and reported.offered_name is None
        ]

    async def id_of(self, name: str, args: Mapping[str, Any], sent_id: str) -> str:
        """Return the program's id of a call of an offered tool: that of the oldest report that fits;
        ``sent_id`` if there is none.

        The report, and model output that precedes it, may arrive shortly after the call. Wait for the
        report, unless the last wait for one timed out.

        Args:
            sent_id: the id that came with the call; empty if none did.
        """
        found = self._find_id(name, args, sent_id)
        with trio.move_on_after(REPORT_SECONDS if self._reports_calls else 0) as limit:
            while not found:
                await self._has_news.wait()
                found = self._find_id(name, args, sent_id)
        self._reports_calls = not limit.cancelled_caught
        return found or sent_id

    def _find_id(self, name: str, args: Mapping[str, Any], sent_id: str) -> str:
        if sent_id:
            return sent_id if sent_id in self._calls else ""
        for id_, reported in self._calls.items():
            server_call = _server_call(reported.report)
            arguments = reported.report.raw_input if server_call is None else server_call.arguments
            fits = reported.offered_name == name and arguments in (None, {}, args)
            if fits and not reported.is_settled:
                reported.is_settled = True
                return id_
        return ""

    def _remember(self, report: ToolCall) -> _ReportedCall:
        self._has_news.set()
        self._has_news = trio.Event()
        reported = self._calls.get(report.tool_call_id)
        if reported is None:
            reported = _ReportedCall(report, report.title or "", self._owner(report))
            self._reports_calls |= reported.offered_name is not None
            if len(self._calls) < _CALLS_MAX:
                self._calls[report.tool_call_id] = reported
            return reported
        changed = {
            field: value
            for field in report.__struct_fields__
            if (value := getattr(report, field)) is not None
        }
        reported.report = msgspec.structs.replace(reported.report, **changed)
        if reported.is_settled or reported.offered_name is not None:
            # The output is not used any more, and may be long.
            reported.report.content = reported.report.raw_output = None
        return reported

    def _owner(self, report: ToolCall) -> str | None:
        """Return the name of the offered tool that is called; None for other calls. The model may choose
        the title, so a title counts only if the program does not classify the call. The mark of an MCP
        tool comes from the program and always counts.
        """
        server_call = _server_call(report)
        if server_call is not None:
            return (
                self._offered_by_mcp_name.get(server_call.tool)
                if server_call.server == SERVER
                else None
            )
        if report.kind not in _UNKNOWN_KINDS:
            return None
        return self._offered_by_label.get(report.name or report.title or "")


def _labels(tool: str) -> tuple[str, ...]:
    """Return the names that programs may give to an offered tool. An MCP tool's name without the
    server's name does not count, because it may as well mean one of the program's own tools.
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


def _server_call(report: ToolCall) -> ServerCall | None:
    """Return the input of a call that the program marks as a call of an MCP tool; None for other
    calls.
    """
    if report.meta is None or not report.meta.is_mcp_tool_call:
        return None
    try:
        return convert(report.raw_input, ServerCall)
    except msgspec.ValidationError:
        return None


def to_agent_call(report: ToolCall, label: str = "") -> AgentCall:
    """Return a call of the program's own tool as far as it is reported; ``label`` replaces a missing
    name.
    """
    # Built-in offered tools have dots in their names: with one, this name would look like theirs.
    name = (report.name or "").replace(".", "_")
    args = report.raw_input if isinstance(report.raw_input, dict) else {}
    return AgentCall(
        agent_call_id=report.tool_call_id,
        name=name or label or report.kind or _OTHER_KIND,
        args=args or ({"title": report.title} if report.title else {}),
    )


def _result(report: ToolCall) -> ToolResult:
    texts = [
        part.content.text if part.content is not None else f"[{part.type} {part.path}]"
        for part in report.content or ()
    ]
    if not texts and report.raw_output is not None:
        raw = report.raw_output
        texts = [raw if isinstance(raw, str) else encode_json(raw).decode()]
    text = "\n".join(texts)
    if len(text) > _RESULT_CHARS_MAX:
        text = f"{text[:_RESULT_CHARS_MAX]}\n[{len(text)} characters; the rest is left out]"
    return ToolResult(text, is_error=report.status == "failed")
