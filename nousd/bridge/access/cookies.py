"""The cookie of a browser's session, and the rule for every request that carries one.

Browsers send a cookie to every port of a host, so its name has the port. They also send it for pages of
every port of the host: ``SameSite`` compares sites, and a site has no port. What keeps such pages out is
that each request names the origin it comes from, in ``Origin`` or, where browsers send none, in
``Sec-Fetch-Site``, and that a page can set neither.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from starlette.datastructures import Headers

_NAME: Final = "nousd-session"
_PORT: Final = re.compile(r":(\d{1,5})$")
_SCHEMES: Final = ("http://", "https://")
"""Schemes of our own origin; https if the user runs a reverse proxy before the bridge."""

_ATTRIBUTES: Final = "Path=/; HttpOnly; SameSite=Strict"


def own_origins(headers: Headers) -> tuple[str, ...]:
    """Return the origins that our own pages have for this client."""
    return tuple(scheme + headers.get("host", "").lower() for scheme in _SCHEMES)


def cookie_values(headers: Headers) -> list[str]:
    """Return the values of all session cookies for this server, from whichever page they are.

    A page of another port can add cookies of these names, but not take the real one away.
    """
    ours = _own_name(headers)
    name = re.compile(rf"{ours}(-[0-9a-f]{{8}})?")
    pairs = (
        part.strip().partition("=")
        for line in headers.getlist("cookie")
        for part in line.split(";")
    )
    return [value for given, _, value in pairs if name.fullmatch(given)]


def requesting_origins(headers: Headers, *, opens_page: bool) -> tuple[str, ...]:
    """Return the origins of which a request with a cookie comes from one; none if it does not say so.

    Args:
        headers: an ``Origin`` among them is an allowed one.
        opens_page: the user opens a page: then a request from no page at all counts as well.
    """
    given = headers.getlist("origin")
    if given:
        return tuple(given)
    sites = headers.getlist("sec-fetch-site")
    if sites == ["same-origin"] or (opens_page and sites == ["none"]):
        return own_origins(headers)
    return ()


def set_cookie(headers: Headers, origin: str, secret: str, seconds: float) -> str:
    """Return the ``Set-Cookie`` of a session that a page of the origin has made."""
    return _cookie(headers, origin, secret, int(seconds))


def clear_cookie(headers: Headers, origin: str) -> str:
    """Return the ``Set-Cookie`` that removes the cookie of a page of the origin."""
    return _cookie(headers, origin, "", 0)


def _cookie(headers: Headers, origin: str, value: str, seconds: int) -> str:
    name = _own_name(headers)
    if origin not in own_origins(headers):
        # So that one page does not log out another one.
        name += "-" + hashlib.sha256(origin.encode()).hexdigest()[:8]
    # A browser takes a cookie of a page on https only for a server on https: sites have a scheme.
    secure = "; Secure" if origin.startswith("https://") else ""
    return f"{name}={value}; Max-Age={seconds}; {_ATTRIBUTES}{secure}"


def _own_name(headers: Headers) -> str:
    port = _PORT.search(headers.get("host", ""))
    return _NAME if port is None else f"{_NAME}-{port[1]}"
