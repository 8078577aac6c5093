"""Login and logout of browsers. They cannot send the token with every request, so they get a cookie."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.responses import HTMLResponse, Response

from nousd.bridge.access.cookies import (
    clear_cookie,
    cookie_values,
    own_origins,
    requesting_origins,
    set_cookie,
)
from nousd.bridge.access.gate import LOGIN_PATH, SESSION_PATH, extract_token
from nousd.bridge.replies import (
    BAD_REQUEST,
    FORBIDDEN,
    INTERNAL,
    HttpError,
    empty_reply,
    json_reply,
)
from nousd.bridge.routing.route import Call, Routes
from nousd.errors import ConfigError
from nousd.runtime_paths.tickets import SESSION_SECONDS, Ticket

routes: Final = Routes()

_SCRIPT: Final = """
const say = (words) => { document.getElementById("state").textContent = words };
const link = location.hash.slice(1);
history.replaceState(null, "", location.pathname);
async function login() {
  if (!link) { say("This page needs a link: nousctl http login prints one."); return }
  const reply = await fetch(location.pathname, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ link }),
  });
  const body = await reply.json();
  if (!reply.ok) { say(body.error); return }
  say(`Logged in until ${new Date(body.expiresAtMs).toLocaleString()}.`);
  document.getElementById("next").hidden = false;
}
const start = () => login().catch(() => say("The server did not answer: load the page again."));
if (document.prerendering) document.addEventListener("prerenderingchange", start, { once: true });
else start();
"""
# A page that the browser only prerenders must not use up the link.

_PAGE: Final = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>nousd: log in</title>
<style>:root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; margin: 2rem }}</style>
<p id="state">Logging in.</p>
<p id="next" hidden>The routes are described in <a href="/docs">/docs</a>.</p>
<script>{_SCRIPT}</script>
</html>
"""

_PAGE_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline';"
    f" script-src 'sha256-{b64encode(sha256(_SCRIPT.encode()).digest()).decode()}';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Login(msgspec.Struct, frozen=True):
    """``link`` is the part of a one-time link after ``#``."""

    link: Annotated[str, Meta(max_length=128)]


class BrowserSession(msgspec.Struct, frozen=True, rename="camel"):
    """A session for pages of ``origin``; its id is in the cookie only."""

    origin: str
    expires_at_ms: int


@routes.get(LOGIN_PATH, sends=(), replies={200: bytes}, is_public=True)
async def _login_page(_call: Call) -> Response:
    """The page that a one-time link opens; it logs the browser in."""
    return HTMLResponse(_PAGE, headers=_PAGE_HEADERS)


@routes.post(LOGIN_PATH, sends=(), replies={200: BrowserSession}, body=Login, is_public=True)
async def _log_in(call: Call) -> Response:
    """Exchange a one-time link for a session of the browser, whose id is set as a cookie."""
    origin = _origin(call)
    try:
        session = call.services.credentials.redeem_link(call.body.link, origin)
    except ConfigError as error:
        raise HttpError(INTERNAL, str(error)) from None
    if session is None:
        raise HttpError(FORBIDDEN, "the link is used or too old: nousctl http login prints another")
    return _session_reply(call, *session)


@routes.post(SESSION_PATH, sends=(), replies={200: BrowserSession})
async def _open_session(call: Call) -> Response:
    """Exchange the token for a session of the browser, whose id is set as a cookie."""
    origin = _origin(call)
    try:
        session = call.services.credentials.open_session(
            extract_token(call.request.headers), origin
        )
    except ConfigError as error:
        raise HttpError(INTERNAL, str(error)) from None
    return _session_reply(call, *session)


@routes.delete(SESSION_PATH, sends=(), replies={204: None})
async def _end_session(call: Call) -> Response:
    """End the session of the browser, with its event streams."""
    headers = call.request.headers
    origins = requesting_origins(headers, opens_page=False)
    call.services.credentials.end_sessions(cookie_values(headers), origins)
    origin = call.header("origin") or own_origins(headers)[0]
    return empty_reply(204, {"set-cookie": clear_cookie(headers, origin)})


def _origin(call: Call) -> str:
    origin = call.header("origin")
    if origin is None:
        raise HttpError(
            BAD_REQUEST,
            "a session belongs to the origin of a page: send Origin, as browsers do by themselves",
        )
    return origin


def _session_reply(call: Call, id: str, ticket: Ticket) -> Response:
    cookie = set_cookie(call.request.headers, ticket.origin, id, SESSION_SECONDS)
    body = BrowserSession(ticket.origin, int(ticket.expires_at * 1000))
    return json_reply(body, headers={"set-cookie": cookie, "cache-control": "no-store"})
