"""One turn of an external agent, written into the log as it happens.

The agent's texts become messages, its tool calls pass the gate, and the turn ends when the agent ends
it, fails, or is stopped. This module writes events in the order in which they arise; the daemon's side
(``AgentHost``) reorders the start and end events of overlapping calls.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec
import trio
from msgspec import UNSET

from nousd.errors import NousdError, RunFailed
from nousd.machine.context.text_offload import beginning, deltas
from nousd.providers.encoding.attachments import inline_text, kind_of, name_of
from nousd.runtimes.agents.boundary import Contain, adapter_fault
from nousd.runtimes.agents.interface import UNREPORTED, AgentCall, AgentImage, AgentLife, UserText
from nousd.runtimes.agents.raw_lines import RawLines, redact_line
from nousd.runtimes.agents.time_limits import INTERRUPT_SECONDS
from nousd.runtimes.agents.tools.own_tools import Facts, OwnToolCall
from nousd.runtimes.answer_room import AnswerBounds, AnswerRoom
from nousd.runtimes.calls.admission import input_hash
from nousd.runtimes.calls.attempts import NEVER_SEEN, EarlierAttempts
from nousd.runtimes.calls.runner import CallRunner, observe
from nousd.runtimes.interface import AgentHost, Delivery
from nousd.runtimes.message_writer import MessageWriter, StreamedText
from nousd.tools.interface import ToolResult
from nousd.tools.secrets_interface import Secrets
from nousd.wire import events
from nousd.wire.codec.envelope import encode_json
from nousd.wire.codec.unset import or_unset
from nousd.wire.objects.entries import Attachment, StopReason, ToolCall, Usage
from nousd.wire.objects.media_types import bare
from nousd.wire.objects.todos import Todo

CALLS_MAX: Final = 16
"""Maximum number of concurrent calls of one agent; further calls wait."""

STOPPED: Final = ToolResult("The turn was stopped; the call was not finished.", is_error=True)
"""The result that the agent receives for a call whose turn is over."""

_GO_ON: Final = "Go on where you were interrupted."
"""The text of a turn that resumes: programs begin no turn without a text."""

_UNKNOWN_MAX: Final = 20
"""Maximum number of unknown messages that the log keeps for one turn."""


class _OpenCall:
    """A call of the agent that waits for its result."""

    def __init__(self) -> None:
        self.is_over = trio.Event()
        self.result = STOPPED

    def settle(self, result: ToolResult) -> None:
        self.result = result
        self.is_over.set()


class AgentTurn:
    """Implements ``AgentListener`` for one turn.

    Args:
        runtime: the name of the runtime.
        contain: the error boundary around the adapter.
        calls: the gate for the offered tools.
    """

    def __init__(
        self,
        host: AgentHost,
        life: AgentLife,
        calls: CallRunner,
        *,
        runtime: str,
        contain: Contain,
        bounds: AnswerBounds,
        secrets: Secrets,
    ) -> None:
        self._host = host
        self._life = life
        self._calls = calls
        self._runtime = runtime
        self._contain = contain
        self._bounds = bounds
        self._secrets = secrets
        self._room = AnswerRoom(bounds, host.answers)
        self._message: MessageWriter | None = None
        self._write_lock = trio.Lock()
        self._call_limiter = trio.CapacityLimiter(CALLS_MAX)
        self._calls_by_id: dict[tuple[str, str], _OpenCall] = {}
        self._steers: dict[str, Delivery] = {}
        self._own_calls: dict[str, OwnToolCall] = {}
        self._raw_lines = RawLines(host.keep, secrets)
        self._nousd_ids: dict[str, str] = {}
        """The program's id of a call -> nousd's id."""
        self._unknown_count = 0
        self._nursery: trio.Nursery | None = None
        self._failure: NousdError | None = None

    async def carry_out(self) -> None:
        """Send the user's text to the agent and follow its turn to the end. Afterwards the agent is
        idle, however the turn has ended.

        Raises:
            NousdError: the turn has failed.
            AgentFailed: the program can no longer be used.
        """
        life = self._life
        user_text = await self._build_user_text(text_of(self._host), self._host.turn_attachments)
        is_over = False
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    await self._run_in_turn(
                        self._run_adapter, partial(life.take_turn, user_text, self)
                    )
                    await self._run_in_turn(self._end_turn)
                    is_over = True
                finally:
                    # Set before the program receives the results of its open calls.
                    life.is_stopping = not is_over
                    # A call that arrives while the nursery closes could not start its task.
                    self._close()
                nursery.cancel_scope.cancel()
        finally:
            if not is_over or self._failure is not None:
                with trio.CancelScope(shield=True), trio.move_on_after(INTERRUPT_SECONDS):
                    await self._contain(life.interrupt, self._adapter_name)
        if self._failure is not None:
            raise self._failure

    def _close(self) -> None:
        """Ignore everything that the adapter reports from now on; end open tool calls as unfinished."""
        self._nursery = None
        for own in self._own_calls.values():
            own.refuse(STOPPED.text)
        for open_call in self._calls_by_id.values():
            open_call.is_over.set()

    async def _run_in_turn(self, action: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Run an action for the turn, unless it is over. A failure ends the turn."""
        if self._nursery is None:
            return
        try:
            await action(*args)
        except NousdError as failure:
            self._failure = self._failure or failure
            if self._nursery is not None:
                self._nursery.cancel_scope.cancel()

    async def _run_adapter(self, action: Callable[[], Awaitable[None]]) -> None:
        """Run an action of the adapter; treat its faults as failures of the program."""
        outcome = await self._contain(action, self._adapter_name)
        if isinstance(outcome, NousdError):
            raise outcome if isinstance(outcome, RunFailed) else adapter_fault()

    @property
    def _adapter_name(self) -> str:
        return f"the adapter of {self._runtime}"

    async def _end_turn(self) -> None:
        self._host.stop_asking()
        for own in tuple(self._own_calls.values()):
            own.finish(UNREPORTED)
            await own.is_written.wait()
        for open_call in tuple(self._calls_by_id.values()):
            await open_call.is_over.wait()
        await self._end_message("stop")

    # --- messages of the user ----------------------------------------------------------------

    async def _build_user_text(self, text: str, attachments: tuple[Attachment, ...]) -> UserText:
        blobs = {
            each.artifact_id: await self._host.artifact(each.artifact_id) for each in attachments
        }
        images = [each for each in attachments if kind_of(each.media_type) == "image"]
        file_notes = [_describe_file(each, blobs) for each in attachments if each not in images]
        return UserText(
            message_id=str(uuid.uuid4()),
            text="\n\n".join([text, *file_notes]),
            images=tuple(
                AgentImage(bare(each.media_type), blobs[each.artifact_id]) for each in images
            ),
        )

    async def confirm_delivery(self, message_id: str = "") -> None:
        """See ``AgentListener.confirm_delivery``."""
        steer = self._steers.pop(message_id, None)
        await self._run_in_turn(
            self._host.confirm_delivery if steer is None else steer.confirm_delivery
        )

    def has_pending_steer(self) -> bool:
        """See ``AgentListener.has_pending_steer``."""
        return self._host.has_pending_steer()

    async def take_steer(self) -> UserText | None:
        """See ``AgentListener.take_steer``."""
        user_texts: list[UserText] = []
        await self._run_in_turn(self._take_steer, user_texts)
        return user_texts[0] if user_texts else None

    async def _take_steer(self, user_texts: list[UserText]) -> None:
        steer = await self._host.take_steer()
        if steer is not None:
            user_text = await self._build_user_text(steer.text, steer.attachments)
            self._steers[user_text.message_id] = steer
            user_texts.append(user_text)

    # --- output of the agent -----------------------------------------------------------------

    async def text(self, delta: str) -> None:
        """See ``AgentListener.text``."""
        await self._run_in_turn(self._write, lambda message: message.text, delta)

    async def reasoning(self, delta: str) -> None:
        """See ``AgentListener.reasoning``."""
        await self._run_in_turn(self._write, lambda message: message.reasoning, delta)

    async def _write(self, part: Callable[[MessageWriter], StreamedText], delta: str) -> None:
        # An agent that answers has received the user's text.
        await self._host.confirm_delivery()
        async with self._write_lock:
            if self._message is None:
                self._message = self._new_message()
            await self._message.write(part(self._message), delta)

    def _new_message(self) -> MessageWriter:
        self._room = AnswerRoom(self._bounds, self._host.answers)
        return MessageWriter(self._host, self._room, self._secrets)

    async def message_ends(self, stop_reason: StopReason = "stop") -> None:
        """See ``AgentListener.message_ends``."""
        await self._run_in_turn(self._end_message, stop_reason)

    async def _end_message(self, stop_reason: StopReason) -> None:
        async with self._write_lock:
            message, self._message = self._message, None
            if message is not None:
                await self._finish(message, stop_reason)

    async def _finish(
        self, message: MessageWriter, stop_reason: StopReason, *calls: ToolCall
    ) -> None:
        await message.show_rest()
        await message.open()
        ends = message.build_end(
            model=self._secrets.redact_output(self._life.model),
            provider=self._runtime,
            stop_reason=stop_reason,
            calls=calls,
            raw_ref=await self._raw_lines.ref(),
        )
        await self._host.stream(*ends)

    async def subagent_text(self, text: str, parent: str) -> None:
        """See ``AgentListener.subagent_text``."""
        await self._run_in_turn(self._subagent_text, self._secrets.redact_output(text), parent)

    async def _subagent_text(self, text: str, parent: str) -> None:
        await self._host.confirm_delivery()
        room, raw_ref = AnswerRoom(self._bounds, self._host.answers), await self._raw_lines.ref()
        kept = room.take(text)
        text_events = [
            events.SubagentText(
                **self._host.tracker.where,
                text=delta,
                runtime_tool_call_id=self._secrets.redact_output(parent),
                parent_tool_call_id=self._nousd_ids.get(parent, UNSET),
                raw_ref=raw_ref,
            )
            for delta in deltas(kept)
        ]
        await self._host.stream(*text_events)
        if len(kept) < len(text):
            raise room.build_exceeded_error()

    async def usage(self, usage: Usage, *, model: str = "", cost_usd: float | None = None) -> None:
        """See ``AgentListener.usage``."""
        report = events.UsageReported(
            **self._host.tracker.where,
            model=self._secrets.redact_output(model or self._life.model),
            provider=self._runtime,
            purpose="answer",
            usage=usage,
            cost_usd=or_unset(cost_usd),
            correlation_id=self._host.correlation_id,
        )
        await self._run_in_turn(self._log, report)

    async def _log(self, event: events.Event) -> None:
        """Log an event; set its ``raw_ref`` to the program's line from which it was made."""
        await self._host.stream(msgspec.structs.replace(event, raw_ref=await self._raw_lines.ref()))

    async def plan(self, todos: tuple[Todo, ...]) -> None:
        """See ``AgentListener.plan``."""
        redacted = tuple(
            msgspec.structs.replace(todo, content=self._secrets.redact_output(todo.content))
            for todo in todos
        )
        await self._run_in_turn(
            self._log, events.TodoUpdated(**self._host.tracker.where, todos=redacted)
        )

    async def unknown(self, line: bytes) -> None:
        """See ``AgentListener.unknown``. The log keeps only the first such messages of a turn."""
        self._unknown_count += 1
        if self._unknown_count <= _UNKNOWN_MAX:
            text = redact_line(line, self._secrets).decode("utf-8", "replace")
            warning = events.Warning(
                **self._host.tracker.where, code="agent_message_unknown", message=beginning(text)
            )
            await self._run_in_turn(self._log, warning)

    # --- calls of the agent ------------------------------------------------------------------

    async def run_tool(self, call: AgentCall) -> ToolResult:
        """See ``AgentListener.run_tool``."""
        return await self._run(call, self._calls)

    async def _run(self, call: AgentCall, gate: CallRunner) -> ToolResult:
        """Carry out a call through a gate. A call that the agent repeats shares the first result."""
        if self._nursery is None:
            await self._life.refuse_outside(call)
            return STOPPED
        args = self._secrets.redact_output_json(dict(call.args))
        key = (call.agent_call_id or str(uuid.uuid4()), input_hash(call.name, args))
        open_call = self._calls_by_id.get(key)
        if open_call is None:
            open_call = self._calls_by_id[key] = _OpenCall()
            self._nursery.start_soon(self._run_in_turn, self._execute, call, args, open_call, gate)
        await open_call.is_over.wait()
        return open_call.result

    async def record_call(self, call: AgentCall, result: ToolResult, seconds: float) -> None:
        """See ``AgentListener.record_call``."""
        own_call = self._own_calls.get(call.agent_call_id)
        if own_call is None:
            await self._run_in_turn(self._observe, call, result, seconds)
        else:
            own_call.finish(result)

    async def _observe(self, call: AgentCall, result: ToolResult, seconds: float) -> None:
        args = self._secrets.redact_output_json(dict(call.args))
        announced, earlier = await self._announce(call, args)
        text = self._secrets.redact_output(result.text)
        redacted = msgspec.structs.replace(result, text=text)
        tool = OwnToolCall(call.name, args, self._runtime, Facts())
        attempt = earlier.attempts + 1
        await observe(self._host, announced, tool, redacted, seconds, attempt=attempt)

    async def find_refusal(self, call: AgentCall) -> str | None:
        """See ``AgentListener.find_refusal``. While the program's own tools are off, the gate receives
        no tools and denies every call, even of a tool with the name of an offered one.
        """
        if self._life.facts_of is None:
            return (await self._run(call, self._calls.with_tools({}))).text
        if self._nursery is None:
            await self._life.refuse_outside(call)
            return STOPPED.text
        own = self._own_calls.get(call.agent_call_id)
        if own is None or (own.name, own.args) != (call.name, call.args):
            facts = self._life.facts_of(call)
            own = OwnToolCall(call.name, call.args, self._runtime, facts)
            # A program may reuse an id: then the earlier call keeps the entry.
            is_new = call.agent_call_id not in self._own_calls
            self._own_calls[call.agent_call_id if is_new else str(uuid.uuid4())] = own
            self._nursery.start_soon(self._run_in_turn, self._execute_own, call, own)
        await own.is_decided.wait()
        return own.refusal

    async def _execute_own(self, call: AgentCall, own: OwnToolCall) -> None:
        args = self._secrets.redact_output_json(dict(call.args))
        announced, earlier = await self._announce(call, args)
        if self._host.has_pending_steer():
            result = await self._calls.skip(self._host, announced, earlier)
        else:
            calls = self._calls.with_tools({own.name: own})
            result = await calls.execute(self._host, announced, earlier)
        own.refuse(result.text)
        own.is_written.set()

    async def _execute(
        self, call: AgentCall, args: dict[str, Any], open_call: _OpenCall, gate: CallRunner
    ) -> None:
        async with self._call_limiter:
            announced, earlier = await self._announce(call, args)
            if self._host.has_pending_steer():
                result = await gate.skip(self._host, announced, earlier)
            else:
                result = await gate.execute(self._host, announced, earlier)
            # The agent acts on the result, so the result must be durable first.
            await self._host.wait_durable()
            open_call.settle(result)

    async def _announce(
        self, call: AgentCall, args: dict[str, Any]
    ) -> tuple[ToolCall, EarlierAttempts]:
        """End the open message, or a new empty one, with the call. Return the call with nousd's id, and
        its earlier attempts. A call known from an interrupted run is not announced again.
        """
        await self._host.confirm_delivery()
        tool_call = ToolCall(
            tool_call_id="",
            runtime_tool_call_id=self._secrets.redact_output(call.agent_call_id),
            name=self._secrets.redact_output(call.name),
            args=args,
        )
        earlier_call = await self._host.find_earlier_call(tool_call)
        if earlier_call is not None:
            self._nousd_ids[call.agent_call_id] = earlier_call.tool_call_id
            await self._end_message("tool_use")
            return earlier_call, await self._host.earlier(earlier_call)
        async with self._write_lock:
            message, self._message = self._message or self._new_message(), None
            message_id = await message.open()
            self._room.call(encode_json(args).decode())
            announced = msgspec.structs.replace(tool_call, tool_call_id=f"{message_id}.0")
            await self._finish(message, "tool_use", announced)
        self._nousd_ids[call.agent_call_id] = announced.tool_call_id
        return announced, NEVER_SEEN


def text_of(host: AgentHost) -> str:
    """Return the text that begins the turn."""
    return host.turn_text if host.turn_inputs else _GO_ON


def _describe_file(attachment: Attachment, blobs: Mapping[str, bytes]) -> str:
    """Return the text that replaces an attached file that is not a picture."""
    if kind_of(attachment.media_type) == "text":
        return inline_text(attachment, blobs)
    return f"Attached file {name_of(attachment)} is left out: it is neither text nor a picture."
