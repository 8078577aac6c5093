"""The protocols of the peers, lines of JSON both ways: what is sent, and what is read from theirs."""

from __future__ import annotations

import itertools
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import trio

from .client import READ_BYTES, Arrival


class PeerFailed(Exception):
    """A peer ended, refused, or said something else than expected; the text says what."""


class Line(NamedTuple):
    """A line without its end, and when its last byte was here (``time.monotonic_ns``)."""

    at: int
    text: bytes


class Lines:
    """The input and the output of a program, as lines."""

    def __init__(self, stdin: trio.abc.SendStream, stdout: trio.abc.ReceiveStream) -> None:
        self._stdin = stdin
        self._stdout = stdout
        self._rest = b""

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send a message.

        Raises:
            PeerFailed: the program has closed its input.
        """
        try:
            await self._stdin.send_all(json.dumps(message).encode() + b"\n")
        except trio.BrokenResourceError:
            raise PeerFailed("closed its input") from None

    async def until(self, is_last: Callable[[bytes], bool]) -> list[Line]:
        """Return the next lines up to one; those that came together with it stay for later.

        Raises:
            PeerFailed: the output has ended before.
        """
        taken: list[Line] = []
        while True:
            at = time.monotonic_ns()
            *lines, self._rest = self._rest.split(b"\n")
            for place, line in enumerate(lines, 1):
                taken.append(Line(at, line))
                if is_last(line):
                    self._rest = b"\n".join([*lines[place:], self._rest])
                    return taken
            chunk = await self._stdout.receive_some(READ_BYTES)
            if not chunk:
                raise PeerFailed("ended")
            self._rest += chunk

    async def answer(self, is_last: Callable[[bytes], bool]) -> dict[str, Any]:
        """Return the next message of that kind.

        Raises:
            PeerFailed: the output has ended before.
        """
        lines = await self.until(is_last)
        return dict(json.loads(lines[-1].text))


class Turn(NamedTuple):
    """A prompt: when it was sent (``time.monotonic_ns``), and the deltas of its answers."""

    sent: int
    deltas: Sequence[Arrival]
    ended: int

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(delta.delta for delta in self.deltas)


class Speech(ABC):
    """A protocol, spoken with one process that has one session at a time."""

    def __init__(self, lines: Lines, work: Path) -> None:
        self._lines = lines
        self._work = str(work)

    async def prompt(self, text: str) -> Turn:
        """Prompt the session and return what came of it, when that has ended.

        Raises:
            PeerFailed: the program has ended, or the model was not asked.
        """
        message = self._prompt(text)
        sent = time.monotonic_ns()
        await self._lines.send(message)
        lines = await self._lines.until(self.is_end)
        deltas = [
            Arrival(line.at, delta)
            for line in lines
            if (delta := self.delta(line.text)) is not None
        ]
        if not deltas:
            raise PeerFailed(f"answered nothing, but {lines[-1].text[:500].decode()}")
        return Turn(sent, deltas, lines[-1].at)

    @abstractmethod
    async def begin(self) -> None:
        """Make the process ready for a session."""

    @abstractmethod
    async def new_session(self) -> None:
        """Begin a session, where the protocol has sessions; the first prompts may be in that of the
        process.
        """

    @abstractmethod
    def _prompt(self, text: str) -> dict[str, Any]: ...

    @abstractmethod
    def is_end(self, line: bytes) -> bool:
        """True of the line that ends what came of a prompt."""

    @abstractmethod
    def delta(self, line: bytes) -> str | None:
        """Return the text of a line that is a delta of the answer."""


class StreamJson(Speech):
    """That of Claude Code: a process is a session."""

    async def begin(self) -> None:
        """Make the process ready for a session."""
        request = {"subtype": "initialize", "hooks": None}
        await self._lines.send({"type": "control_request", "request_id": "1", "request": request})
        await self._lines.until(lambda line: b'"control_response"' in line)

    async def new_session(self) -> None:
        """Nothing: the process has its one session."""

    def _prompt(self, text: str) -> dict[str, Any]:
        message = {"role": "user", "content": [{"type": "text", "text": text}]}
        return {"type": "user", "message": message, "parent_tool_use_id": None, "session_id": ""}

    def is_end(self, line: bytes) -> bool:
        """True of the line that ends what came of a prompt."""
        return b'"type":"result"' in line

    def delta(self, line: bytes) -> str | None:
        """Return the text of a line that is a delta of the answer."""
        if b'"text_delta"' not in line:
            return None
        return str(json.loads(line)["event"]["delta"]["text"])


class _Rpc(Speech):
    """JSON-RPC: ``_session`` is the id of the session."""

    def __init__(self, lines: Lines, work: Path) -> None:
        super().__init__(lines, work)
        self._ids = itertools.count(1)
        self._session = ""

    def _request(self, method: str, **params: Any) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}

    async def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        request = self._request(method, **params)
        await self._lines.send(request)
        answer = await self._lines.answer(lambda line: _answers(line, request["id"]))
        if "result" not in answer:
            raise PeerFailed(f"refused {method}: {answer.get('error')}")
        return dict(answer["result"] or {})


def _answers(line: bytes, id_: int) -> bool:
    message = json.loads(line) if line.startswith(b"{") else {}
    return message.get("id") == id_ and "method" not in message


class AppServer(_Rpc):
    """That of ``codex app-server``."""

    sandbox = "danger-full-access"

    async def begin(self) -> None:
        """Make the process ready for a session."""
        client = {"name": "nousd-bench", "title": "bench", "version": "1"}
        await self._ask("initialize", clientInfo=client, capabilities={"experimentalApi": True})
        await self._lines.send({"method": "initialized"})

    async def new_session(self) -> None:
        """Begin a session."""
        started = await self._ask(
            "thread/start", cwd=self._work, approvalPolicy="never", sandbox=self.sandbox
        )
        self._session = started["thread"]["id"]

    def _prompt(self, text: str) -> dict[str, Any]:
        parts = [{"type": "text", "text": text, "text_elements": []}]
        return self._request("turn/start", threadId=self._session, input=parts)

    def is_end(self, line: bytes) -> bool:
        """True of the line that ends what came of a prompt."""
        return b'"method":"turn/completed"' in line

    def delta(self, line: bytes) -> str | None:
        """Return the text of a line that is a delta of the answer."""
        if b'"method":"item/agentMessage/delta"' not in line:
            return None
        return str(json.loads(line)["params"]["delta"])


class SandboxedAppServer(AppServer):
    """The same, with codex' own sandbox."""

    sandbox = "workspace-write"


class Acp(_Rpc):
    """The Agent Client Protocol."""

    auth: str | None = None
    """The way to log in, where that is asked for."""

    async def begin(self) -> None:
        """Make the process ready for a session."""
        await self._ask("initialize", protocolVersion=1, clientCapabilities={})
        if self.auth is not None:
            await self._ask("authenticate", methodId=self.auth)

    async def new_session(self) -> None:
        """Begin a session."""
        started = await self._ask("session/new", cwd=self._work, mcpServers=[])
        self._session = started["sessionId"]

    def _prompt(self, text: str) -> dict[str, Any]:
        parts = [{"type": "text", "text": text}]
        return self._request("session/prompt", sessionId=self._session, prompt=parts)

    def is_end(self, line: bytes) -> bool:
        """True of the line that ends what came of a prompt."""
        return b'"stopReason"' in line or b'"error":{"code"' in line

    def delta(self, line: bytes) -> str | None:
        """Return the text of a line that is a delta of the answer."""
        if b'"agent_message_chunk"' not in line:
            return None
        return str(json.loads(line)["params"]["update"]["content"]["text"])


class GeminiAcp(Acp):
    """The same, as Gemini CLI wants it."""

    auth = "gemini-api-key"


class PiRpc(Speech):
    """That of pi: the process has a session from its start, and takes up another one when asked."""

    async def begin(self) -> None:
        """Make the process ready for a session."""
        await self._ask("get_state")

    async def new_session(self) -> None:
        """Begin a session."""
        await self._ask("new_session")

    async def _ask(self, type: str) -> None:
        await self._lines.send({"id": type, "type": type})
        answer = await self._lines.answer(lambda line: b'"type":"response"' in line)
        if not answer["success"]:
            raise PeerFailed(f"refused {type}: {answer.get('error')}")

    def _prompt(self, text: str) -> dict[str, Any]:
        return {"id": "prompt", "type": "prompt", "message": text}

    def is_end(self, line: bytes) -> bool:
        """True of the line that ends what came of a prompt."""
        return line.startswith(b'{"type":"agent_end"')

    def delta(self, line: bytes) -> str | None:
        """Return the text of a line that is a delta of the answer."""
        if not (line.startswith(b'{"type":"message_update"') and b'"text_delta"' in line):
            return None
        return str(json.loads(line)["assistantMessageEvent"]["delta"])
