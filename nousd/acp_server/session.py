"""One open session of an editor: its events become updates, its prompts become inputs of the queue.

All state is also in the daemon, so other clients can work in the session at the same time, and their
runs are shown like the editor's own.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import trio

from nousd.acp_server.asking import END_EVENTS, Asking
from nousd.acp_server.content import PromptContent, attachments_of, content_of
from nousd.acp_server.options import SETTINGS, command_for, options_of
from nousd.acp_server.prompts import FAILED, Prompt, Prompts, StopReason, make_ended_prompt
from nousd.acp_server.requests import Block, ClientCapabilities
from nousd.acp_server.servers import EditorServer, SessionServers
from nousd.acp_server.tool_calls import is_changing
from nousd.acp_server.transcript import entries_of, updates_of
from nousd.acp_server.updates import FLUSH_SECONDS, Update, Updates, chunk, modes, notice, plan
from nousd.client.answers import ReceivedEvent
from nousd.client.client import Client
from nousd.client.follow import Follower
from nousd.client.resuming import Interruption
from nousd.errors import ClientError, Refused
from nousd.net.jsonrpc import JsonRpc, RpcError
from nousd.wire.codec.decoding import convert, decode_json
from nousd.wire.commands.subscribe import Subscribe

_TYPES: Final = (
    *("turn_start", "agent_end", "queue_update", "session_deleted", "session_updated"),
    *("message_start", "message_update", "message_end", "reasoning_update"),
    *("tool_execution_start", "tool_execution_update", "tool_execution_end"),
    *("tool_call_requested", "tool_call_approved", "tool_call_denied", "tool_call_started"),
    *("tool_call_output", "tool_call_completed", "permission_requested"),
    *("question_asked", "question_answered", "question_rejected"),
    *("todo_updated", "model_input", "usage_reported", "warning", "error", "mcp_server_status"),
)

_COMMANDS_AFTER_RACE: Final = {"run_in_progress": "follow_up", "no_active_run": "prompt"}
"""Refusal of an input -> the command to use instead: the run has begun or ended meanwhile."""

_ATTEMPTS_MAX: Final = 8
_ATTEMPTS_BEFORE_START: Final = 7
"""Attempts to reconnect, about two seconds, before a missing daemon is started."""

_GIVE_UP_SECONDS: Final = 10.0
_RECONNECT_SECONDS: Final = 10.0
_GLANCE_SECONDS: Final = 0.05
_MODELS_SECONDS: Final = 2.0
"""How long an editor waits for the list of models when it opens a session."""

_ARGS_BYTES_MAX: Final = 1024 * 1024

_STEER: Final = "/steer"
_COMPACT: Final = "/compact"
COMMANDS: Final = (
    {
        "name": _STEER[1:],
        "description": "Tell the model something before its next step, while it works",
        "input": {"hint": "what it should know"},
    },
    {
        "name": _COMPACT[1:],
        "description": "Replace the older part of the context by a summary",
        "input": {"hint": "what the summary must keep"},
    },
)
"""The commands with which a prompt can begin, after a slash."""


class OpenSession:
    """A session while the editor has it open.

    Args:
        client_id: the editor's name, as shown to other clients.
        state: the response to ``get_state``.
        servers: the MCP servers that the editor passes.
        require_daemon: starts the daemon unless it is running. Raises ClientError.
    """

    def __init__(
        self,
        daemon: Client,
        rpc: JsonRpc,
        state: Mapping[str, Any],
        *,
        client_id: str,
        abilities: ClientCapabilities,
        servers: Iterable[EditorServer],
        require_daemon: Callable[[], Awaitable[None]],
    ) -> None:
        self._daemon = daemon
        self._rpc = rpc
        self._client_id = client_id
        self._state = state
        self.id: str = state["session_id"]
        self._folder: str = state["workspace"]
        self._prompts = Prompts()
        self._updates = Updates(
            self._folder,
            self._prompts.are_own,
            has_notices=abilities.has_notices,
            cost_usd=state.get("usage", {}).get("cost_usd", 0.0),
        )
        self._asking = Asking(
            rpc,
            self._as_client,
            session_id=self.id,
            folder=self._folder,
            has_forms=abilities.has_forms,
        )
        self._has_notices = abilities.has_notices
        self._servers = SessionServers(rpc, self._ask, self._say, self.id, servers)
        self._models: list[str] = []
        self._require_daemon = require_daemon
        self._daemon_lost = trio.Event()
        self._sending = trio.Lock()
        self._is_announced = trio.Event()
        self._is_following = trio.Event()
        self._events: Follower | None = None
        self._scope = trio.CancelScope()
        self._asked: dict[str, trio.CancelScope] = {}
        self.is_over = False

    @property
    def modes(self) -> dict[str, Any]:
        """The modes and the current one when the session was opened."""
        return modes(self._state["permission_mode"])

    async def options(self) -> list[dict[str, Any]]:
        """Return the options with their current values. Raises ClientError."""
        if not self._models:
            with trio.move_on_after(_MODELS_SECONDS), suppress(Refused):
                listed = (await self._daemon.request("list_models", {})).payload["models"]
                self._models = [model["id"] for model in listed]
        return options_of(await self._ask("get_state", {}), self._models)

    # --- the editor's requests -----------------------------------------------------------------

    async def replay(self) -> None:
        """Send the transcript. Raises ClientError."""
        open_calls: set[str] = set()
        async for entry in entries_of(self._daemon, self.id):
            for update in updates_of(entry, self._folder):
                await self._send(update)
            self._updates.replayed.add(entry["id"])
            if entry.get("role") == "tool":
                self._updates.replayed.add(entry["tool_call_id"])
                open_calls.discard(entry["tool_call_id"])
            open_calls |= {call["tool_call_id"] for call in entry.get("tool_calls", ())}
        self._updates.begin_calls(open_calls)
        open_message = self._state.get("open_message", {})
        if open_message and open_message["message_id"] not in self._updates.replayed:
            for update in self._updates.begin_message(
                open_message["message_id"], open_message["text"]
            ):
                await self._send(update)

    def begin(self) -> None:
        """Start sending updates: the editor now knows the session."""
        self._is_announced.set()

    @asynccontextmanager
    async def prompt(self, blocks: Iterable[Block]) -> AsyncIterator[Prompt]:
        """Submit a prompt after all earlier ones. Within the block the daemon has accepted it, and
        ``Prompt.wait_end`` returns why its turn ended; cancelling the block withdraws the prompt.

        Raises:
            RpcError: the daemon refuses it.
            ClientError: the daemon is gone.
        """
        content = content_of(blocks, self._folder)
        command, _, rest = content.text.partition(" ")
        if command == _COMPACT:
            await self._compact(rest.strip())
            yield make_ended_prompt()
            return
        prompt = self._prompts.begin(uuid.uuid4().hex)
        try:
            async with self._sending:
                await self._wait_until_following()
                await self._servers.ready()
                if not prompt.is_over.is_set():
                    await self._hand_in(prompt, content)
            yield prompt
        except trio.Cancelled:
            # The runs of a closed editor continue.
            if not self._scope.cancel_called:
                with trio.move_on_after(_GIVE_UP_SECONDS, shield=True), suppress(ClientError):
                    await self._give_up(prompt)
            raise
        finally:
            self._prompts.forget(prompt)

    async def cancel(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Abort the run and remove waiting prompts, after all earlier prompts were sent."""
        task_status.started()
        with self._servers.skip_waits():
            await self._cancel()

    async def _cancel(self) -> None:
        async with self._sending:
            try:
                await self._abort()
            except ClientError:
                # The daemon is gone, and so are its runs.
                self._prompts.settle("cancelled")

    async def set_mode(self, mode: str) -> None:
        """Set the permission mode. Raises ClientError."""
        await self._ask("set_permission_mode", {"mode": mode})

    async def set_option(self, option: str, value: object) -> list[dict[str, Any]]:
        """Set an option and return all options. Raises RpcError, ClientError."""
        await self._ask(*command_for(option, value))
        return await self.options()

    async def take_back_servers(self, excluded: Iterable[EditorServer] = ()) -> None:
        """Remove the MCP servers that the editor passed, except those in ``excluded``."""
        await self._servers.remove(excluded)

    def close(self, outcome: StopReason | RpcError = "cancelled") -> None:
        """Stop sending updates, and end the waiting prompts with ``outcome``."""
        self._scope.cancel()
        self._prompts.settle(outcome)

    # --- prompts -------------------------------------------------------------------------------

    async def _wait_until_following(self) -> None:
        """Wait until the editor can be asked for permissions, so that none is denied without asking.

        Raises:
            DaemonUnreachable: no daemon runs.
        """
        await self._is_following.wait()
        if self._events is None or self._events.is_connected:
            return
        await self._ask("get_state", {})
        with trio.move_on_after(_RECONNECT_SECONDS):
            while not self._events.is_connected:  # noqa: ASYNC110  a rare wait, without an event
                await trio.sleep(_GLANCE_SECONDS)

    async def _hand_in(self, prompt: Prompt, content: PromptContent) -> None:
        """Send a prompt; it ends at once if an extension answers it."""
        command, _, rest = content.text.partition(" ")
        is_steer = command == _STEER and bool(rest.strip())
        payload: dict[str, Any] = {
            "text": rest if is_steer else content.text,
            "client_message_id": prompt.key,
            "attachments": await attachments_of(self._daemon, content.files),
        }
        # A cancellation in the middle might leave a run that no client knows of.
        with trio.CancelScope(shield=True):
            accepted = await self._submit_text("steer" if is_steer else "prompt", payload)
        prompt.run_id = accepted.get("run_id", "")
        prompt.input_id = accepted.get("input_id", "")
        if "handled_by" in accepted:
            if accepted["reply"]:
                await self._send(chunk("agent_message_chunk", accepted["reply"]))
            prompt.settle("end_turn")

    async def _compact(self, instruction: str) -> None:
        arguments = {"instruction": instruction} if instruction else {}
        compaction = await self._ask("compact_session", arguments, seconds=math.inf)
        await self._send(chunk("agent_message_chunk", compaction["summary"]))

    async def _submit_text(self, command: str, payload: dict[str, Any]) -> dict[str, Any]:
        """Send an input with ``command``, or with the one that fits the state of the session."""
        for _ in range(_ATTEMPTS_MAX):
            try:
                waits = {"wait": False} if command == "prompt" else {}
                return await self._as_client(command, {**payload, **waits})
            except Refused as refused:
                if refused.message not in _COMMANDS_AFTER_RACE:
                    raise
                command = _COMMANDS_AFTER_RACE[refused.message]
        raise RpcError(FAILED, "runs of the session begin and end too fast to get a prompt in")

    async def _abort(self) -> None:
        try:
            await self._as_client("abort", {})
        except Refused:
            # There is no run; the next one must not receive the waiting prompts either.
            for prompt in self._prompts.undelivered:
                await self._remove(prompt)

    async def _give_up(self, prompt: Prompt) -> None:
        if prompt.is_over.is_set() or not prompt.input_id:
            return
        if not await self._remove(prompt):
            with suppress(Refused):  # the run has ended
                await self._as_client("abort", {"expected_run_id": prompt.run_id})

    async def _remove(self, prompt: Prompt) -> bool:
        """Remove a waiting prompt; return False if its turn has begun or it was already removed."""
        try:
            await self._as_client("remove_queued", {"input_id": prompt.input_id})
        except Refused:
            return False
        return True

    async def _withdraw_undelivered(self) -> None:
        """Remove the prompts that a failed run did not take, and report them as failed."""
        for prompt in self._prompts.undelivered:
            failure = RpcError(FAILED, "not delivered: the run before it failed")
            prompt.outcome_if_cleared = failure
            with suppress(ClientError):
                await self._remove(prompt)
            if prompt.turn is None:
                prompt.settle(failure)

    # --- events --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Send updates until the session is closed or unavailable."""
        with self._scope:
            await self._is_announced.wait()
            commands = {"sessionUpdate": "available_commands_update", "availableCommands": COMMANDS}
            await self._send(commands)
            query = Subscribe(
                after=self._state["cursor"], session_id=self.id, types=_TYPES, confirms=True
            )
            try:
                following = self._daemon.follow(query, on_interruption=self._note_interruption)
                async with following as events, trio.open_nursery() as tasks:
                    self._events = events
                    tasks.start_soon(self._revive)
                    await self._catch_up(tasks)
                    tasks.start_soon(self._servers.begin)
                    tasks.start_soon(self._servers.renew)
                    self._is_following.set()
                    await self._follow(events, tasks)
            except* ClientError as errors:
                self._prompts.settle(RpcError(FAILED, str(errors.exceptions[0])))
        self.is_over = True
        self._is_following.set()

    def _note_interruption(self, interruption: Interruption) -> None:
        if interruption.attempt >= _ATTEMPTS_BEFORE_START and self._prompts.are_waiting:
            self._daemon_lost.set()

    async def _revive(self) -> None:
        """Start the daemon if it was killed and nobody else starts it: only a new daemon can report how
        the turns of the editor's prompts ended.
        """
        while True:
            await self._daemon_lost.wait()
            self._daemon_lost = trio.Event()
            try:
                await self._require_daemon()
            except ClientError as error:
                self._prompts.settle(RpcError(FAILED, str(error)))

    async def _follow(self, events: Follower, tasks: trio.Nursery) -> None:
        while True:
            event = None
            with trio.move_on_after(FLUSH_SECONDS if self._updates.is_due else math.inf):
                event = await anext(events)
            if event is None:
                await self._flush()
            else:
                await self._take(event, tasks)

    async def _take(self, event: ReceivedEvent, tasks: trio.Nursery) -> None:
        type_ = event.type
        payload: Mapping[str, Any] = event.payload
        if type_ in {"permission_requested", "question_asked"}:
            await self._flush()
            self._ask_user(type_, await self._whole(payload), tasks)
        elif type_ in END_EVENTS:
            self._withdraw(payload.get(END_EVENTS[type_], ""))
        if payload["session_id"] != self.id:
            return
        if type_ in {"tool_call_requested", "tool_execution_start"}:
            payload = await self._whole(payload)
        if type_ == "mcp_server_status":
            await self._servers.note(payload)
        for update in self._updates.take(type_, payload):
            await self._send(update)
        if type_ == "session_updated" and SETTINGS & payload.keys():
            with suppress(ClientError):  # the daemon is gone; the next change updates the editor
                options = await self.options()
                await self._send(
                    {"sessionUpdate": "config_option_update", "configOptions": options}
                )
        self._prompts.note(type_, payload)
        await self._prompts.let_answer()
        if type_ == "agent_end" and payload["status"] not in {"completed", "cancelled"}:
            tasks.start_soon(self._withdraw_undelivered)

    async def _flush(self) -> None:
        for update in self._updates.flush():
            await self._send(update)

    async def _whole(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the payload with complete arguments, if the call is shown as a change of files."""
        is_cut = "args_ref" in payload and payload["args_bytes"] <= _ARGS_BYTES_MAX
        if not is_cut or not is_changing(payload["tool_name"]):
            return payload
        query = {"artifact_id": payload["args_ref"], "length": _ARGS_BYTES_MAX}
        with suppress(ClientError):  # deleted meanwhile
            data = (await self._daemon.request("get_artifact", query)).payload["data"]
            return {**payload, "args": decode_json(convert(data, bytes))}
        return payload

    # --- asking the user -----------------------------------------------------------------------

    async def _catch_up(self, tasks: trio.Nursery) -> None:
        """Send the plan and the pending requests from before the session was opened."""
        todos = (await self._ask("get_todos", {}))["todos"]
        if todos:
            await self._send(plan(todos))
        pending = (await self._ask("list_permissions", {}))["pending"]
        for request in pending:
            self._ask_user("permission_requested", await self._whole(request), tasks)
        for question in (await self._ask("list_questions", {}))["questions"]:
            self._ask_user("question_asked", question, tasks)

    def _ask_user(self, type_: str, payload: Mapping[str, Any], tasks: trio.Nursery) -> None:
        is_permission = type_ == "permission_requested"
        id = payload["tool_call_id" if is_permission else "question_id"]
        if id in self._asked:
            return
        scope = self._asked[id] = trio.CancelScope()
        ask = self._asking.permission if is_permission else self._asking.question

        async def ask_in_scope() -> None:
            try:
                # If the daemon is gone, so is the caller of the request.
                with scope, suppress(ClientError):
                    await ask(payload)
            finally:
                del self._asked[id]

        tasks.start_soon(ask_in_scope)

    def _withdraw(self, id: str) -> None:
        if id in self._asked:
            self._asked[id].cancel()

    # --- sending -------------------------------------------------------------------------------

    async def _say(self, sentence: str) -> None:
        """Show the user a sentence that does not come from the model."""
        if self._has_notices:
            await self._send(notice("warning", sentence))
        else:
            await self._send(chunk("agent_message_chunk", f"{sentence}\n"))

    async def _send(self, update: Update) -> None:
        await self._rpc.notify("session/update", {"sessionId": self.id, "update": update})

    async def _as_client(self, command: str, payload: dict[str, Any]) -> dict[str, Any]:
        return await self._ask(command, {**payload, "client_id": self._client_id})

    async def _ask(
        self, command: str, payload: dict[str, Any], *, seconds: float | None = None
    ) -> dict[str, Any]:
        """Send a command about the session and return the response's payload. Raises ClientError."""
        command_payload = {"session_id": self.id, **payload}
        return (
            await self._daemon.request(command, command_payload, timeout_seconds=seconds)
        ).payload
