"""One tool call from its request to its result, through one path for a call that runs, is refused or
is skipped.

A call is admitted or not (``admission``), runs if it is, and ends; every call gets a result in the
transcript, because a model API refuses a call without one. What is told of it (``call_events``) takes
one commit before it runs and one after, or one in all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import trio
from msgspec import UNSET, UnsetType

from nousd.errors import StoreError, StoreFull, ToolError
from nousd.runtimes.interface import TurnHost
from nousd.runtimes.native.admission import Admission, Admitted, Refused, admit
from nousd.runtimes.native.call_events import CallEvents
from nousd.tools.interface import Emit, ExpectQuiet, Tool, ToolContext, ToolResult
from nousd.tools.spool import Spool
from nousd.wire import events
from nousd.wire.codec import scrub
from nousd.wire.entries import ToolCall

_SKIPPED: Final = Refused(
    "tool_execution_skipped", "Skipped due to queued user message.", by="steer"
)


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
        await _Call(host, call).refuse(Admission((), _SKIPPED), _SKIPPED, shown=True)

    async def execute(self, host: TurnHost, call: ToolCall) -> None:
        """Runs a call, or tells why it is not run."""
        admission = admit(self._tools, host, call)
        match admission.verdict:
            case Refused() as refused:
                await _Call(host, call).refuse(admission, refused, shown=False)
            case Admitted() as admitted:
                await self._run(_Call(host, call), admission, admitted)

    async def _run(self, call: _Call, admission: Admission, admitted: Admitted) -> None:
        await call.start(admission)
        context = self._make_context(call.emit, call.host.expect_quiet)
        try:
            result = await admitted.tool.run(admitted.args, context)
        except ToolError as error:
            await call.fail(Refused(error.code, scrub(str(error))))
        except OSError as error:
            text = scrub(f"{admitted.tool.name}_failed: {error.strerror or error}")
            await call.fail(Refused(ToolError.code, text))
        else:
            await call.complete(msgspec.structs.replace(result, text=scrub(result.text)))


class _Call:
    """One call on its way through the log."""

    def __init__(self, host: TurnHost, call: ToolCall) -> None:
        self.host = host
        self._events = CallEvents(host, call)
        self._shown = False
        self._started_at = 0.0

    async def refuse(self, admission: Admission, refused: Refused, *, shown: bool) -> None:
        text = f"tool_error: {refused.message}"
        updates = self._events.updates(text) if shown else []
        await self.host.commit(
            *self._events.requested(admission.evaluations),
            self._events.denied(refused),
            self._events.warning(refused),
            *updates,
            *self._events.ends(ToolResult(text, is_error=True), executed=False),
        )

    async def start(self, admission: Admission) -> None:
        await self.host.commit(
            *self._events.requested(admission.evaluations), *self._events.started()
        )
        self._started_at = trio.current_time()

    async def emit(self, delta: str) -> None:
        """Streams what the tool says while it runs."""
        if delta:
            self._shown = True
            await self.host.stream(*self._events.updates(scrub(delta)))

    async def fail(self, failure: Refused) -> None:
        seconds = self._seconds
        result = ToolResult(f"tool_error: {failure.message}", is_error=True)
        await self.host.commit(
            self._events.warning(failure), *self._events.completed(result, seconds)
        )

    async def complete(self, result: ToolResult) -> None:
        seconds = self._seconds
        result, artifact_id = await self._keep(result)
        remarks: list[events.Event] = []
        if result.is_error:
            remarks.append(self._events.warning(Refused(ToolError.code, result.text)))
            result = msgspec.structs.replace(result, text=f"tool_error: {result.text}")
        elif result.text and not self._shown:
            remarks += self._events.updates(result.text)
        await self.host.commit(*remarks, *self._events.completed(result, seconds, artifact_id))

    async def _keep(self, result: ToolResult) -> tuple[ToolResult, str | UnsetType]:
        """Keeps the whole of an output that is shown in part. A result without it says why."""
        whole = result.full
        if whole is None:
            return result, UNSET
        try:
            return result, await self.host.keep(whole, "text/plain; charset=utf-8")
        except (StoreError, OSError) as error:
            is_full = isinstance(error, StoreFull)
            why = "the disk is full" if is_full else "it could not be written"
            remark = f"[The whole output was not kept: {why}.]"
            return msgspec.structs.replace(result, text=f"{result.text}\n{remark}"), UNSET
        finally:
            if isinstance(whole, Spool):
                whole.close()

    @property
    def _seconds(self) -> float:
        """How long the call has been running."""
        return trio.current_time() - self._started_at
