"""The MCP host behind the bridge's gate.

It is brought in with the first request for it, in a thread, because reading that library takes half a
second; who has not installed it is told so. What is said there is not known here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

import anyio
import anyio.to_thread
import trio
from anyio.abc import TaskGroup, TaskStatus
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nousd.bridge.http.bodies import Bodies
from nousd.bridge.replies import NOT_IMPLEMENTED, UNAVAILABLE, HttpError, error_reply
from nousd.client.dial import Where

PATH: Final = "/mcp"

_OpenHost = Callable[[Where], AbstractAsyncContextManager[ASGIApp]]


class LazyMcpApp:
    """The ASGI application at ``PATH``.

    Args:
        tasks: where the host lives.
        closing: its end.
        bodies: the room for large ones.
    """

    def __init__(
        self, daemon: Where, tasks: TaskGroup, closing: trio.Event, bodies: Bodies
    ) -> None:
        self._daemon = daemon
        self._bodies = bodies
        self._tasks = tasks
        self._closing = closing
        self._opening = anyio.Lock()
        self._host: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            host = await self._opened()
            async with self._bodies.read(Request(scope, receive)) as body:
                whole = body
        except HttpError as error:
            await error_reply(error)(scope, receive, send)
            return
        await host(scope, _replay_body(whole, receive), send)

    async def _opened(self) -> ASGIApp:
        """Returns the host. Raises HttpError if there is none, or none any more."""
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


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Returns what gives a body that was read already, and then whatever comes."""
    read: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return read.pop() if read else await receive()

    return replay
