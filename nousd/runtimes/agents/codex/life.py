"""One life of Codex: passes its notifications to the listener, and answers its requests.

The harness spec is ``protocol/runtimes/codex.md``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec
import trio

from nousd.errors import AgentFailed, FailureCategory
from nousd.net.jsonrpc import METHOD_NOT_FOUND, JsonRpc, RpcError
from nousd.runtimes.agents.codex import messages, told
from nousd.runtimes.agents.codex.own_items import PATCH, SHELL, call_of, facts_of, result_of
from nousd.runtimes.agents.interface import (
    UNREPORTED,
    AgentCall,
    AgentLife,
    Resume,
    Start,
    UserText,
    Write,
)
from nousd.runtimes.agents.model_failure import model_failure
from nousd.runtimes.agents.time_limits import ANSWER_SECONDS
from nousd.runtimes.agents.tools.mcp_tools import mcp_name
from nousd.wire.codec.decoding import decode_json
from nousd.wire.codec.envelope import encode_json
from nousd.wire.objects.entries import Usage

_IGNORED: Final = frozenset(
    {
        *("account/rateLimits/updated", "account/updated", "configWarning", "deprecationNotice"),
        *("hook/completed", "hook/started", "item/reasoning/summaryPartAdded"),
        *("item/commandExecution/outputDelta", "item/fileChange/outputDelta"),
        *("item/fileChange/patchUpdated", "mcpServer/startupStatus/updated", "model/rerouted"),
        *("remoteControl/status/changed", "serverRequest/resolved", "skills/changed"),
        *("thread/compacted", "thread/goal/cleared", "thread/name/updated"),
        *("thread/readState/changed", "thread/settings/updated", "thread/started"),
        *("thread/status/changed", "turn/diff/updated", "turn/plan/updated", "warning"),
    }
)
"""Notifications that are ignored, because they add nothing to others or nothing to a transcript."""

_CATEGORIES: Final[dict[str, FailureCategory]] = {
    "badRequest": "invalid_request",
    "bioPolicy": "content_filter",
    "contextWindowExceeded": "context_length",
    "cyberPolicy": "content_filter",
    "internalServerError": "server_error",
    "misalignmentPolicyViolation": "content_filter",
    "modelNotFound": "not_found",
    "rateLimitExceeded": "rate_limit",
    "serverOverloaded": "overloaded",
    "sessionBudgetExceeded": "quota",
    "unauthorized": "authentication",
    "usageLimitExceeded": "quota",
}
"""The program's name of a model call's failure -> its category."""

_Result = TypeVar("_Result", bound=msgspec.Struct)


class CodexLife(AgentLife):
    """Implements ``AgentLife``, and ``Peer`` towards the program."""

    def __init__(self, start: Start, resume: Resume, write: Write, nursery: trio.Nursery) -> None:
        super().__init__()
        self.facts_of = None if start.own_tools == "off" else facts_of
        self._start = start
        self._resume = resume
        self._rpc = JsonRpc(write, self, nursery, marks_version=False)
        self.agent_session_id = resume.agent_session_id
        self._names = {mcp_name(tool.name): tool.name for tool in start.tools}
        self._turn_id = ""
        self._turn_known = trio.Event()
        self._prompt_id = ""
        self._steer_lock = trio.Lock()
        self._open_text_id = ""
        self._streamed_item_id = ""
        self._has_text = False
        self._own_calls: dict[str, tuple[AgentCall, float]] = {}
        self._reported_counts = messages.TokenCounts()
        self._handlers: dict[str, tuple[type[msgspec.Struct], Callable[[Any], Awaitable[None]]]] = {
            "turn/started": (messages.TurnNote, self._take_turn_started),
            "turn/completed": (messages.TurnNote, self._take_turn_completed),
            "item/started": (messages.ItemNote, self._take_started),
            "item/completed": (messages.ItemNote, self._take_completed),
            "item/agentMessage/delta": (messages.Delta, self._take_text),
            "item/reasoning/summaryTextDelta": (messages.Delta, self._take_reasoning),
            "item/reasoning/textDelta": (messages.Delta, self._take_reasoning),
            "thread/tokenUsage/updated": (messages.UsageNote, self._take_usage),
            "error": (messages.ErrorNote, self._take_error),
        }
        self._request_handlers: dict[
            str, tuple[type[msgspec.Struct], Callable[[Any], Awaitable[Any]]]
        ] = {
            "item/tool/call": (messages.ToolCall, self._run_tool),
            "item/commandExecution/requestApproval": (messages.CommandApproval, self._may_execute),
            "item/fileChange/requestApproval": (messages.ChangeApproval, self._may_change),
        }

    # --- messages to the program -------------------------------------------------------------

    async def begin(self) -> None:
        """See ``AgentLife.begin``."""
        start, resume = self._start, self._resume
        try:
            await self._rpc.call("initialize", told.INITIALIZE, seconds=ANSWER_SECONDS)
            await self._rpc.notify("initialized", {})
            config_read = await self._ask(
                "config/read", messages.ConfigRead, cwd=str(start.workdir)
            )
            model_list = await self._ask("model/list", messages.ModelList)
            self.models = tuple(model.id for model in model_list.data)
            settings = told.thread_settings(start, config_read.config.mcp_servers or ())
            if resume.kind == "native":
                more = {"threadId": resume.agent_session_id, "excludeTurns": True}
                response = await self._ask(
                    "thread/resume", messages.ThreadBegun, **settings, **more
                )
            else:
                offered = {"dynamicTools": told.tools(start), **told.environments(start)}
                response = await self._ask(
                    "thread/start", messages.ThreadBegun, **settings, **offered
                )
            self.agent_session_id = response.thread.id
            self.version, self.model = response.thread.cli_version, response.model
            if resume.kind == "reconstruct":
                await self._request("thread/inject_items", items=told.history(resume.transcript))
        except RpcError as error:
            raise AgentFailed(f"it refused to begin: {error.message}") from error
        except msgspec.DecodeError as error:
            raise AgentFailed(f"it answered what nobody here understands: {error}") from error

    async def _prompt(self, user_text: UserText) -> None:
        self._prompt_id, self._turn_id, self._turn_known = user_text.message_id, "", trio.Event()
        self._own_calls.clear()
        try:
            response = await self._ask(
                "turn/start",
                messages.TurnBegun,
                threadId=self.agent_session_id,
                **_build_user_input(user_text),
                **told.environments(self._start),
                **({"effort": self._start.thinking} if self._start.thinking else {}),
            )
        except RpcError as error:
            self.end_turn(model_failure(error.message))
        except msgspec.DecodeError as error:
            self.end(AgentFailed(f"it answered what nobody here understands: {error}"))
        else:
            self._know_turn(response.turn.id)

    async def _ask_to_stop(self) -> None:
        await self._turn_known.wait()
        try:
            await self._request("turn/interrupt", turnId=self._turn_id)
        except (RpcError, AgentFailed):
            # The turn or the program has just ended.
            return

    async def _request(self, method: str, **params: Any) -> msgspec.Raw:
        all_params = {"threadId": self.agent_session_id, **params}
        return await self._rpc.call(method, all_params, seconds=ANSWER_SECONDS)

    async def _ask(self, method: str, result: type[_Result], **params: Any) -> _Result:
        answer = await self._rpc.call(method, params, seconds=ANSWER_SECONDS)
        return decode_json(answer, type=result)

    def _know_turn(self, turn_id: str) -> None:
        self._turn_id = turn_id
        self._turn_known.set()

    # --- output of the program ---------------------------------------------------------------

    async def take(self, line: bytes) -> None:
        """See ``AgentLife.take``."""
        await self._rpc.take(line)

    def end(self, failure: AgentFailed) -> None:
        """See ``AgentLife.end``."""
        super().end(failure)
        self._rpc.end(failure)

    async def take_unknown(self, line: bytes) -> None:
        """See ``Peer.take_unknown``."""
        if self.listener is not None:
            await self.listener.unknown(line)

    async def take_notification(self, method: str, params: msgspec.Raw) -> None:
        """See ``Peer.take_notification``."""
        registered = self._handlers.get(method)
        try:
            if registered is not None:
                kind, handler = registered
                note = decode_json(params, type=kind)
                if getattr(note, "thread_id", "") in ("", self.agent_session_id):
                    await handler(note)
                return
        except msgspec.DecodeError:
            registered = None
        if method not in _IGNORED:
            await self.take_unknown(encode_json({"method": method, "params": params}))

    async def _take_turn_started(self, note: messages.TurnNote) -> None:
        if self.listener is not None:
            self._know_turn(note.turn.id)

    async def _take_turn_completed(self, note: messages.TurnNote) -> None:
        turn = note.turn
        if self.listener is None or turn.id != self._turn_id:
            return
        failure = None
        if turn.status != "completed":
            fault = turn.error or messages.Fault(f"the turn is {turn.status}")
            cause = "; ".join(filter(None, (fault.message, fault.additional_details)))
            failure = model_failure(cause, **_why(fault.codex_error_info))
        own_calls, self._own_calls = self._own_calls, {}
        for call, started_at in own_calls.values() if self.facts_of is not None else ():
            await self.listener.record_call(call, UNREPORTED, trio.current_time() - started_at)
        self._open_text_id = ""
        self.end_turn(failure)

    async def _take_started(self, note: messages.ItemNote) -> None:
        listener, item = self.listener, note.item
        if listener is None:
            return
        match item.type:
            case "userMessage" if item.client_id == self._prompt_id:
                await listener.confirm_delivery()
            case "userMessage" if item.client_id:
                await listener.message_ends()
                await listener.confirm_delivery(item.client_id)
            case "agentMessage" | "reasoning":
                await self._next_message(item)
            case _ if (call := call_of(item)) is not None:
                self._own_calls[item.id] = call, trio.current_time()

    async def _next_message(self, item: messages.Item) -> None:
        """End the open message if it already has text, because the item begins another message: in one
        message, reasoning comes before text. Items that are calls belong to the open message.
        """
        if self._has_text and self.listener is not None:
            await self.listener.message_ends()
        self._has_text = False
        if item.type == "agentMessage":
            self._open_text_id = item.id

    async def _take_text(self, note: messages.Delta) -> None:
        if self.listener is not None:
            self._has_text, self._streamed_item_id = True, note.item_id
            await self.listener.text(note.delta)

    async def _take_reasoning(self, note: messages.Delta) -> None:
        if self.listener is not None:
            await self.listener.reasoning(note.delta)

    async def _take_completed(self, note: messages.ItemNote) -> None:
        item = note.item
        call = call_of(item)
        if call is not None:
            await self._take_own(item, call)
        if item.id == self._open_text_id:
            self._open_text_id = ""
        is_new = item.type == "agentMessage" and item.id != self._streamed_item_id
        if is_new and item.text and self.listener is not None:
            self._has_text = True
            await self.listener.text(item.text)

    async def _take_own(self, item: messages.Item, call: AgentCall) -> None:
        """Record the result of a call of the program's own tool, unless nousd has denied the call."""
        _, started_at = self._own_calls.pop(item.id, (call, trio.current_time()))
        if self.listener is not None and item.status != "declined":
            seconds = trio.current_time() - started_at
            await self.listener.record_call(call, result_of(item), seconds)

    async def _take_usage(self, note: messages.UsageNote) -> None:
        """Report the growth of the thread's tokens after a model call. The same totals arrive again when
        a turn is stopped, and the totals of earlier lives when a thread is resumed.
        """
        total, before = note.token_usage.total, self._reported_counts
        self._reported_counts = total
        usage = Usage(
            input=total.input_tokens - before.input_tokens,
            output=total.output_tokens - before.output_tokens,
            total=total.total_tokens - before.total_tokens,
            cache_read=total.cached_input_tokens - before.cached_input_tokens,
            cache_write=total.cache_write_input_tokens - before.cache_write_input_tokens,
            reasoning=total.reasoning_output_tokens - before.reasoning_output_tokens,
        )
        if self.listener is not None and usage.total > 0:
            await self.listener.message_ends()
            await self.listener.usage(usage)

    async def _take_error(self, _: messages.ErrorNote) -> None:
        """End the message so far as failed: the model is called again, or the turn ends."""
        self._open_text_id, self._has_text = "", False
        if self.listener is not None:
            await self.listener.message_ends("error")

    # --- requests of the program -------------------------------------------------------------

    async def answer(self, method: str, params: msgspec.Raw) -> Any:
        """See ``Peer.answer``."""
        registered = self._request_handlers.get(method)
        if registered is None:
            raise RpcError(METHOD_NOT_FOUND, f"{method} is not known here")
        kind, handler = registered
        return await handler(decode_json(params, type=kind))

    async def _run_tool(self, request: messages.ToolCall) -> Any:
        listener = self.listener
        args = request.arguments if isinstance(request.arguments, dict) else {}
        name = self._names.get(request.tool, request.tool)
        call = AgentCall(agent_call_id=request.call_id, name=name, args=args)
        if listener is None:
            return _content((await self.refuse_outside(call)).text, success=False)
        result = await listener.run_tool(call)
        await self._pass_on_steer()
        return _content(result.text, success=not result.is_error)

    async def _pass_on_steer(self) -> None:
        """Send the pending steer to the program before the result of a call, so that the model reads
        both together. While the model writes, leave the steer for a later call: the text would be lost.
        """
        async with self._steer_lock:
            listener = self.listener
            if listener is None or self._open_text_id:
                return
            user_text = await listener.take_steer()
            if user_text is None:
                return
            try:
                await self._request(
                    "turn/steer", expectedTurnId=self._turn_id, **_build_user_input(user_text)
                )
            except RpcError:
                # The turn is over or does not accept a steer: then the text begins the next turn.
                return

    async def _may_execute(self, request: messages.CommandApproval) -> Any:
        args = {"command": request.command, "cwd": request.cwd}
        return await self._may_run(request.item_id, SHELL, args)

    async def _may_change(self, request: messages.ChangeApproval) -> Any:
        own_call = self._own_calls.get(request.item_id)
        return await self._may_run(request.item_id, PATCH, own_call[0].args if own_call else {})

    async def _may_run(self, item_id: str, name: str, args: Mapping[str, Any]) -> Any:
        listener = self.listener
        call = AgentCall(agent_call_id=item_id, name=name, args=args)
        if listener is None:
            await self.refuse_outside(call)
        may_run = listener is not None and await listener.find_refusal(call) is None
        return {"decision": "accept" if may_run else "decline"}


def _build_user_input(user_text: UserText) -> dict[str, Any]:
    return {"clientUserMessageId": user_text.message_id, "input": told.user_input(user_text)}


def _content(text: str, *, success: bool) -> Any:
    return {"contentItems": [{"type": "inputText", "text": text}], "success": success}


def _why(info: Any) -> dict[str, Any]:
    """Return the category or the HTTP status of a failure, whichever the program reports."""
    if isinstance(info, str):
        return {"category": _CATEGORIES.get(info)}
    details = next(iter(info.values()), None) if isinstance(info, dict) else None
    status = details.get("httpStatusCode") if isinstance(details, dict) else None
    return {"status": status if isinstance(status, int) else None}
