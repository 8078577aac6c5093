"""One tool call as events, through one path for a call that runs, is refused or is skipped.

A call is admitted or not (``_admit``), then it starts, runs if admitted, and ends; every call gets a
result in the transcript, because a model API refuses a call without one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from nousd.errors import ToolArgumentsInvalid, ToolError
from nousd.machine.lifecycle import tool_result_entry
from nousd.runtimes.interface import TurnHost
from nousd.runtimes.native.answer import RAW_ARGUMENTS
from nousd.tools.interface import Emit, ExpectQuiet, Tool, ToolContext, ToolResult
from nousd.wire import events
from nousd.wire.entries import ToolCall

SKIPPED = "Skipped due to queued user message."

RESULT_PREVIEW_CHARS = 8 * 1024
"""How much of a result ``tool_execution_end`` repeats; the transcript has what the model is told."""


class _Admitted(msgspec.Struct, frozen=True):
    tool: Tool
    args: Any


class _Refused(msgspec.Struct, frozen=True):
    code: str
    message: str


class CallRunner:
    """Carries out the calls of one runtime.

    Args:
        tools: by name.
        make_context: gives a tool its surroundings, with the given places for its output and for
            what it says of its own limit.
    """

    def __init__(
        self,
        tools: Mapping[str, Tool],
        make_context: Callable[[Emit, ExpectQuiet], ToolContext],
    ) -> None:
        self._tools = tools
        self._make_context = make_context

    async def skip(self, host: TurnHost, call: ToolCall) -> None:
        """Tells that a call was not begun because the user said something else meanwhile."""
        await self._refuse(host, call, _Refused("tool_execution_skipped", SKIPPED), shown=True)

    async def execute(self, host: TurnHost, call: ToolCall) -> None:
        """Runs a call, or tells why it is not run."""
        admission = self._admit(host, call)
        if isinstance(admission, _Refused):
            await self._refuse(host, call, admission, shown=False)
            return
        where = host.ledger.where
        await host.commit(
            _start(host, call),
            events.ToolCallStarted(**where, tool_call_id=call.tool_call_id, tool_name=call.name),
        )
        output = _Output(host, call)
        try:
            result = await admission.tool.run(
                admission.args, self._make_context(output.emit, host.expect_quiet)
            )
        except ToolError as error:
            await self._fail(host, call, _Refused(error.code, str(error)))
        except OSError as error:
            text = f"{call.name}_failed: {error.strerror or error}"
            await self._fail(host, call, _Refused(ToolError.code, text))
        else:
            await self._complete(host, call, result, shown=output.shown)

    def _admit(self, host: TurnHost, call: ToolCall) -> _Admitted | _Refused:
        tool = self._tools.get(call.name)
        if tool is None:
            return _Refused("tool_not_found", f"tool_not_found: {call.name}")
        if not host.tool_is_active(call.name):
            return _Refused("tool_not_active", f"tool_not_active: {call.name}")
        if set(call.args) == {RAW_ARGUMENTS}:
            return _Refused(
                ToolArgumentsInvalid.code, "validation_failed: arguments are not a JSON object"
            )
        try:
            return _Admitted(tool, tool.validated(call.args))
        except ToolArgumentsInvalid as error:
            return _Refused(error.code, str(error))

    async def _refuse(
        self, host: TurnHost, call: ToolCall, refused: _Refused, *, shown: bool
    ) -> None:
        text = f"tool_error: {refused.message}"
        updates = [_update(host, call, text)] if shown else []
        await host.commit(
            _start(host, call),
            _warning(host, refused),
            *updates,
            *_ends(host, call, ToolResult(text, is_error=True), executed=False),
        )

    async def _fail(self, host: TurnHost, call: ToolCall, failure: _Refused) -> None:
        result = ToolResult(f"tool_error: {failure.message}", is_error=True)
        await host.commit(_warning(host, failure), *_ends(host, call, result, executed=True))

    async def _complete(
        self, host: TurnHost, call: ToolCall, result: ToolResult, *, shown: bool
    ) -> None:
        artifact_id: str | UnsetType = UNSET
        if result.full is not None:
            artifact_id = await host.keep(result.full, "text/plain; charset=utf-8")
        remarks: list[events.Event] = []
        if result.is_error:
            remarks.append(_warning(host, _Refused(ToolError.code, result.text)))
            result = msgspec.structs.replace(result, text=f"tool_error: {result.text}")
        elif result.text and not shown:
            remarks.append(_update(host, call, result.text))
        await host.commit(
            *remarks, *_ends(host, call, result, executed=True, artifact_id=artifact_id)
        )


class _Output:
    """Streams what a tool says while it runs."""

    def __init__(self, host: TurnHost, call: ToolCall) -> None:
        self._host = host
        self._call = call
        self.shown = False

    async def emit(self, delta: str) -> None:
        if delta:
            self.shown = True
            await self._host.stream(_update(self._host, self._call, delta))


def _start(host: TurnHost, call: ToolCall) -> events.ToolExecutionStart:
    return events.ToolExecutionStart(
        **host.ledger.where,
        tool_call_id=call.tool_call_id,
        tool_name=call.name,
        args=call.args,
        runtime_tool_call_id=call.runtime_tool_call_id,
    )


def _update(host: TurnHost, call: ToolCall, delta: str) -> events.ToolExecutionUpdate:
    return events.ToolExecutionUpdate(
        **host.ledger.where, tool_call_id=call.tool_call_id, tool_name=call.name, delta=delta
    )


def _warning(host: TurnHost, refused: _Refused) -> events.Warning:
    return events.Warning(**host.ledger.where, code=refused.code, message=refused.message)


def _ends(
    host: TurnHost,
    call: ToolCall,
    result: ToolResult,
    *,
    executed: bool,
    artifact_id: str | UnsetType = UNSET,
) -> tuple[events.Event, ...]:
    end = events.ToolExecutionEnd(
        **host.ledger.where,
        tool_call_id=call.tool_call_id,
        tool_name=call.name,
        result=result.text[:RESULT_PREVIEW_CHARS],
        is_error=result.is_error,
        executed=executed,
        artifact_id=artifact_id,
    )
    entry = tool_result_entry(
        end,
        parent_id=host.leaf_id,
        turn_kind=host.ledger.turn_kind,
        text=result.text,
        now=host.now(),
    )
    appended = events.EntryAppended(
        session_id=host.ledger.session_id, run_id=host.ledger.run_id, entry=entry
    )
    return end, appended
