"""Clients with expectations that contradict each other, recognised by their User-Agent.

Each row states how the bridge's behaviour for a client differs from the engine's. A client that is not
listed gets the engine's behaviour.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Caller(NamedTuple):
    """The special behaviour that a client needs.

    Args:
        takes_reply_object: ``prompt_sync`` replies with a ``reply`` object instead of all messages.
        closes_connections: every connection is closed after its reply, because the client would reuse
            one that no longer works for it.
    """

    takes_reply_object: bool = False
    closes_connections: bool = False


ENGINE: Final = Caller()

CALLERS: Final[tuple[tuple[str, Caller], ...]] = (
    # tandem-client for Python, async and sync: the sync one runs each call in a new event loop.
    ("python-httpx/", Caller(takes_reply_object=True, closes_connections=True)),
    # @frumu/tandem-client, which uses the fetch of Node.
    ("node", Caller(takes_reply_object=True)),
)
"""prefix of a User-Agent -> the client."""


def caller_of(user_agent: str) -> Caller:
    """Return the client with that User-Agent."""
    for beginning, caller in CALLERS:
        if user_agent.startswith(beginning):
            return caller
    return ENGINE


class ConnectionCloser:
    """The ASGI application that closes connections after each reply, refusals of the gate included, for
    the clients that need it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_closed = (
            scope["type"] == "http"
            and caller_of(Headers(scope=scope).get("user-agent", "")).closes_connections
        )

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        await self._app(scope, receive, closing if is_closed else send)
