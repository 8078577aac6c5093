"""One life of ``opencode serve``: passes its events to the listener, and sends it requests.

The harness spec is ``protocol/runtimes/opencode.md``. Calls of offered tools arrive over a separate
socket (``tool_socket``). The program also reports these calls in its events; there they are ignored, so
that each counts once.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

import msgspec
import trio

from nousd.errors import AgentFailed, FailureCategory, RunFailed
from nousd.net.jsonrpc import REQUESTS_MAX, require_readable
from nousd.runtimes.agents.interface import (
    AgentCall,
    AgentLife,
    AgentListener,
    Resume,
    Start,
    UserText,
)
from nousd.runtimes.agents.model_failure import model_failure
from nousd.runtimes.agents.opencode import messages
from nousd.runtimes.agents.opencode.calls import STATUSES, CallParts, facts_of
from nousd.runtimes.agents.opencode.speech import Speech
from nousd.runtimes.agents.opencode.told import MARK, model, prompt, rules, tool_name
from nousd.runtimes.agents.plans import todos_of
from nousd.runtimes.agents.raw_lines import CURRENT_LINE
from nousd.runtimes.agents.time_limits import (
    ANSWER_SECONDS,
    FAILED_TURN_SECONDS,
    LAST_WORDS_SECONDS,
    OUR_CALL_SECONDS,
)
from nousd.runtimes.agents.told_transcript import render_transcript
from nousd.runtimes.agents.tools.mcp_tools import SERVER, McpTools, ToolCallParams
from nousd.runtimes.agents.tools.reported_calls import ReportedCalls, to_agent_call
from nousd.runtimes.agents.tools.tool_socket import serve_tools
from nousd.tools.interface import ToolResult
from nousd.wire.codec.decoding import decode_json

if TYPE_CHECKING:
    from nousd.runtimes.agents.opencode.client import Client

_T = TypeVar("_T")

_ADDRESS: Final = re.compile(rb"listening on (http://127\.0\.0\.1:\d{1,5})\s*$")

_TRACE: Final = "\n    at "
"""Begins the stack trace that follows the message of the program's own failures."""

_IGNORED: Final = frozenset(
    {
        *("message.part.removed", "message.removed", "permission.replied", "session.compacted"),
        *("session.created", "session.diff", "session.updated"),
    }
)
"""Events of a session that are ignored, because they contain nothing about the turn."""


_CATEGORIES: Final[dict[str, FailureCategory]] = {
    "ContentFilterError": "content_filter",
    "ContextOverflowError": "context_length",
    "ProviderAuthError": "authentication",
}
"""The program's name of a model call's failure -> its category."""


class OpencodeLife(AgentLife):
    """Implements ``AgentLife``.

    Args:
        password: the password that the program's server requires.
    """

    def __init__(self, start: Start, resume: Resume, nursery: trio.Nursery, password: str) -> None:
        super().__init__()
        self._start = start
        self._resume = resume
        self._nursery = nursery
        self._password = password
        self._address = ""
        self._has_address = trio.Event()
        self._has_events = trio.Event()
        self._offered_names = frozenset(tool_name(tool) for tool in start.tools)
        self._mcp = McpTools(start.tools, self._run_tool)
        self._reported_calls = ReportedCalls(start.tools)
        self._calls = CallParts()
        self._pending_requests = 0
        self._preamble = ""
        self._prompt_id = ""
        self._steers: dict[str, trio.Event] = {}
        self._steer_lock = trio.Lock()
        self._speech = Speech()
        self._turn_failed: RunFailed | None = None
        self._is_delivered = False
        self.model = start.model
        self.facts_of = None if start.own_tools == "off" else facts_of
        self._handlers: Mapping[str, tuple[type[Any], Callable[[Any], Awaitable[None]]]] = {
            "message.updated": (messages.MessageNote, self._take_message),
            "message.part.updated": (messages.PartNote, self._take_part),
            "message.part.delta": (messages.Delta, self._take_delta),
            "session.status": (messages.StatusNote, self._take_status),
            "session.error": (messages.FaultNote, self._take_fault),
            "session.idle": (messages.Note, self._take_idle),
            "permission.asked": (messages.PermissionNote, self._take_question),
            "todo.updated": (messages.TodoNote, self._take_todos),
        }

    # --- beginning and end -------------------------------------------------------------------

    async def begin(self) -> None:
        """See ``AgentLife.begin``."""
        if self._start.model:
            model(self._start.model)
        await self._has_address.wait()
        try:
            await self._nursery.start(self._connect)
            health = await self._get(messages.Health, "GET", "/global/health")
            self.version = health.version
            listed = await self._get(messages.Providers, "GET", "/config/providers")
            self.models = tuple(
                f"{each.id}/{name}" for each in listed.providers for name in each.models
            )
            await self._has_events.wait()
            await self._offer_tools()
            await self._open()
        except msgspec.DecodeError as error:
            raise AgentFailed(f"it answered what nobody here understands: {error}") from error
        except OSError as error:
            raise AgentFailed(f"there is no socket for its tools: {error.strerror}") from error
        except AgentFailed:
            raise
        except RunFailed as refusal:
            raise AgentFailed(f"it refused to begin: {refusal.cause}") from refusal

    async def take(self, line: bytes) -> None:
        """See ``AgentLife.take``: only the line with the server's address is used."""
        found = _ADDRESS.search(line)
        if found is not None and not self._address:
            self._address = found.group(1).decode()
            self._has_address.set()

    def end(self, failure: AgentFailed) -> None:
        """See ``AgentLife.end``."""
        super().end(failure)
        self._has_address.set()
        self._has_events.set()
        for is_handled in self._steers.values():
            is_handled.set()

    async def _connect(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Hold the connection and handle the events until the life is over."""
        if self.failure is not None:
            raise self.failure
        self._client = await trio.to_thread.run_sync(_client, self._address, self._password)
        async with self._client:
            task_status.started()
            try:
                await self._client.follow(self._take_event)
            except AgentFailed as failure:
                await self._fail(failure)

    async def _fail(self, failure: AgentFailed) -> AgentFailed:
        """End the life; return its failure. If the program ends, that failure replaces this one."""
        with trio.move_on_after(LAST_WORDS_SECONDS):
            await self.over.wait()
        self.end(failure)
        return self.failure or failure

    async def _ask(self, method: str, path: str, body: Any = None) -> bytes:
        """Send a request; return the body of the answer.

        Raises:
            AgentFailed: the program can no longer be used.
            RunFailed: the program refuses the request.
        """
        if self.failure is not None:
            raise self.failure
        try:
            return await self._client.ask(method, path, body)
        except AgentFailed as failure:
            raise await self._fail(failure) from failure

    async def _get(self, kind: type[_T], method: str, path: str, body: Any = None) -> _T:
        return decode_json(await self._ask(method, path, body), type=kind)

    async def _offer_tools(self) -> None:
        server = await self._nursery.start(serve_tools, self._mcp)
        config = {
            "type": "local",
            "command": [server["command"], *server["args"]],
            "environment": {each["name"]: each["value"] for each in server["env"]},
            # The program takes milliseconds.
            "timeout": OUR_CALL_SECONDS * 1000,
        }
        body = {"name": SERVER, "config": config}
        states = await self._get(dict[str, messages.ServerState], "POST", "/mcp", body)
        state = states.get(SERVER, messages.ServerState("missing"))
        if state.status != "connected":
            raise AgentFailed(f"our tools do not reach it: {state.error or state.status}")

    async def _open(self) -> None:
        """Begin a session of the program, or resume the session of an earlier life."""
        permissions = {"permission": rules(self._start)}
        if self._resume.kind == "native":
            path = f"/session/{quote(self._resume.agent_session_id, safe='')}"
            session = await self._get(messages.Session, "PATCH", path, permissions)
        else:
            # Without a title the program would ask a model for one.
            body = {"title": SERVER, **permissions}
            session = await self._get(messages.Session, "POST", "/session", body)
        self.agent_session_id = session.id
        if self._resume.transcript:
            self._preamble = render_transcript(self._resume.transcript)

    # --- a turn ------------------------------------------------------------------------------

    @property
    def _path(self) -> str:
        return f"/session/{quote(self.agent_session_id, safe='')}"

    async def _prompt(self, user_text: UserText) -> None:
        self._prompt_id, self._is_delivered = user_text.message_id, False
        self._turn_failed = None
        self._steers.clear()
        self._calls.clear()
        self._speech.clear()
        self._reported_calls.clear()
        try:
            await self._send(user_text)
        except AgentFailed as failure:
            self.end(failure)
        except RunFailed as refusal:
            self.end_turn(refusal)

    async def _send(self, user_text: UserText) -> None:
        body = prompt(self._start, user_text, self._preamble)
        await self._ask("POST", f"{self._path}/prompt_async", body)

    async def _ask_to_stop(self) -> None:
        self.is_stopping = True
        try:
            await self._ask("POST", f"{self._path}/abort")
        except RunFailed:
            # The turn or the program has just ended.
            return

    # --- output of the program ---------------------------------------------------------------

    async def _take_event(self, data: bytes) -> None:
        """Handle an event. Events of other sessions and of the program itself are ignored."""
        self._has_events.set()
        CURRENT_LINE.set(data)
        listener = self.listener
        try:
            event = decode_json(require_readable(data), type=messages.Event)
            registered = self._handlers.get(event.type)
            note = decode_json(
                event.properties, type=registered[0] if registered else messages.Note
            )
            if listener is None or note.session_id != self.agent_session_id:
                return
            if registered is not None:
                await registered[1](note)
                return
            if event.type in _IGNORED:
                return
        except msgspec.DecodeError:
            pass
        if listener is not None:
            await listener.unknown(data)

    async def _take_message(self, note: messages.MessageNote) -> None:
        info = note.info
        if info.role == "assistant":
            self._speech.speaker = "" if info.summary is True else info.id
            self.model = f"{info.provider_id}/{info.model_id}"

    async def _take_part(self, note: messages.PartNote) -> None:
        part, listener = note.part, self.listener
        mark = (part.metadata or {}).get(MARK)
        if listener is None:
            return
        if part.type == "text" and isinstance(mark, str):
            await self._take_mark(listener, mark)
        elif part.type == "step-finish":
            await self._speech.take_step(listener, part)
        elif part.message_id != self._speech.speaker:
            return
        elif part.type == "tool":
            await self._take_call(listener, part)
        elif part.type in ("text", "reasoning"):
            await self._speech.take_part(listener, part)

    async def _take_mark(self, listener: AgentListener, mark: str) -> None:
        """Confirm the delivery of the user's text with this mark."""
        if mark == self._prompt_id and not self._is_delivered:
            self._is_delivered, self._preamble = True, ""
            await listener.confirm_delivery()
        elif mark in self._steers:
            await listener.message_ends()
            await listener.confirm_delivery(mark)
            self._steers[mark].set()

    async def _take_delta(self, note: messages.Delta) -> None:
        if self.listener is not None:
            await self._speech.take_delta(self.listener, note)

    async def _take_status(self, note: messages.StatusNote) -> None:
        """End the message so far as failed if the model is called again."""
        if note.status.type == "retry" and self.listener is not None:
            self._speech.clear()
            await self.listener.message_ends("error")

    async def _take_fault(self, note: messages.FaultNote) -> None:
        """Handle a failure: of a steer that the program does not accept, or of the turn, which ends
        shortly afterwards.
        """
        pending = [is_handled for is_handled in self._steers.values() if not is_handled.is_set()]
        for is_handled in pending:
            is_handled.set()
        if pending or self.is_stopping or self._turn_failed is not None:
            return
        fault = note.error or messages.Fault()
        message = fault.data.get("message")
        cause = message.partition(_TRACE)[0] if isinstance(message, str) else ""
        status = fault.data.get("statusCode")
        self._turn_failed = model_failure(
            cause or fault.name or "it does not say why",
            status=status if isinstance(status, int) else None,
            category=_CATEGORIES.get(fault.name),
        )
        if self._is_delivered:
            self._nursery.start_soon(self._end_failed_turn, self._prompt_id)
        else:
            self.end_turn(self._turn_failed)

    async def _end_failed_turn(self, prompt_id: str) -> None:
        await trio.sleep(FAILED_TURN_SECONDS)
        if self._prompt_id == prompt_id:
            self.end_turn(self._turn_failed)

    async def _take_idle(self, _: messages.Note) -> None:
        """End the turn, unless the event is the end of an earlier turn."""
        if self.is_stopping:
            self.end_turn()
        elif self._is_delivered:
            await self._tell_unfinished()
            self.end_turn(self._turn_failed)

    async def _tell_unfinished(self) -> None:
        for observed in self._reported_calls.list_unfinished():
            if self.listener is not None:
                await self.listener.record_call(*observed)

    async def _take_todos(self, note: messages.TodoNote) -> None:
        if self.listener is not None:
            await self.listener.plan(todos_of(note.todos))

    # --- calls of the program ----------------------------------------------------------------

    async def _take_call(self, listener: AgentListener, part: messages.Part) -> None:
        """Handle the report of a call. A call of a tool that is off has failed in the program; the gate
        logs its denial.
        """
        state = part.state
        if state is None or state.status not in STATUSES:
            return
        observed = self._reported_calls.take(self._calls.take(part, state))
        if observed is None:
            return
        if self.facts_of is None and observed.result.is_error:
            await listener.find_refusal(observed.call)
        else:
            await listener.record_call(*observed)

    async def _run_tool(self, name: str, params: ToolCallParams) -> ToolResult:
        id_ = (
            ""
            if self.listener is None
            else await self._reported_calls.id_of(name, params.arguments, "")
        )
        call = AgentCall(agent_call_id=id_, name=name, args=params.arguments)
        listener = self.listener
        if listener is None:
            return await self.refuse_outside(call)
        result = await listener.run_tool(call)
        await self._pass_on_steer()
        return result

    async def _pass_on_steer(self) -> None:
        """Send the pending steer to the program before the result of a call, so that its session has
        both when the model is called again.
        """
        async with self._steer_lock:
            user_text = None if self.listener is None else await self.listener.take_steer()
            if user_text is None:
                return
            is_handled = self._steers[user_text.message_id] = trio.Event()
            try:
                await self._send(user_text)
            except RunFailed:
                # The text begins the next turn instead.
                return
            with trio.move_on_after(ANSWER_SECONDS) as limit:
                await is_handled.wait()
            if limit.cancelled_caught:
                self.end(AgentFailed("it did not take a text that it was given in a turn"))

    async def _take_question(self, note: messages.PermissionNote) -> None:
        self._nursery.start_soon(self._answer, note)

    async def _answer(self, request: messages.PermissionNote) -> None:
        """Answer a permission request of the program."""
        if self._pending_requests >= REQUESTS_MAX:
            refusal: str | None = "too many questions at a time"
        else:
            self._pending_requests += 1
            refusal = await self._find_refusal(request)
            self._pending_requests -= 1
        # After a rejection without a reason the program would end its turn.
        answer = {"reply": "once"} if refusal is None else {"reply": "reject", "message": refusal}
        try:
            await self._ask("POST", f"/permission/{quote(request.id, safe='')}/reply", answer)
        except RunFailed:
            # The question is withdrawn, or the program has ended.
            return

    async def _find_refusal(self, request: messages.PermissionNote) -> str | None:
        """Return the reason against a call; None if the program may make it."""
        report = await self._calls.find_call(request)
        listener = self.listener
        if listener is None:
            return (await self.refuse_outside(to_agent_call(report))).text
        if report.name in self._offered_names:
            # A call of an offered tool is judged when it arrives.
            return None
        call = self._reported_calls.begin_judgement(report)
        refusal = await listener.find_refusal(call)
        if refusal is None:
            self._reported_calls.allow(call)
        return refusal


def _client(address: str, password: str) -> Client:
    # Call this in a thread: it also imports the HTTP library.
    from nousd.runtimes.agents.opencode.client import Client

    return Client(address, password)
