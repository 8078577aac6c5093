"""The MCP server over streamable HTTP, as an ASGI application.

Access control is left to the application around it: this module knows no tokens and checks no hosts.
Each MCP session has its own session of the daemon; clients without an MCP session share one.
``?session=`` names another session, ``?tools=`` the served tools.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import anyio
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from nousd.client.dial import Where
from nousd.mcp_server.calls import CallSession, DaemonTools
from nousd.mcp_server.host import Context, make_server
from nousd.wire.limits import HTTP_BODY_BYTES_MAX

SESSIONS_MAX: Final = 256
"""Maximum open MCP sessions; beyond it, new ones are refused."""

IDLE_SECONDS: Final = 15 * 60.0
"""How long an MCP session may be without an active request; an open stream counts as one."""

CALLS_MAX: Final = 24
"""Maximum active requests about tools at the daemon; others wait. It is smaller than the number of calls
that the daemon accepts, so that other clients have room."""

_STOP_SECONDS: Final = 0.5
"""How long active requests may take to be answered once the application ends."""

_SESSION_HEADER: Final = "mcp-session-id"
_SCOPE: Final = "nousd.cancel_scope"
"""The scope key that holds the cancel scope of the request's call."""


@asynccontextmanager
async def open_host(daemon: Where) -> AsyncIterator[ASGIApp]:
    """Yield the application. The end of the block ends all calls and streams."""
    host = _Host(daemon)
    async with host.manager.run():
        try:
            yield host
        finally:
            await host.stop()


class _Client:
    """An MCP session, with the daemon's session of its calls.

    ``requests`` is the number of active requests, ``last_seen`` the time of the last request's end.
    """

    def __init__(self) -> None:
        self.session = CallSession()
        self.requests = 0
        self.last_seen = anyio.current_time()


class _Clients:
    """The MCP sessions by id; "" is for all clients without one.

    A session is forgotten when the library ends it: after ``IDLE_SECONDS`` without a request.
    """

    def __init__(self) -> None:
        self._clients: dict[str, _Client] = {}

    @contextmanager
    def track_request(self, id: str) -> Iterator[None]:
        """Count a request as active until the block ends."""
        self._forget_idle()
        client = self._clients.setdefault(id, _Client())
        client.requests += 1
        try:
            yield
        finally:
            client.requests -= 1
            client.last_seen = anyio.current_time()
            if client.session.known is None and not client.requests:
                # Invented ids must not take up memory.
                self._clients.pop(id, None)

    def session(self, id: str) -> CallSession:
        """Return the daemon's session for the calls of an MCP session."""
        return self._clients.setdefault(id, _Client()).session

    def forget(self, id: str) -> None:
        """Forget an MCP session that has ended."""
        if id:
            self._clients.pop(id, None)

    def _forget_idle(self) -> None:
        cutoff = anyio.current_time() - IDLE_SECONDS
        idle = [
            id
            for id, client in self._clients.items()
            if id and not client.requests and client.last_seen < cutoff
        ]
        for id in idle:
            del self._clients[id]


class _Host:
    """The ASGI application. The library's ``manager`` must be running."""

    def __init__(self, daemon: Where) -> None:
        self._daemon = daemon
        self._clients = _Clients()
        self._answering: set[anyio.CancelScope] = set()
        self._answered = anyio.Event()
        self._limiter = anyio.CapacityLimiter(CALLS_MAX)
        self.manager = StreamableHTTPSessionManager(
            make_server(self._tools_for),
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            max_request_body_size=HTTP_BODY_BYTES_MAX,
            session_idle_timeout=IDLE_SECONDS,
            max_sessions=SESSIONS_MAX,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        id = _session_of(scope)
        with self._clients.track_request(id):
            if scope["method"] == "POST":
                await self._answer(scope, receive, send)
            else:
                await self.manager.handle_request(scope, receive, send)
        if scope["method"] == "DELETE":
            self._clients.forget(id)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that may be a call. A client cannot fetch the result later, so the call is
        stopped when the client disconnects.
        """
        scope[_SCOPE] = call = anyio.CancelScope()
        self._answering.add(call)
        try:
            await self.manager.handle_request(scope, receive, send)
        finally:
            call.cancel()
            self._answering.discard(call)
            self._answered.set()

    async def stop(self) -> None:
        """Stop all calls, and wait for ``_STOP_SECONDS`` at most until their answers are written."""
        for call in self._answering:
            call.cancel()
        with anyio.move_on_after(_STOP_SECONDS, shield=True):
            while self._answering:
                self._answered = anyio.Event()
                await self._answered.wait()

    @asynccontextmanager
    async def _tools_for(self, context: Context) -> AsyncIterator[DaemonTools]:
        request = context.request
        assert isinstance(request, Request)
        named, tools = (request.query_params.get(key) for key in ("session", "tools"))
        session = CallSession(named) if named else self._clients.session(_session_of(request.scope))
        with request.scope[_SCOPE]:
            async with self._limiter:
                names = tools.split(",") if tools else None
                yield DaemonTools(self._daemon, session=session, names=names)


def _session_of(scope: Scope) -> str:
    return Headers(scope=scope).get(_SESSION_HEADER, "")
