"""CORS headers for pages of the origins in the settings; pages of other origins get none."""

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
"""The time for which a browser may cache the reply."""


def is_preflight(scope: Scope, headers: Headers) -> bool:
    """True for a browser's CORS preflight, which carries no token."""
    return scope["method"] == "OPTIONS" and "access-control-request-method" in headers


def preflight_reply(headers: Headers) -> Response:
    """Return the reply to a preflight of an allowed origin."""
    allowed = {
        "access-control-allow-methods": _METHODS,
        "access-control-allow-headers": _HEADERS,
        "access-control-max-age": _PREFLIGHT_SECONDS,
    }
    if headers.get("access-control-request-private-network") == "true":
        allowed["access-control-allow-private-network"] = "true"
    return Response(None, 204, allowed)


def allow_origin(origin: str, send: Send) -> Send:
    """Return a ``send`` that lets pages of the origin read every reply, also refusals and streams."""

    async def send_allowed(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["access-control-allow-origin"] = origin
            headers["access-control-expose-headers"] = _EXPOSED
            headers.add_vary_header("origin")
        await send(message)

    return send_allowed
