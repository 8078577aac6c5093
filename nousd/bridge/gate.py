"""Who may come in: token, Host, Origin, and how much may be sent.

It stands before every route. Only ``GET /global/health`` needs no token. Browsers are told nothing that
they could hand to another page: CORS is off unless origins are named, a foreign ``Origin`` is refused,
and so is a ``Host`` that is not ours, which is how a name that was bound anew would look.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final, NamedTuple

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nousd.bridge.replies import (
    BAD_REQUEST,
    BODY_TOO_LARGE,
    FORBIDDEN,
    UNAUTHORIZED,
    HttpError,
    error_reply,
)
from nousd.wire.limits import HTTP_BODY_BYTES_MAX

_PUBLIC: Final = frozenset({("GET", "/global/health"), ("HEAD", "/global/health")})
LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Safety(NamedTuple):
    """What the gate asks for.

    Args:
        token: what a client has to know.
        hosts: names in ``Host`` that are ours, without a port; None: any (a Unix socket).
        origins: pages that may ask, as browsers write them in ``Origin``.
    """

    token: str
    hosts: frozenset[str] | None = LOCAL_HOSTS
    origins: frozenset[str] = frozenset()


class Gate:
    """The ASGI application around the routes."""

    def __init__(self, app: ASGIApp, safety: Safety) -> None:
        self._app = app
        self._safety = safety

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            self._admit(scope, Headers(scope=scope))
        except HttpError as error:
            await error_reply(error)(scope, receive, send)
            return
        await self._app(scope, _Bounded(receive), send)

    def _admit(self, scope: Scope, headers: Headers) -> None:
        self._check_host(headers)
        self._check_origin(headers)
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > HTTP_BODY_BYTES_MAX:
            raise _too_large()
        if (scope["method"], scope["path"]) not in _PUBLIC:
            self._check_token(headers)

    def _check_host(self, headers: Headers) -> None:
        if self._safety.hosts is None:
            return
        given = headers.getlist("host")
        if len(given) != 1:
            raise HttpError(BAD_REQUEST, "exactly one Host header")
        if _name(given[0]) not in self._safety.hosts:
            raise HttpError(FORBIDDEN, "this Host is not served here")

    def _check_origin(self, headers: Headers) -> None:
        origin = headers.get("origin")
        if origin is None or origin in self._safety.origins:
            return
        if origin.partition("://")[2] != headers.get("host"):
            raise HttpError(FORBIDDEN, "this Origin may not ask here")

    def _check_token(self, headers: Mapping[str, str]) -> None:
        given = headers.get("x-agent-token") or headers.get("x-tandem-token") or _bearer(headers)
        if not hmac.compare_digest(given.encode(), self._safety.token.encode()):
            raise HttpError(UNAUTHORIZED, "Unauthorized: missing or invalid API token")


class _Bounded:
    """A request's body, of which no more than the bound is taken."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._left = HTTP_BODY_BYTES_MAX

    async def __call__(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise _too_large()
        return message


def _too_large() -> HttpError:
    return HttpError(
        BODY_TOO_LARGE,
        f"the body has more than {HTTP_BODY_BYTES_MAX} bytes",
        headers={"connection": "close"},
    )


def _bearer(headers: Mapping[str, str]) -> str:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def _name(host: str) -> str:
    """Returns a Host's name without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()
