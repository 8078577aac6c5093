"""One life of Claude Code: passes its messages to the listener, and sends it lines.

The harness spec is ``protocol/runtimes/claude.md``. Calls of offered tools arrive in the same stream, as
messages to an MCP server of type ``sdk``. The hook before each tool call is the earliest point at
which a turn can be stopped.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import trio

from nousd.errors import AgentFailed, FailureCategory
from nousd.net.jsonrpc import REQUESTS_MAX, RpcError, require_readable
from nousd.runtimes.agents.claude import messages
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
from nousd.runtimes.agents.time_limits import HOOK_SECONDS
from nousd.runtimes.agents.told_transcript import render_transcript
from nousd.runtimes.agents.tools.mcp_tools import SERVER, McpTools, ToolCallParams, mcp_name
from nousd.runtimes.agents.tools.own_tools import Facts
from nousd.tools.interface import ToolResult
from nousd.wire.codec.decoding import convert, decode_json
from nousd.wire.codec.envelope import encode_json
from nousd.wire.objects.entries import Usage

_INITIALIZE: Final = "initialize"
_PREFIX: Final = f"mcp__{SERVER}__"
"""The program's prefix for the names of offered tools."""

_TOOL_USE_ID: Final = "claudecode/toolUseId"

_CATEGORIES: Final[dict[str, FailureCategory]] = {
    "account_on_hold": "permission_denied",
    "authentication_failed": "authentication",
    "billing_error": "quota",
    "cloud_credential_error": "authentication",
    "invalid_request": "invalid_request",
    "model_not_found": "not_found",
    "oauth_org_not_allowed": "permission_denied",
    "overloaded": "overloaded",
    "rate_limit": "rate_limit",
    "server_error": "server_error",
    "verification_required": "permission_denied",
}
"""The program's name of a model call's failure -> its category."""

_IGNORED: Final = frozenset(
    {"rate_limit_event", "tool_progress", "auth_status", "keep_alive", "streamlined_text"}
)
"""Messages that are ignored, because they add nothing to others."""


class ClaudeLife(AgentLife):
    """Implements ``AgentLife``."""

    def __init__(self, start: Start, resume: Resume, write: Write, nursery: trio.Nursery) -> None:
        super().__init__()
        self._start = start
        self._resume = resume
        self._write = write
        self._nursery = nursery
        self._names = {f"{_PREFIX}{mcp_name(tool.name)}": tool.name for tool in start.tools}
        self._mcp = McpTools(start.tools, self._run_tool)
        self._is_ready = trio.Event()
        self._answer_scopes: dict[str, trio.CancelScope] = {}
        self._requests = 0
        self._prompt_id = ""
        self._streamed: set[str] = set()
        self._call_usage = messages.TokenCounts()
        self._usage = messages.TokenCounts()
        self.model = start.model
        self._cost_usd = 0.0
        self._error: str | None = None
        self.facts_of = None if start.own_tools == "off" else facts_of
        self._own_calls: dict[str, tuple[AgentCall, float]] = {}
        self._handlers: dict[str, tuple[type[msgspec.Struct], Callable[[Any], Awaitable[None]]]] = {
            "command_lifecycle": (messages.Lifecycle, self._take_lifecycle),
            "system": (messages.Init, self._take_system),
            "stream_event": (messages.StreamEvent, self._take_event),
            "assistant": (messages.Assistant, self._take_assistant),
            "user": (messages.Results, self._take_results),
            "result": (messages.Result, self._take_result),
            "control_response": (messages.ControlResponse, self._take_response),
            "control_request": (messages.ControlRequest, self._take_request),
            "control_cancel_request": (messages.ControlCancel, self._take_cancel),
        }

    # --- messages to the program -------------------------------------------------------------

    async def begin(self) -> None:
        """See ``AgentLife.begin``."""
        hook = {"matcher": None, "hookCallbackIds": ["before"], "timeout": HOOK_SECONDS}
        await self._ask(
            subtype=_INITIALIZE,
            hooks={"PreToolUse": [hook]},
            sdkMcpServers=[SERVER],
            appendSystemPrompt=self._start.instructions,
        )
        await self._is_ready.wait()
        if self.failure is not None:
            raise self.failure

    async def _prompt(self, user_text: UserText) -> None:
        content: list[dict[str, Any]] = []
        if self._resume.kind == "reconstruct":
            content.append({"type": "text", "text": render_transcript(self._resume.transcript)})
            self._resume = Resume("new")
        content.append({"type": "text", "text": user_text.text})
        content += [
            {
                "type": "image",
                "source": {
                    "type": "base64",
                    "media_type": image.media_type,
                    "data": base64.b64encode(image.data).decode(),
                },
            }
            for image in user_text.images
        ]
        self._prompt_id = user_text.message_id
        await self._send(
            type="user",
            uuid=user_text.message_id,
            message={"role": "user", "content": content},
            parent_tool_use_id=None,
            session_id="",
        )

    async def _ask_to_stop(self) -> None:
        await self._ask(subtype="interrupt")

    async def _ask(self, **request: Any) -> None:
        self._requests += 1
        await self._send(
            type="control_request", request_id=f"ask-{self._requests}", request=request
        )

    async def _send(self, **message: Any) -> None:
        await self._write(encode_json(message))

    # --- output of the program ---------------------------------------------------------------

    async def take(self, line: bytes) -> None:
        """See ``AgentLife.take``."""
        try:
            head = decode_json(require_readable(line), type=messages.Head)
            registered = self._handlers.get(head.type)
            if registered is not None:
                kind, handler = registered
                await handler(decode_json(line, type=kind))
                return
        except msgspec.DecodeError:
            head = messages.Head("")
        if head.type not in _IGNORED and self.listener is not None:
            await self.listener.unknown(line)

    async def _take_lifecycle(self, message: messages.Lifecycle) -> None:
        is_prompt = message.command_uuid == self._prompt_id and message.state == "started"
        if is_prompt and self.listener is not None:
            await self.listener.confirm_delivery()

    async def _take_system(self, message: messages.Init) -> None:
        self.agent_session_id = message.session_id or self.agent_session_id
        self.version = message.claude_code_version or self.version
        self.model = message.model or self.model

    async def _take_event(self, message: messages.StreamEvent) -> None:
        listener, event = self.listener, message.event
        if listener is None or message.parent_tool_use_id is not None:
            return
        match event.type:
            case "message_start":
                await listener.message_ends("tool_use")
                self._streamed = {event.message.id}
                self._call_usage = event.message.usage
            case "content_block_delta" if event.delta.text:
                await listener.text(event.delta.text)
            case "content_block_delta" if event.delta.thinking:
                await listener.reasoning(event.delta.thinking)
            case "message_delta":
                if event.usage is not None:
                    self._call_usage.output_tokens = event.usage.output_tokens
                self._usage = _sum(self._usage, self._call_usage)
                if event.delta.stop_reason != "tool_use":
                    is_cut = event.delta.stop_reason == "max_tokens"
                    await listener.message_ends("length" if is_cut else "stop")

    async def _take_assistant(self, message: messages.Assistant) -> None:
        """Handle a complete message. If its model call was repeated after an interruption, the
        message has not streamed.
        """
        listener, answer = self.listener, message.message
        if listener is None:
            return
        if message.parent_tool_use_id is not None:
            for block in answer.content:
                if block.type == "text" and block.text:
                    await listener.subagent_text(block.text, message.parent_tool_use_id)
            return
        self._error = message.error
        if answer.id in self._streamed:
            return
        self._usage = _sum(self._usage, answer.usage)
        for block in answer.content:
            if block.type == "text":
                await listener.text(block.text)

    async def _take_results(self, message: messages.Results) -> None:
        """Record the results of calls of the program's own tools; those of offered tools are known."""
        if self.listener is None or isinstance(message.message.content, str):
            return
        for block in message.message.content:
            own_call = self._own_calls.pop(block.tool_use_id, None)
            if own_call is not None:
                call, started_at = own_call
                result = ToolResult(text_of(block.content), is_error=block.is_error)
                await self.listener.record_call(call, result, trio.current_time() - started_at)

    async def _take_result(self, message: messages.Result) -> None:
        listener = self.listener
        own_calls, self._own_calls = self._own_calls, {}
        for call, started_at in own_calls.values():
            if listener is not None:
                await listener.record_call(call, UNREPORTED, trio.current_time() - started_at)
        if listener is not None and (self._usage.input_tokens or self._usage.output_tokens):
            cost = message.total_cost_usd - self._cost_usd
            await listener.usage(_build_usage(self._usage), cost_usd=cost)
        self._usage, self._cost_usd = messages.TokenCounts(), message.total_cost_usd
        failure = None
        if message.is_error and message.terminal_reason != "hook_stopped":
            cause = message.result or "; ".join(message.errors) or message.subtype
            category = _CATEGORIES.get(self._error or "")
            failure = model_failure(cause, status=message.api_error_status, category=category)
        self._error = None
        self.end_turn(failure)

    async def _take_response(self, message: messages.ControlResponse) -> None:
        answer = message.response
        if answer.request_id == "ask-1":
            if answer.subtype == "error":
                self.end(AgentFailed(f"it refused to be initialized: {answer.error}"))
            else:
                initialized = decode_json(answer.response, type=messages.Initialized)
                self.models = tuple(model.value for model in initialized.models)
            self._is_ready.set()

    def end(self, failure: AgentFailed) -> None:
        """See ``AgentLife.end``."""
        super().end(failure)
        self._is_ready.set()

    # --- requests of the program -------------------------------------------------------------

    async def _take_request(self, message: messages.ControlRequest) -> None:
        id_ = message.request_id
        if id_ in self._answer_scopes or len(self._answer_scopes) >= REQUESTS_MAX:
            await self._send_answer(id_, subtype="error", error="too many requests at a time")
            return
        scope = self._answer_scopes[id_] = trio.CancelScope()
        self._nursery.start_soon(self._answer, message, scope)

    async def _take_cancel(self, message: messages.ControlCancel) -> None:
        if message.request_id in self._answer_scopes:
            self._answer_scopes[message.request_id].cancel()

    async def _answer(self, message: messages.ControlRequest, scope: trio.CancelScope) -> None:
        request = message.request
        answers: dict[str, Callable[[messages.ProgramRequest], Awaitable[Any]]] = {
            "hook_callback": self._before_tool,
            "can_use_tool": self._can_use,
            "mcp_message": self._mcp_message,
        }
        answer = answers.get(request.subtype)
        result: dict[str, Any] = {
            "subtype": "error",
            "error": f"{request.subtype} is not known here",
        }
        with scope:
            if answer is not None:
                try:
                    result = {"subtype": "success", "response": await answer(request)}
                except msgspec.DecodeError as error:
                    result["error"] = str(error)
        del self._answer_scopes[message.request_id]
        if not scope.cancelled_caught:
            await self._send_answer(message.request_id, **result)

    async def _send_answer(self, id_: str, **fields: Any) -> None:
        await self._send(type="control_response", response={"request_id": id_, **fields})

    async def _before_tool(self, request: messages.ProgramRequest) -> Any:
        """Answer the hook before a tool call. It judges calls of the program's own tools; a call of an
        offered tool is judged when it arrives.
        """
        hook = convert(request.input, messages.HookInput, strict=False)
        listener, offered_name = self.listener, self._names.get(hook.tool_name)
        call = AgentCall(
            agent_call_id=hook.tool_use_id,
            name=offered_name or hook.tool_name,
            args=hook.tool_input,
        )
        if listener is None:
            return _decision("deny", (await self.refuse_outside(call)).text)
        if listener.has_pending_steer():
            skipped = await listener.run_tool(call)
            return {"continue": False, "stopReason": "", **_decision("deny", skipped.text)}
        if offered_name is not None:
            return _decision("allow", "")
        if self._start.own_tools == "on":
            # The program decides whether it asks (``_can_use``).
            self._own_calls[hook.tool_use_id] = call, trio.current_time()
            return {}
        refusal = await listener.find_refusal(call)
        # The program may have ended the turn meanwhile: the call must not count for the next turn.
        if refusal is None and self.listener is listener:
            self._own_calls[hook.tool_use_id] = call, trio.current_time()
        return _decision("allow", "") if refusal is None else _decision("deny", refusal)

    async def _can_use(self, request: messages.ProgramRequest) -> Any:
        """Answer a permission request for a call. A call that the hook has decided on may run."""
        allowed = {"behavior": "allow", "updatedInput": request.input or {}}
        if self._start.own_tools != "on" or request.tool_name in self._names:
            return allowed
        args = request.input if isinstance(request.input, dict) else {}
        call = AgentCall(agent_call_id=request.tool_use_id, name=request.tool_name, args=args)
        if self.listener is None:
            return {"behavior": "deny", "message": (await self.refuse_outside(call)).text}
        refusal = await self.listener.find_refusal(call)
        return allowed if refusal is None else {"behavior": "deny", "message": refusal}

    async def _mcp_message(self, request: messages.ProgramRequest) -> Any:
        message = decode_json(request.message, type=messages.McpMessage)
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": 0 if message.id is None else message.id}
        if message.id is None:
            return {"mcp_response": {**answer, "result": {}}}
        try:
            answer["result"] = await self._mcp.answer(message.method, message.params)
        except RpcError as error:
            answer["error"] = {"code": error.code, "message": error.message}
        return {"mcp_response": answer}

    async def _run_tool(self, name: str, params: ToolCallParams) -> ToolResult:
        id_ = params.meta.get(_TOOL_USE_ID)
        call = AgentCall(
            agent_call_id=id_ if isinstance(id_, str) else "", name=name, args=params.arguments
        )
        if self.listener is None:
            return await self.refuse_outside(call)
        return await self.listener.run_tool(call)


def facts_of(call: AgentCall) -> Facts:
    """Return the effects of a call of the program's own tool, as its arguments show them."""
    args = {name: value for name, value in call.args.items() if isinstance(value, str)}
    path = args.get("file_path") or args.get("notebook_path") or args.get("path")
    match call.name:
        case "Read" if path:
            return Facts(frozenset({"read"}), (path,))
        case "Grep" | "Glob":
            return Facts(frozenset({"read"}), (path or ".",))
        case "Write" | "Edit" | "MultiEdit" | "NotebookEdit" if path:
            return Facts(frozenset({"read", "write"}), (path,))
        case "Bash" if "command" in args:
            return Facts(command=args["command"])
        case "WebFetch" if host := urlsplit(args.get("url", "")).hostname:
            return Facts(frozenset({"network"}), hosts=(host,))
        case "WebSearch":
            return Facts(frozenset({"network"}))
        case _:
            return Facts()


def text_of(content: str | list[messages.Block]) -> str:
    """Return the text of a tool's result."""
    if isinstance(content, str):
        return content
    return "\n".join(block.text for block in content if block.type == "text")


def _decision(decision: str, reason: str) -> dict[str, Any]:
    return {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": decision,
            "permissionDecisionReason": reason,
        }
    }


def _sum(one: messages.TokenCounts, other: messages.TokenCounts) -> messages.TokenCounts:
    pairs = zip(msgspec.structs.astuple(one), msgspec.structs.astuple(other), strict=True)
    return messages.TokenCounts(*[a + b for a, b in pairs])


def _build_usage(counts: messages.TokenCounts) -> Usage:
    read, written = counts.cache_read_input_tokens, counts.cache_creation_input_tokens
    input_tokens = counts.input_tokens + read + written
    return Usage(
        input=input_tokens,
        output=counts.output_tokens,
        total=input_tokens + counts.output_tokens,
        cache_read=read,
        cache_write=written,
    )
