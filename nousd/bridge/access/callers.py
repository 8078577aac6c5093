"""Known clients, told apart by their User-Agent where they contradict each other.

Each row says what a client needs that the engine's own behaviour does not give it. Who is not here gets
what the engine does.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Caller(NamedTuple):
    """What is particular about a client.

    Args:
        takes_reply_object: ``prompt_sync`` answers it an object with ``reply`` instead of all messages.
        closes_connections: it reuses a connection that it cannot use any more, so none is kept.
    """

    takes_reply_object: bool = False
    closes_connections: bool = False


ENGINE: Final = Caller()

CALLERS: Final[tuple[tuple[str, Caller], ...]] = (
    # tandem-client for Python, async and sync alike: the sync one has a new event loop for each call.
    ("python-httpx/", Caller(takes_reply_object=True, closes_connections=True)),
    # @frumu/tandem-client, on the fetch of Node.
    ("node", Caller(takes_reply_object=True)),
)
"""beginning of a User-Agent -> who that is."""


def caller_of(user_agent: str) -> Caller:
    """Returns who a User-Agent means."""
    for beginning, caller in CALLERS:
        if user_agent.startswith(beginning):
            return caller
    return ENGINE


class ConnectionCloser:
    """The ASGI application around all others: whatever a caller is answered, refusals of the gate
    included, its connection ends with it if that is what it needs.
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
