"""The MCP server at a path of the bridge, behind its gate.

The server is imported at the first request, in a thread, because importing the library takes half a
second. If the library is not installed, the reply says so. This module reads only one thing in MCP's
messages: whether a message calls a tool, which counts against the rate of its client.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

import anyio
import anyio.to_thread
import msgspec
import trio
from anyio.abc import TaskGroup, TaskStatus
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nousd.bridge.access.work_rate import WorkRate
from nousd.bridge.http.bodies import Bodies
from nousd.bridge.replies import NOT_IMPLEMENTED, UNAVAILABLE, HttpError, error_reply
from nousd.client.dial import Where
from nousd.wire.codec.decoding import decode_json

PATH: Final = "/mcp"

_OpenHost = Callable[[Where], AbstractAsyncContextManager[ASGIApp]]


class LazyMcpApp:
    """The ASGI application at ``PATH``.

    Args:
        tasks: the task group in which the MCP server runs.
        closing: ends the MCP server.
        bodies: the memory budget for large request bodies.
        work_rate: the allowances of clients for tool calls.
    """

    def __init__(
        self,
        daemon: Where,
        tasks: TaskGroup,
        closing: trio.Event,
        bodies: Bodies,
        work_rate: WorkRate,
    ) -> None:
        self._daemon = daemon
        self._bodies = bodies
        self._work_rate = work_rate
        self._tasks = tasks
        self._closing = closing
        self._opening = anyio.Lock()
        self._host: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            host = await self._ensure_started()
            request = Request(scope, receive)
            async with self._bodies.read(request) as body:
                content = body
            if _calls_tool(content):
                self._work_rate.take(request.scope)
        except HttpError as error:
            await error_reply(error)(scope, receive, send)
            return
        await host(scope, _replay_body(content, receive), send)

    async def _ensure_started(self) -> ASGIApp:
        """Return the MCP server, started at the first call.

        Raises:
            HttpError: the library is not installed, or the bridge is stopping.
        """
        if importlib.util.find_spec("mcp") is None:
            raise HttpError(NOT_IMPLEMENTED, "this needs the extra mcp: pip install 'nousd[mcp]'")
        async with self._opening:
            if self._host is None and not self._closing.is_set():
                open_host = await anyio.to_thread.run_sync(_load)
                self._host = await self._tasks.start(self._live, open_host)
        if self._host is None or self._closing.is_set():
            raise HttpError(UNAVAILABLE, "the daemon is stopping")
        return self._host

    async def _live(
        self, open_host: _OpenHost, *, task_status: TaskStatus[ASGIApp] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        async with open_host(self._daemon) as host:
            task_status.started(host)
            await self._closing.wait()


def _load() -> _OpenHost:
    from nousd.mcp_server.http import open_host

    return open_host


class _Message(msgspec.Struct):
    method: str = ""


def _calls_tool(body: bytes) -> bool:
    try:
        return decode_json(body, type=_Message).method == "tools/call"
    except msgspec.DecodeError:
        return False  # the library reports the error


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that returns a body already read, then the messages of ``receive``."""
    read: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return read.pop() if read else await receive()

    return replay
