"""What pages of another origin may do once it is named in the settings, and nothing before that."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import Message, Scope, Send

_METHODS: Final = "GET, HEAD, POST, PATCH, PUT, DELETE"
_HEADERS: Final = (
    "accept, authorization, content-type, idempotency-key, last-event-id, x-agent-token,"
    " x-tandem-agent-id, x-tandem-client-id, x-tandem-correlation-id, x-tandem-idempotency-key,"
    " x-tandem-request-source, x-tandem-token"
)
_EXPOSED: Final = "x-tandem-run-id"
_PREFLIGHT_SECONDS: Final = "600"
"""How long a browser may go on without asking again."""


def is_preflight(scope: Scope, headers: Headers) -> bool:
    """Returns whether a browser asks what a page may do. It does so without a token."""
    return scope["method"] == "OPTIONS" and "access-control-request-method" in headers


def preflight_reply(headers: Headers) -> Response:
    """Returns what the pages of an allowed origin may do."""
    told = {
        "access-control-allow-methods": _METHODS,
        "access-control-allow-headers": _HEADERS,
        "access-control-max-age": _PREFLIGHT_SECONDS,
    }
    if headers.get("access-control-request-private-network") == "true":
        told["access-control-allow-private-network"] = "true"
    return Response(None, 204, told)


def allow_origin(origin: str, send: Send) -> Send:
    """Returns a ``send`` whose answers, refusals and streams included, pages of the origin may read."""

    async def shown(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["access-control-allow-origin"] = origin
            headers["access-control-expose-headers"] = _EXPOSED
            headers.add_vary_header("origin")
        await send(message)

    return shown
