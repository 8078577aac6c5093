"""The cookie of a browser's session, and the rule for every request that carries one.

Browsers send a cookie to every port of a host, so its name has the port. They also send it for pages of
every port of the host: ``SameSite`` compares sites, and a site has no port. Such pages are kept out
because each request names its origin, in ``Origin`` or, where browsers send none, in ``Sec-Fetch-Site``,
and a page can set neither header.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from starlette.datastructures import Headers

_NAME: Final = "nousd-session"
_PORT: Final = re.compile(r":(\d{1,5})$")
_SCHEMES: Final = ("http://", "https://")
"""Schemes of the bridge's own origin; https if the user runs a reverse proxy in front of the bridge."""

_ATTRIBUTES: Final = "Path=/; HttpOnly; SameSite=Strict"


def own_origins(headers: Headers) -> tuple[str, ...]:
    """Return the origins that the bridge's own pages have for this client."""
    return tuple(scheme + headers.get("host", "").lower() for scheme in _SCHEMES)


def cookie_values(headers: Headers) -> list[str]:
    """Return the values of all session cookies for this server, whichever page set them.

    A page of another port can add cookies of these names, but cannot remove the real one.
    """
    cookie_name = _own_name(headers)
    name = re.compile(rf"{cookie_name}(-[0-9a-f]{{8}})?")
    pairs = (
        part.strip().partition("=")
        for line in headers.getlist("cookie")
        for part in line.split(";")
    )
    return [value for key, _, value in pairs if name.fullmatch(key)]


def requesting_origins(headers: Headers, *, opens_page: bool) -> tuple[str, ...]:
    """Return the origins that a request with a cookie may come from; empty if its headers name none.

    Args:
        headers: an ``Origin`` in them has already been found to be allowed.
        opens_page: the user opens a page, so a request that comes from no page counts as well.
    """
    origins = headers.getlist("origin")
    if origins:
        return tuple(origins)
    sites = headers.getlist("sec-fetch-site")
    if sites == ["same-origin"] or (opens_page and sites == ["none"]):
        return own_origins(headers)
    return ()


def set_cookie(headers: Headers, origin: str, secret: str, seconds: float) -> str:
    """Return the ``Set-Cookie`` value for a session that a page of the origin opened."""
    return _cookie(headers, origin, secret, int(seconds))


def clear_cookie(headers: Headers, origin: str) -> str:
    """Return the ``Set-Cookie`` value that removes the cookie of a page of the origin."""
    return _cookie(headers, origin, "", 0)


def _cookie(headers: Headers, origin: str, value: str, seconds: int) -> str:
    name = _own_name(headers)
    if origin not in own_origins(headers):
        # A page must not overwrite the cookie of another one, which would log that one out.
        name += "-" + hashlib.sha256(origin.encode()).hexdigest()[:8]
    # If the page is on https, so is the server: otherwise they are different sites for the browser,
    # because a site includes the scheme, and it drops the cookie.
    secure = "; Secure" if origin.startswith("https://") else ""
    return f"{name}={value}; Max-Age={seconds}; {_ATTRIBUTES}{secure}"


def _own_name(headers: Headers) -> str:
    port = _PORT.search(headers.get("host", ""))
    return _NAME if port is None else f"{_NAME}-{port[1]}"
