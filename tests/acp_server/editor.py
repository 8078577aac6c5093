"""An editor that speaks the Agent Client Protocol with our agent, in the test's own loop.

Whatever the agent sends is checked against the published schema.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio
from jsonschema_rs import Draft202012Validator

from nousd.acp_server.host import talk
from tests.harness.daemon import WAIT_SECONDS

SCHEMA: Final = Path(__file__).parents[2] / "fixtures" / "schemas" / "agent-client-protocol-1.json"

Message = dict[str, Any]
ALL: Final[Message] = {"elicitation": {"form": {}}, "session": {"notices": {}}}
"""The capabilities of an editor that can do everything that is used."""


class RpcFailed(Exception):
    """The agent answered with an error."""

    def __init__(self, error: Message) -> None:
        super().__init__(error["message"])
        self.code: int = error["code"]


class Editor:
    """One end of the connection.

    ``seen`` has all messages of the agent in their order; ``answers`` has, for a method of ours to the
    user, what to answer, or a function that does; without one it stays open.
    """

    def __init__(self) -> None:
        self.seen: list[Message] = []
        self.answers: dict[str, Message | Callable[[Message], Message]] = {}
        self._to_agent, self._incoming = trio.open_memory_channel[bytes](1000)
        self._ids = itertools.count(1)
        self._methods: dict[int, str] = {}
        self._news = trio.Event()

    # --- the agent's side ----------------------------------------------------------------------

    async def read(self) -> bytes:
        """Return what the agent reads; nothing at the end."""
        try:
            return await self._incoming.receive()
        except trio.EndOfChannel:
            return b""

    async def write(self, lines: bytes) -> None:
        """Take lines of the agent."""
        assert lines.endswith(b"\n")
        for line in lines[:-1].split(b"\n"):
            message: Message = json.loads(line)
            self._check(message)
            self.seen.append(message)
            answer = self.answers.get(message.get("method", ""))
            if answer is not None:
                result = answer(message["params"]) if callable(answer) else answer
                await self.send({"id": message["id"], "result": result})
        self._news.set()
        self._news = trio.Event()

    def _check(self, message: Message) -> None:
        assert message["jsonrpc"] == "2.0"
        if "method" in message:
            check(definitions()[message["method"]], message["params"])
        elif "result" in message:
            name = definitions()[self._methods[message["id"]]]
            check(name.removesuffix("Request") + "Response", message["result"])
        else:
            check("Error", message["error"])

    # --- the editor's side ---------------------------------------------------------------------

    async def send(self, message: Message | bytes) -> None:
        """Send a message, or bytes unchanged."""
        if isinstance(message, bytes):
            await self._to_agent.send(message)
        else:
            await self._to_agent.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def notify(self, method: str, **params: Any) -> None:
        """Send a notification."""
        await self.send({"method": method, "params": params})

    async def begin(self, method: str, **params: Any) -> int:
        """Send a request and return its id."""
        id = next(self._ids)
        self._methods[id] = method
        check(definitions()[method], params)
        await self.send({"id": id, "method": method, "params": params})
        return id

    async def result(self, id: int) -> Message:
        """Wait for the answer to a request. Raises RpcFailed."""
        answer = await self.until(
            lambda message: message.get("id") == id and "method" not in message
        )
        if "error" in answer:
            raise RpcFailed(answer["error"])
        result: Message = answer["result"]
        return result

    async def ask(self, method: str, **params: Any) -> Message:
        """Send a request and return its result. Raises RpcFailed."""
        return await self.result(await self.begin(method, **params))

    async def until(self, is_it: Callable[[Message], bool]) -> Message:
        """Return the first message of the agent that is it."""
        with trio.fail_after(WAIT_SECONDS):
            while (found := next(filter(is_it, self.seen), None)) is None:
                await self._news.wait()
        return found

    async def asked(self, method: str, count: int = 1) -> Message:
        """Return the request of the agent with this method, or a later one."""
        await self.until(lambda _: len(self.of(method)) >= count)
        return self.of(method)[count - 1]

    async def update(self, kind: str, **keys: Any) -> Message:
        """Return the first update of this kind with these keys."""

        def is_it(message: Message) -> bool:
            update = message.get("params", {}).get("update", {})
            return bool(update.get("sessionUpdate") == kind and keys.items() <= update.items())

        found: Message = (await self.until(is_it))["params"]["update"]
        return found

    def end(self) -> None:
        """Close the editor."""
        self._to_agent.close()

    def of(self, method: str) -> list[Message]:
        """Return the messages with this method."""
        return [message for message in self.seen if message.get("method") == method]

    def updates(self, *kinds: str) -> list[Message]:
        """Return the updates of these kinds, in their order; of all but commands if none is named."""
        updates = [message["params"]["update"] for message in self.of("session/update")]
        return [
            update
            for update in updates
            if update["sessionUpdate"] in kinds
            or (not kinds and update["sessionUpdate"] != "available_commands_update")
        ]

    def said(self, kind: str = "agent_message_chunk") -> str:
        """Return the texts of the chunks of this kind."""
        return "".join(update["content"]["text"] for update in self.updates(kind))

    # --- what most tests do --------------------------------------------------------------------

    async def initialize(self, capabilities: Message = ALL) -> Message:
        """Send the first request."""
        return await self.ask(
            "initialize",
            protocolVersion=1,
            clientCapabilities=capabilities,
            clientInfo={"name": "quill", "version": "1"},
        )

    async def new(self, folder: Path, *servers: Message) -> str:
        """Create a session and return its id."""
        made = await self.ask("session/new", cwd=str(folder), mcpServers=servers)
        return str(made["sessionId"])

    async def begin_prompt(self, session_id: str, *blocks: str | Message) -> int:
        """Send a prompt and return the id of the request."""
        content = [{"type": "text", "text": b} if isinstance(b, str) else b for b in blocks]
        return await self.begin("session/prompt", sessionId=session_id, prompt=content)

    async def prompt(self, session_id: str, *blocks: str | Message) -> str:
        """Send a prompt and return why its turn ended."""
        result = await self.result(await self.begin_prompt(session_id, *blocks))
        return str(result["stopReason"])


async def _refuse() -> None:
    raise AssertionError("a daemon runs")


@asynccontextmanager
async def editor_at(
    socket_path: Path,
    capabilities: Message = ALL,
    ensure: Callable[[], Awaitable[None]] = _refuse,
) -> AsyncIterator[Editor]:
    """Run an agent and an editor that has initialized it; at the end the editor is closed.

    Args:
        ensure: called where no daemon runs.
    """
    editor = Editor()

    async def run() -> None:
        await talk(socket_path, read=editor.read, write=editor.write, ensure=ensure)

    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await editor.initialize(capabilities)
            yield editor
            editor.end()


# --- the schema ------------------------------------------------------------------------------


@functools.cache
def _schema() -> Message:
    schema: Message = json.loads(SCHEMA.read_text())
    return schema


@functools.cache
def definitions() -> dict[str, str]:
    """Return the name of the parameters of each method."""
    return {
        definition["x-method"]: name
        for name, definition in _schema()["$defs"].items()
        if "x-method" in definition and name.endswith(("Request", "Notification"))
    }


@functools.cache
def _validator(name: str) -> Draft202012Validator:
    root = {key: value for key, value in _schema().items() if key in {"$schema", "$defs"}}
    return Draft202012Validator({**root, "$ref": f"#/$defs/{name}"})


def check(name: str, value: Any) -> None:
    """Assert that a value is as published."""
    faults = [fault.message for fault in _validator(name).iter_errors(value)]
    assert faults == [], f"{name}: {value}"
