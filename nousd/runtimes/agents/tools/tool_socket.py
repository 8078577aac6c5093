"""Serves the offered tools over a socket, to an agent that starts MCP servers itself.

The agent starts a small program of nousd (``_tools_main``), which connects it to the socket. The socket
belongs to one life of the agent and is in a folder that only this user can enter. Each connection begins
with a token, which proves that this life has started the program.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import trio
from msgspec import Raw

from nousd.errors import AgentFailed
from nousd.net.jsonrpc import JsonRpc
from nousd.runtimes.agents.time_limits import TOKEN_SECONDS
from nousd.runtimes.agents.tools._tools_main import TOKEN_VARIABLE
from nousd.runtimes.agents.tools.mcp_tools import SERVER, McpTools
from nousd.tools.fs.temporary_folders import sweep, temporary_folder
from nousd.tools.own_program import own_program
from nousd.tools.process.line_conversation import LineBounds, LineConversation
from nousd.tools.process.supervisor import Conversation

_CONNECTIONS_MAX: Final = 8
"""Maximum number of concurrent connections; programs open one for each session."""

LINE_BOUNDS: Final = LineBounds(bytes_max=16 * 1024 * 1024, values_max=200_000)
_FOLDER: Final = "nousd-tools-"
_PROGRAM: Final = "nousd.runtimes.agents.tools._tools_main"


async def serve_tools(tools: McpTools, *, task_status: trio.TaskStatus[dict[str, Any]]) -> None:
    """Serve tools until cancelled; report the MCP server that the agent must start.

    Raises:
        OSError: the socket cannot be created.
    """
    await trio.to_thread.run_sync(sweep, _FOLDER)
    with temporary_folder(_FOLDER) as folder:
        token = secrets.token_urlsafe()
        with trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            await listener.bind(str(folder / "socket"))
            listener.listen()
            async with trio.open_nursery() as nursery:
                task_status.started(_description(folder / "socket", token))
                limiter = trio.CapacityLimiter(_CONNECTIONS_MAX)
                while True:
                    connection, _ = await listener.accept()
                    client = _Client(trio.SocketStream(connection), tools, token)
                    nursery.start_soon(client.serve, limiter)


def _description(path: Path, token: str) -> dict[str, Any]:
    command, *args = own_program(_PROGRAM)
    return {
        "name": SERVER,
        "command": command,
        "args": [*args, str(path)],
        "env": [{"name": TOKEN_VARIABLE, "value": token}],
    }


class _Client:
    """One connection of an MCP client of the agent. Implements ``Peer``."""

    def __init__(self, stream: trio.SocketStream, tools: McpTools, token: str) -> None:
        self._stream = stream
        self._tools = tools
        self._token = token.encode()
        self._lines = LineConversation(
            "agent's tools",
            Conversation(stream, stream, stream, trio.sleep_forever),
            LINE_BOUNDS,
            AgentFailed,
            str,
        )
        self._is_admitted = trio.Event()
        self._connection = trio.CancelScope()
        self._rpc: JsonRpc | None = None

    async def serve(self, limiter: trio.CapacityLimiter) -> None:
        """Answer requests until the client closes the connection or violates a rule."""
        async with limiter, self._stream, trio.open_nursery() as nursery:
            self._connection = nursery.cancel_scope
            self._rpc = JsonRpc(self._write, self, nursery)
            nursery.start_soon(self._expect_token)
            # A program that is killed before it has read an answer resets its connection.
            with suppress(AgentFailed, trio.BrokenResourceError):
                await self._lines.read(self._take)
            self._connection.cancel()

    async def _expect_token(self) -> None:
        with trio.move_on_after(TOKEN_SECONDS) as limit:
            await self._is_admitted.wait()
        if limit.cancelled_caught:
            self._connection.cancel()

    async def _write(self, line: bytes) -> None:
        # A failure needs no handling: the connection is closed then, which the reader notices.
        with trio.CancelScope(shield=True), suppress(AgentFailed):
            await self._lines.write(line)

    async def _take(self, line: bytes) -> None:
        assert self._rpc is not None
        if self._is_admitted.is_set():
            await self._rpc.take(line)
        elif hmac.compare_digest(line, self._token):
            self._is_admitted.set()
        else:
            raise AgentFailed("it does not know the token")

    async def answer(self, method: str, params: Raw) -> Any:
        """See ``Peer.answer``."""
        return await self._tools.answer(method, params)

    async def take_notification(self, method: str, params: Raw) -> None:
        """See ``Peer.take_notification``."""
        if method == "notifications/cancelled":
            assert self._rpc is not None
            self._rpc.withdraw(params)

    async def take_unknown(self, line: bytes) -> None:
        """See ``Peer.take_unknown``: the line is dropped."""

    def end(self, failure: AgentFailed) -> None:  # noqa: ARG002
        """See ``Peer.end``."""
        self._connection.cancel()
