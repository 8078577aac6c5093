"""The gate before every route: it checks Host, Origin, token or session, and the size of the body.

Only health and login need neither a token nor a session. No page of another site can read a reply: CORS
is off unless origins are configured, a foreign ``Origin`` is refused, and so is a foreign ``Host``, as
in DNS rebinding. A request with a session cookie has to name its origin, because the browser also sends
that cookie for pages of other local ports.

Pages of the origins in the settings get CORS headers; pages of other origins get none.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nousd.bridge.access.cookies import cookie_values, own_origins, requesting_origins
from nousd.bridge.access.credentials import ADMITTED_BY, CONNECTION, Credentials
from nousd.bridge.replies import (
    BAD_REQUEST,
    BODY_TOO_LARGE,
    FORBIDDEN,
    UNAUTHORIZED,
    HttpError,
    error_reply,
)
from nousd.wire.limits import HTTP_BODY_BYTES_MAX

LOGIN_PATH: Final = "/auth/login"
SESSION_PATH: Final = "/auth/session"

_READING: Final = ("GET", "HEAD")
_PAGE: Final = frozenset((method, LOGIN_PATH) for method in _READING)
"""The login page. It shows no data, so a page of any origin may link to it."""

_PUBLIC: Final = frozenset(
    {*_PAGE, ("POST", LOGIN_PATH), *((method, "/global/health") for method in _READING)}
)
_FOR_TOKENS: Final = frozenset({("POST", SESSION_PATH)})
"""Routes that accept only the token: a session must not renew itself."""

LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})

_HOST: Final = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::\d{1,5})?")


class AccessPolicy(NamedTuple):
    """The rules of the gate.

    Args:
        credentials: decides which tokens and browser sessions are admitted.
        hosts: accepted names in ``Host``, lower case, without a port; None for any (a Unix socket).
        origins: accepted origins, as browsers write them in ``Origin``.
    """

    credentials: Credentials
    hosts: frozenset[str] | None = LOCAL_HOSTS
    origins: frozenset[str] = frozenset()


class Gate:
    """The ASGI application around the routes."""

    def __init__(self, app: ASGIApp, policy: AccessPolicy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        is_named = origin in self._policy.origins
        tracker = _ReplyTracker(allow_origin(origin, send) if is_named else send)
        try:
            self._check_host(headers)
            self._check_origin(headers)
            _check_repeated(headers)
            if is_named and is_preflight(scope, headers):
                await preflight_reply(headers)(scope, receive, tracker)
                return
            self._check_caller(scope, headers)
            _check_length(headers)
        except HttpError as error:
            await error_reply(error)(scope, receive, tracker)
            return
        await self._app(scope, _BoundedBody(receive, tracker), tracker)

    def _check_host(self, headers: Headers) -> None:
        if self._policy.hosts is None:
            return
        hosts = headers.getlist("host")
        if len(hosts) != 1:
            raise HttpError(BAD_REQUEST, "exactly one Host header")
        host = _HOST.fullmatch(hosts[0].lower())
        if host is None or host["name"] not in self._policy.hosts:
            raise HttpError(FORBIDDEN, "this Host is not served here")

    def _check_origin(self, headers: Headers) -> None:
        origins = headers.getlist("origin")
        own = own_origins(headers)
        if not all(origin in self._policy.origins or origin in own for origin in origins):
            raise HttpError(FORBIDDEN, "this Origin may not ask here")
        if len(origins) > 1:
            raise HttpError(BAD_REQUEST, "at most one Origin header")

    def _check_caller(self, scope: Scope, headers: Headers) -> None:
        target = (scope["method"], scope["path"])
        ids = [] if target in _PAGE else cookie_values(headers)
        origins = requesting_origins(headers, opens_page=_opens_page(scope, headers))
        if ids and not origins:
            raise HttpError(FORBIDDEN, _UNKNOWN_PAGE)
        if target in _PUBLIC:
            return
        token, credentials = extract_token(headers), self._policy.credentials
        connection = scope["extensions"].get(CONNECTION)
        if token or not ids or target in _FOR_TOKENS:
            admitted_by = token if credentials.admits(token, connection) else None
        else:
            admitted_by = credentials.admits_session(ids, origins, connection)
        if admitted_by is None:
            raise HttpError(
                UNAUTHORIZED,
                _NOT_LOGGED_IN if _opens_page(scope, headers) else _UNKNOWN_CALLER,
                headers={"www-authenticate": "Bearer"},
            )
        scope[ADMITTED_BY] = admitted_by


class _ReplyTracker:
    """A ``send`` that records whether the response has begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def __call__(self, message: Message) -> None:
        self.has_begun = True
        await self._send(message)


class _BoundedBody:
    """A ``receive`` that stops at the limit for bodies.

    Beyond the limit the request is refused, or, if its reply has begun, treated as disconnected.
    """

    def __init__(self, receive: Receive, tracker: _ReplyTracker) -> None:
        self._receive = receive
        self._tracker = tracker
        self._bytes_left = HTTP_BODY_BYTES_MAX

    async def __call__(self) -> Message:
        message = await self._receive()
        self._bytes_left -= len(message.get("body", b""))
        if self._bytes_left >= 0:
            return message
        if self._tracker.has_begun:
            return {"type": "http.disconnect"}
        raise _too_large()


def _check_length(headers: Headers) -> None:
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > HTTP_BODY_BYTES_MAX:
        raise _too_large()


def _too_large() -> HttpError:
    return HttpError(
        BODY_TOO_LARGE,
        f"the body has more than {HTTP_BODY_BYTES_MAX} bytes",
        headers={"connection": "close"},
    )


_TOKEN_HEADERS: Final = ("x-agent-token", "x-tandem-token", "authorization")


def _check_repeated(headers: Headers) -> None:
    """Raise HttpError if a token header is repeated: a proxy may have checked the other value."""
    for name in _TOKEN_HEADERS:
        if len(headers.getlist(name)) > 1:
            raise HttpError(BAD_REQUEST, f"at most one {name} header")


def extract_token(headers: Headers) -> str:
    """Return the token of a request; "" if it has none."""
    return headers.get("x-agent-token") or headers.get("x-tandem-token") or _bearer(headers)


def _opens_page(scope: Scope, headers: Headers) -> bool:
    """Return whether the browser shows the reply as a page, so that no other page can read it."""
    mode, destination = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
    return scope["method"] in _READING and (mode, destination) == ("navigate", "document")


def _bearer(headers: Headers) -> str:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


_UNKNOWN_CALLER: Final = "Unauthorized: missing or invalid API token"

_NOT_LOGGED_IN: Final = (
    "Unauthorized: run `nousctl http login` on this machine, and open the link that it prints"
)

_UNKNOWN_PAGE: Final = (
    "a request with the cookie of a session needs an allowed Origin, or Sec-Fetch-Site: same-origin;"
    " browsers send them by themselves on HTTPS and to 127.0.0.1 and localhost;"
    " who came by a link of another page has to enter the address"
)
_METHODS: Final = "GET, HEAD, POST, PATCH, PUT, DELETE"
_HEADERS: Final = (
    "accept, authorization, content-type, idempotency-key, last-event-id, x-agent-token,"
    " x-tandem-agent-id, x-tandem-client-id, x-tandem-correlation-id, x-tandem-idempotency-key,"
    " x-tandem-request-source, x-tandem-token,"
    " mcp-session-id, mcp-protocol-version"
)
_EXPOSED: Final = "retry-after, x-tandem-run-id, mcp-session-id"
_PREFLIGHT_SECONDS: Final = "600"
"""The time for which a browser may cache the reply."""


def is_preflight(scope: Scope, headers: Headers) -> bool:
    """Return whether a request is a CORS preflight, which carries no token."""
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
    """Return a ``send`` that lets pages of the origin read all replies, including refusals."""

    async def send_allowed(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["access-control-allow-origin"] = origin
            headers["access-control-allow-credentials"] = "true"
            headers["access-control-expose-headers"] = _EXPOSED
            headers.add_vary_header("origin")
        await send(message)

    return send_allowed
