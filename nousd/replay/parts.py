"""A model, tools and a project that repeat the pieces, results, failures and remarks of a recording, in
order.

If a replay diverges from the run, the script runs out. Then the model or tool fails, so that the replay
ends and can be compared.
"""

from __future__ import annotations

import copy
import graphlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

import msgspec

from nousd.daemon.workspace.project import Project
from nousd.errors import (
    AnswerTooLong,
    ContextOverflow,
    NousdError,
    ProviderError,
    ToolArgumentsInvalid,
    ToolError,
    ToolServerFailed,
)
from nousd.machine.context.model_input import ModelInput, ToolSpec
from nousd.providers.interface import NO_BLOBS, Blobs, Provider, Receive
from nousd.replay.recorded import RecordedRun
from nousd.replay.recorded_context import RecordedContext, comes_and_goes, find_answer_inputs
from nousd.replay.replay_driver import ReplayDriver
from nousd.replay.script import Answer, Call, Failed, Script
from nousd.tools.interface import Tool, ToolContext, ToolResult
from nousd.wire import events
from nousd.wire.objects.policy import ExecutedBy
from nousd.wire.objects.tool_footprint import TOUCHES_NOTHING, Access

_WINDOW: Final = 128_000
"""Default context window in tokens, if the log does not contain one."""

_RECORDING_EXHAUSTED: Final = "the recording has no more for it"


class RecordedModel:
    """A provider that repeats the recorded answers, in order; see ``Provider``.

    Args:
        refused: media types that the models did not accept.
    """

    def __init__(
        self,
        default_model: str,
        script: Script,
        driver: ReplayDriver,
        *,
        refused: frozenset[str],
    ) -> None:
        self.name = ""
        self.default_model = default_model
        self._answers = list(script.answers)
        self._summaries = list(script.summaries)
        self._driver = driver
        self._refused = refused

    def copy_with_name(self, name: str) -> Provider:
        """Return a copy with the name of one of the recorded providers."""
        named = copy.copy(self)
        named.name = name
        return named

    def context_window(self, model: str) -> int:  # noqa: ARG002
        return _WINDOW

    def accepts(self, model: str, media_type: str) -> bool:  # noqa: ARG002
        return media_type not in self._refused

    async def models(self) -> tuple[str, ...]:
        return (self.default_model,)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""

    async def generate(
        self,
        request: ModelInput,
        receive: Receive,
        blobs: Blobs = NO_BLOBS,  # noqa: ARG002
    ) -> None:
        """Push the recorded pieces of the next call."""
        if request.purpose == "summary":
            await self._summarise(receive)
            return
        answer = self._answers.pop(0) if self._answers else Answer()
        for piece in answer.pieces:
            await receive(piece)
        if answer.is_cut_off:
            await self._driver.at_end_of_part()
            raise ProviderError(_RECORDING_EXHAUSTED)
        if answer.failed is not None:
            raise _failure(answer.failed)

    async def _summarise(self, receive: Receive) -> None:
        if not self._summaries:
            await self._driver.at_end_of_part()
            raise ProviderError(_RECORDING_EXHAUSTED)
        summary = self._summaries.pop(0)
        if not summary.pieces:
            raise ProviderError("nothing came of this call")
        for piece in summary.pieces:
            await receive(piece)
        if summary.failed is not None:
            raise _failure(summary.failed)
        if summary.is_cut_off:
            await self._driver.at_end_of_part()
            raise ProviderError(_RECORDING_EXHAUSTED)


def _failure(failed: Failed) -> NousdError:
    if failed.too_long:
        return AnswerTooLong(failed.too_long)
    kind = ContextOverflow if failed.overflowed else ProviderError
    error = kind(failed.cause, raw=failed.raw)
    error.category = failed.category
    return error


class RecordedTool:
    """A tool that returns its recorded results; see ``Tool``."""

    def __init__(
        self,
        spec: ToolSpec,
        source: str,
        calls: Iterable[Call],
        driver: ReplayDriver,
    ) -> None:
        self.name = spec.name
        self.source = source
        self.description = spec.description
        self.parameters = spec.parameters
        self._calls = list(calls)
        self._driver = driver
        by: Iterable[ExecutedBy] = (call.executed_by for call in self._calls if call.executed_by)
        self._executed_by: ExecutedBy = next(iter(by), "nousd")

    @property
    def executed_by(self) -> ExecutedBy:
        return self._executed_by

    @property
    def is_read_only(self) -> bool:
        # Only used for calls whose result was reused.
        return True

    @property
    def begins_early(self) -> bool:
        return False

    async def access(self, args: Any, context: ToolContext) -> Access:  # noqa: ARG002
        return TOUCHES_NOTHING

    def validate(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._calls and self._calls[0].invalid is not None:
            raise ToolArgumentsInvalid(self._calls.pop(0).invalid)
        return args

    async def run(self, args: Any, context: ToolContext) -> ToolResult:  # noqa: ARG002
        call = self._calls.pop(0) if self._calls else Call()
        for step in call.steps:
            if isinstance(step, events.ToolExecutionUpdate):
                await context.emit(step.delta, step.stream or None)
            else:
                await self._driver.emit(step)
        if call.result is None:
            await self._driver.at_end_of_part()
            raise ToolError(_RECORDING_EXHAUSTED)
        if call.failed_as is None:
            return _build_result(call)
        if call.failed_as == ToolError.code:
            return msgspec.structs.replace(_build_result(call), is_error=True)
        raise _tool_error(call.failed_as, call.result)


class ToolsAtCall(Mapping[str, Tool]):
    """The tools that exist at the current call: those of MCP servers come and go during a run."""

    def __init__(self, driver: ReplayDriver, tools: Mapping[str, Tool]) -> None:
        self._driver = driver
        self._tools = tools

    def __getitem__(self, name: str) -> Tool:
        if not self._driver.was_there(name):
            raise KeyError(name)
        return self._tools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)


def _build_result(call: Call) -> ToolResult:
    assert call.result is not None
    return ToolResult(
        call.result, full=call.full, sandbox=call.sandbox, execution_env=call.execution_env
    )


def _tool_error(code: str, text: str) -> ToolError:
    kinds = {kind.code: kind for kind in (ToolArgumentsInvalid, ToolServerFailed)}
    return kinds.get(code, ToolError)(text)


def tools_of(
    run: RecordedRun, script: Script, context: RecordedContext, driver: ReplayDriver
) -> tuple[RecordedTool, ...]:
    """Return the run's tools in order, as far as its events show them."""
    offered = [event.tools for event in run.events if isinstance(event, events.ModelInput)]
    extras = _extras(run)
    names = _merge_orders(
        [*offered, *([name] for name in sorted(_find_registered_tools(run, script)))]
    )
    return tuple(
        RecordedTool(
            context.tools.get(name, ToolSpec(name, "", {"type": "object"})),
            "extension" if name in extras else "builtin",
            script.calls.get(name, ()),
            driver,
        )
        for name in names
    )


def _find_registered_tools(run: RecordedRun, script: Script) -> set[str]:
    """Return the names of the tools that were called and registered."""
    found = set(script.calls)
    for event in run.events:
        match event:
            case events.ToolCallPolicyEvaluated(source="registry", decision="allow"):
                found.add(event.tool_name)
            case events.Warning(code="tool_not_active"):  # the only evidence in version 1
                found.add(event.message.partition(": ")[2])
    return found


def _merge_orders(lists: Iterable[Iterable[str]]) -> list[str]:
    """Merge lists that are sublists of one unknown list; return their names in a consistent order."""
    order: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
    for names in map(list, lists):
        for name in names:
            order.add(name)
        for name_before, next_ in pairwise(names):
            order.add(next_, name_before)
    return list(order.static_order())


def _extras(run: RecordedRun) -> set[str]:
    """Return the tools that were offered although the session did not name them: those of extensions,
    which are always offered.
    """
    own_tools, shared_tools = run.before.active_tools, run.shared.active_tools
    extras: set[str] = set()
    offered = [set(event.tools) for event in find_answer_inputs(run.events)]
    for event in run.events:
        active = shared_tools if own_tools is None else own_tools
        match event:
            case events.SessionUpdated(session_id="", active_tools=tuple(names)):
                shared_tools = names
            case events.SessionUpdated(active_tools=tuple() | None as changed):
                own_tools = changed
            case events.ModelInput(tools=names) if active is not None:
                extras |= set(names) - set(active)
            case events.ToolCallStarted(tool_name=name) if active is not None:
                extras |= {name} - set(active)
    return {
        name for name in extras if comes_and_goes(name) or all(name in each for each in offered)
    }


class RecordedProject(Project):
    """A project that repeats the run's remark. It reads no rules, because decisions are recorded."""

    def __init__(self, run: RecordedRun) -> None:
        super().__init__()
        warnings = (event for event in run.events if isinstance(event, events.Warning))
        remarks = (each.message for each in warnings if each.code == "project_config_ignored")
        self._remark = next(remarks, None)

    async def remark(self, session_id: str) -> str | None:  # noqa: ARG002
        """See ``Project.remark``."""
        return self._remark
