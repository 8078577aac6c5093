"""One life of a program that speaks the Agent Client Protocol: passes its messages to the listener.

The harness spec is ``protocol/runtimes/acp.md``. Calls of offered tools arrive over a separate socket
(``tool_socket``). The program also reports these calls in its own stream; there they are ignored, so
that each counts once.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec
import trio
from msgspec import Raw

from nousd.errors import AgentFailed, RunFailed
from nousd.net.jsonrpc import METHOD_NOT_FOUND, JsonRpc, RpcError
from nousd.runtimes.agents.acp import messages
from nousd.runtimes.agents.acp.opening import AUTH_REQUIRED, Opening
from nousd.runtimes.agents.interface import (
    AgentCall,
    AgentLife,
    AgentListener,
    Resume,
    Start,
    UserText,
    Write,
)
from nousd.runtimes.agents.model_failure import model_failure
from nousd.runtimes.agents.plans import todos_of
from nousd.runtimes.agents.raw_lines import CURRENT_LINE
from nousd.runtimes.agents.tools.call_reports import ToolCall
from nousd.runtimes.agents.tools.mcp_tools import McpTools, ToolCallParams
from nousd.runtimes.agents.tools.own_tools import Facts
from nousd.runtimes.agents.tools.reported_calls import ReportedCalls, to_agent_call
from nousd.runtimes.agents.tools.tool_socket import serve_tools
from nousd.tools.interface import ToolResult
from nousd.wire.codec.decoding import decode_json
from nousd.wire.objects.entries import Usage
from nousd.wire.objects.todos import Todo

_CALL_ID_KEYS: Final = ("claudecode/toolUseId", "callId")
"""The keys under which programs send their id of a call in a request to an MCP server."""

_IGNORED: Final = frozenset(
    {
        "available_commands_update",
        "config_option_update",
        "current_mode_update",
        "session_info_update",
        "user_message_chunk",
    }
)
"""Updates that are ignored, because they contain nothing about the turn."""


class AcpLife(AgentLife):
    """Implements ``AgentLife``, and ``Peer`` towards the program."""

    def __init__(self, start: Start, resume: Resume, write: Write, nursery: trio.Nursery) -> None:
        super().__init__()
        self._start = start
        self._resume = resume
        self._program_write = write
        self._nursery = nursery
        self._rpc = JsonRpc(self._write, self, nursery)
        self._mcp = McpTools(start.tools, self._run_tool)
        # The protocol does not describe a call's effects, so each call counts as having all of them.
        self.facts_of = None if start.own_tools == "off" else lambda _: Facts()
        self._takes_images = False
        self._preamble: list[str] = []
        self._reported_calls = ReportedCalls(start.tools)
        self._message_id: str | None = None
        self._cost_usd: float | None = 0.0
        self._turn_cost_usd: float | None = None
        self._plan: tuple[Todo, ...] = ()
        self._has_denied = False
        self._has_skipped = False
        self._is_ending = False
        self.model = start.model
        self._handlers: Mapping[str, tuple[type[Any], Callable[..., Awaitable[None]]]] = {
            "agent_message_chunk": (messages.Chunk, self._take_text),
            "agent_thought_chunk": (messages.Chunk, self._take_thought),
            "tool_call": (ToolCall, self._take_call),
            "tool_call_update": (ToolCall, self._take_call),
            "plan": (messages.Plan, self._take_plan),
            "usage_update": (messages.UsageUpdate, self._take_usage),
        }

    # --- beginning and end -------------------------------------------------------------------

    async def begin(self) -> None:
        """See ``AgentLife.begin``."""
        opening = Opening(self._rpc, self._start, self._resume)
        session = await opening.begin(partial(self._nursery.start, serve_tools, self._mcp))
        self.version, self.models = session.version, session.models
        self.agent_session_id, self._takes_images = session.session_id, session.takes_images
        self._preamble = session.preamble
        if self._resume.kind == "native":
            # The earlier cost of the session is not known.
            self._cost_usd = None

    async def _write(self, line: bytes) -> None:
        """Send a line to the program, never a part of one: cancellation must not corrupt its input."""
        try:
            with trio.CancelScope(shield=True):
                await self._program_write(line)
        except AgentFailed as failure:
            self.end(failure)

    async def take(self, line: bytes) -> None:
        """See ``AgentLife.take``."""
        await self._rpc.take(line)

    def end(self, failure: AgentFailed) -> None:
        """See ``AgentLife.end``."""
        super().end(failure)
        self._rpc.end(failure)

    # --- a turn ------------------------------------------------------------------------------

    async def _prompt(self, user_text: UserText) -> None:
        if user_text.images and not self._takes_images:
            self.end_turn(RunFailed("provider_error", "the agent takes no images"))
            return
        prompt: list[dict[str, Any]] = [
            {"type": "text", "text": text} for text in (*self._preamble, user_text.text) if text
        ]
        prompt += [
            {
                "type": "image",
                "mimeType": image.media_type,
                "data": base64.b64encode(image.data).decode(),
            }
            for image in user_text.images
        ]
        self._has_denied = self._has_skipped = self._is_ending = False
        self._message_id = self._turn_cost_usd = None
        self._reported_calls.clear()
        self._nursery.start_soon(self._follow, prompt)

    async def _follow(self, prompt: list[dict[str, Any]]) -> None:
        """Send the prompt and wait for its answer, which ends the turn."""
        params = {"sessionId": self.agent_session_id, "prompt": prompt}
        try:
            answer = await self._rpc.call("session/prompt", params, seconds=math.inf)
            CURRENT_LINE.set(bytes(answer))
            ended = decode_json(answer, type=messages.PromptEnded)
        except RpcError as error:
            # Some programs answer a cancelled prompt with an error.
            self.end_turn(
                None
                if self.is_stopping
                else model_failure(
                    error.message,
                    category="authentication" if error.code == AUTH_REQUIRED else None,
                )
            )
        except AgentFailed as failure:
            self.end(failure)
        except (msgspec.DecodeError, UnicodeError) as error:
            self.end(AgentFailed(f"the end of its turn is not as the protocol has it: {error}"))
        else:
            self._preamble, self._is_ending = [], True
            await self._take_end(ended)

    async def _take_end(self, ended: messages.PromptEnded) -> None:
        listener = self.listener
        if listener is not None:
            await listener.confirm_delivery()
            for observed in self._reported_calls.list_unfinished():
                await listener.record_call(*observed)
            if ended.stop_reason == "max_tokens":
                await listener.message_ends("length")
            usage, cost_usd = _usage(ended), self._turn_cost_usd
            if usage is not None or cost_usd is not None:
                no_tokens = Usage(input=0, output=0, total=0)
                await listener.usage(usage or no_tokens, cost_usd=cost_usd)
        self.end_turn(self._failure_of(ended.stop_reason))

    def _failure_of(self, stop_reason: str) -> RunFailed | None:
        match stop_reason:
            # Some programs end their turn like this because a call was denied.
            case "cancelled" if not self.is_stopping and not self._has_denied:
                return RunFailed("provider_error", "the agent cancelled its turn")
            case "refusal":
                return RunFailed(
                    "provider_error",
                    "the agent's model refuses to go on",
                    category="content_filter",
                )
            case "max_turn_requests":
                return RunFailed(
                    "tool_loop_limit_exceeded", "the agent made as many model calls as it may"
                )
            case _:
                return None

    async def _ask_to_stop(self) -> None:
        self.is_stopping = True
        # First answer the program's open requests, as cancelled, while it still waits for the answers.
        await self._rpc.wait_answered()
        await self._rpc.notify("session/cancel", {"sessionId": self.agent_session_id})

    # --- output of the program ---------------------------------------------------------------

    async def take_notification(self, method: str, params: Raw) -> None:
        """See ``Peer.take_notification``."""
        if method == "$/cancel_request":
            self._rpc.withdraw(params)
            return
        listener = self.listener
        # When a program loads a session, it repeats the session's messages between turns.
        if listener is None or method.startswith("_"):
            return
        try:
            if method == "session/update":
                notification = decode_json(params, type=messages.Notification)
                if notification.session_id == self.agent_session_id:
                    await self._take_update(listener, notification.update)
                    return
        except (msgspec.DecodeError, UnicodeError):
            pass
        await listener.unknown(bytes(params))

    async def _take_update(self, listener: AgentListener, update: Raw) -> None:
        head = decode_json(update, type=messages.UpdateHead)
        registered = self._handlers.get(head.session_update)
        if registered is not None:
            kind, handler = registered
            await handler(listener, decode_json(update, type=kind))
        elif head.session_update not in _IGNORED:
            await listener.unknown(bytes(update))

    async def take_unknown(self, line: bytes) -> None:
        """See ``Peer.take_unknown``."""
        if self.listener is not None:
            await self.listener.unknown(line)

    async def _take_text(self, listener: AgentListener, chunk: messages.Chunk) -> None:
        await self._take_chunk(listener, chunk, listener.text)

    async def _take_thought(self, listener: AgentListener, chunk: messages.Chunk) -> None:
        await self._take_chunk(listener, chunk, listener.reasoning)

    async def _take_chunk(
        self,
        listener: AgentListener,
        chunk: messages.Chunk,
        write: Callable[[str], Awaitable[None]],
    ) -> None:
        # A piece of a text: the line is not kept.
        CURRENT_LINE.set(b"")
        if chunk.parent is not None:
            if chunk.content.type == "text" and write == listener.text:
                await listener.subagent_text(chunk.content.text, chunk.parent)
            return
        if chunk.message_id is not None:
            if self._message_id not in (None, chunk.message_id):
                await listener.message_ends()
            self._message_id = chunk.message_id
        if chunk.content.type != "text":
            await listener.unknown(msgspec.json.encode(chunk))
        elif chunk.content.text:
            await write(chunk.content.text)

    async def _take_usage(self, _listener: AgentListener, update: messages.UsageUpdate) -> None:
        if update.cost is not None and update.cost.currency == "USD":
            if self._cost_usd is not None:
                earlier_cost_usd = self._turn_cost_usd or 0.0
                self._turn_cost_usd = earlier_cost_usd + update.cost.amount - self._cost_usd
            self._cost_usd = update.cost.amount

    async def _take_plan(self, listener: AgentListener, plan: messages.Plan) -> None:
        await listener.confirm_delivery()
        todos = todos_of(plan.entries)
        if todos != self._plan:
            self._plan = todos
            await listener.plan(todos)

    async def _take_call(self, listener: AgentListener, report: ToolCall) -> None:
        await listener.confirm_delivery()
        observed = self._reported_calls.take(report)
        if observed is not None:
            await listener.record_call(*observed)

    # --- requests of the program -------------------------------------------------------------

    async def answer(self, method: str, params: Raw) -> Any:
        """See ``Peer.answer``."""
        if method != "session/request_permission":
            raise RpcError(METHOD_NOT_FOUND, f"there is no method {method}")
        request = decode_json(params, type=messages.PermissionAsked)
        may_run = await self._may_run(request)
        self._has_denied |= not may_run
        if self.is_stopping:
            return {"outcome": {"outcome": "cancelled"}}
        options = {option.kind: option.option_id for option in request.options}
        for kind in ("allow_once",) if may_run else ("reject_once", "reject_always"):
            if kind in options:
                return {"outcome": {"outcome": "selected", "optionId": options[kind]}}
        return {"outcome": {"outcome": "cancelled"}}

    async def _may_run(self, request: messages.PermissionAsked) -> bool:
        """Return whether the program may make a call. A call of an offered tool is judged when it
        arrives.
        """
        listener = self.listener
        if listener is None:
            await self.refuse_outside(to_agent_call(request.tool_call))
        if listener is None or request.session_id != self.agent_session_id:
            return False
        await listener.confirm_delivery()
        if self._reported_calls.is_ours(request.tool_call):
            return True
        call = self._reported_calls.begin_judgement(request.tool_call)
        if await listener.find_refusal(call) is not None:
            return False
        self._reported_calls.allow(call)
        return True

    def _is_in_turn(self) -> bool:
        return self.listener is not None and not self._is_ending

    async def _run_tool(self, name: str, params: ToolCallParams) -> ToolResult:
        sent_id = _id_in(params.meta)
        if not self._is_in_turn():
            return await self.refuse_outside(_call(sent_id, name, params))
        id_ = await self._reported_calls.id_of(name, params.arguments, sent_id)
        listener = self.listener
        call = _call(id_, name, params)
        if listener is None or not self._is_in_turn():
            return await self.refuse_outside(call)
        if listener.has_pending_steer():
            # The result of the first skipped call lets the program end its turn itself; at the second
            # one it is stopped.
            if self._has_skipped:
                await self._ask_to_stop()
            self._has_skipped = True
        return await listener.run_tool(call)


def _call(id_: str, name: str, params: ToolCallParams) -> AgentCall:
    return AgentCall(agent_call_id=id_, name=name, args=params.arguments)


def _id_in(meta: Mapping[str, Any]) -> str:
    """Return the program's id of a call from the metadata of its request; empty if there is none."""
    ids = (meta.get(key) for key in _CALL_ID_KEYS)
    return next((id_ for id_ in ids if isinstance(id_, str)), "")


def _usage(ended: messages.PromptEnded) -> Usage | None:
    """Return the tokens of a turn; the input includes cached tokens. None if they are not reported."""
    counts, meta = ended.usage, ended.meta
    if counts is not None:
        read, written = counts.cached_read_tokens or 0, counts.cached_write_tokens or 0
        input_tokens = counts.input_tokens + read + written
        return Usage(
            input=input_tokens,
            output=counts.output_tokens,
            total=input_tokens + counts.output_tokens,
            cache_read=read,
            cache_write=written,
        )
    if meta is None or meta.quota is None or meta.quota.token_count is None:
        return None
    quota = meta.quota.token_count
    return Usage(
        input=quota.input_tokens,
        output=quota.output_tokens,
        total=quota.input_tokens + quota.output_tokens,
    )
