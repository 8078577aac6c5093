"""Sessions of browsers: a cookie for the token, and what a request with it has to bring."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
import trio

from nousd.runtime_paths.tickets import SESSIONS_MAX, hash_token, login_links
from tests.bridge.harness import TOKEN, bridge_to
from tests.harness.daemon import WAIT_SECONDS, Daemon

PAGE = "http://127.0.0.1:8000"
"""A page that may ask."""

OTHER = "http://127.0.0.1:8001"
"""A page of another local port, that may not."""

SAME_ORIGIN = {"sec-fetch-site": "same-origin"}
OPENED = {"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


class Switch:
    """The token of the server, which a test replaces."""

    token: str | None = TOKEN


class Site(NamedTuple):
    """A server and the base of its addresses; nothing is sent by itself."""

    http: httpx2.AsyncClient
    base: str
    state_dir: Path
    switch: Switch

    @property
    def port(self) -> str:
        return self.base.rpartition(":")[2]

    async def ask(self, method: str, path: str, **given: Any) -> httpx2.Response:
        self.http.cookies.clear()
        return await self.http.request(method, path, **given)

    async def log_in(self, origin: str | None = None) -> dict[str, str]:
        """Return the header with the cookie of a new session."""
        reply = await self.ask(
            "POST", "/auth/session", headers={**bearer(), "origin": origin or self.base}
        )
        assert reply.status_code == 200, reply.text
        return {"cookie": reply.headers["set-cookie"].partition(";")[0]}

    async def status(self, path: str = "/session", method: str = "GET", **headers: str) -> int:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return (await self.ask(method, path, headers=named)).status_code


def bearer(token: str = TOKEN) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
async def site(daemon: Daemon, tmp_path: Path) -> AsyncIterator[Site]:
    async with site_of(daemon, tmp_path) as site:
        yield site


@asynccontextmanager
async def site_of(daemon: Daemon, state_dir: Path) -> AsyncIterator[Site]:
    switch = Switch()
    async with (
        bridge_to(
            daemon, origins=(PAGE,), state_dir=state_dir, current_token=lambda: switch.token
        ) as bridge,
        httpx2.AsyncClient(
            base_url=bridge.base, timeout=WAIT_SECONDS, trust_env=False, verify=False
        ) as http,
    ):
        yield Site(http, bridge.base, state_dir, switch)


# --- the cookie --------------------------------------------------------------------------------


@pytest.mark.behaviour("http_browsers_have_sessions")
async def test_the_token_is_exchanged_for_a_cookie_that_names_the_port_and_holds_no_token(
    site: Site,
) -> None:
    reply = await site.ask("POST", "/auth/session", headers={**bearer(), "origin": site.base})
    cookie = reply.headers["set-cookie"]
    assert re.fullmatch(
        rf"nousd-session-{site.port}=[\w-]{{43}}; Max-Age=43200; Path=/; HttpOnly; SameSite=Strict",
        cookie,
    )
    assert TOKEN not in cookie
    assert reply.headers["cache-control"] == "no-store"
    assert set(reply.json()) == {"origin", "expiresAtMs"}
    assert reply.json()["origin"] == site.base
    other = await site.ask("POST", "/auth/session", headers={**bearer(), "origin": site.base})
    assert other.headers["set-cookie"] != cookie


async def test_the_cookie_is_secure_on_https(site: Site) -> None:
    origin = site.base.replace("http:", "https:")
    reply = await site.ask("POST", "/auth/session", headers={**bearer(), "origin": origin})
    assert reply.headers["set-cookie"].endswith("; HttpOnly; SameSite=Strict; Secure")
    cookie = {"cookie": reply.headers["set-cookie"].partition(";")[0]}
    assert await site.status(**cookie, **SAME_ORIGIN) == 200
    assert await site.status(**cookie, origin=origin) == 200
    assert await site.status(**cookie, origin=site.base) == 401, "another scheme, another origin"


async def test_a_cookie_without_a_port_in_the_host_has_none_in_its_name(site: Site) -> None:
    headers = {**bearer(), "origin": "https://localhost", "host": "localhost"}
    reply = await site.ask("POST", "/auth/session", headers=headers)
    assert reply.headers["set-cookie"].startswith("nousd-session=")
    cookie = reply.headers["set-cookie"].partition(";")[0]
    assert await site.status(cookie=cookie, host="localhost", **SAME_ORIGIN) == 200


async def test_pages_of_two_origins_do_not_log_each_other_out(site: Site) -> None:
    own, page = await site.log_in(), await site.log_in(PAGE)
    assert own["cookie"].partition("=")[0] != page["cookie"].partition("=")[0]
    both = f"{own['cookie']}; theme=dark; {page['cookie']}"
    assert await site.status(cookie=both, origin=PAGE) == 200
    assert await site.status(cookie=both, **SAME_ORIGIN) == 200
    assert await site.status("/auth/session", "DELETE", cookie=both, origin=PAGE) == 204
    assert await site.status(cookie=both, origin=PAGE) == 401
    assert await site.status(cookie=both, **SAME_ORIGIN) == 200
    assert await site.status("/auth/session", "DELETE", cookie=both, **SAME_ORIGIN) == 204
    assert await site.status(cookie=both, **SAME_ORIGIN) == 401


async def test_a_session_needs_a_token_and_an_origin(site: Site) -> None:
    for headers, status in (
        ({"origin": site.base}, 401),
        (bearer(), 400),
        ({**bearer(), "origin": OTHER}, 403),
        ({**bearer(), "origin": "null"}, 403),
        ({**bearer("wrong"), "origin": site.base}, 401),
    ):
        reply = await site.ask("POST", "/auth/session", headers=headers)
        assert reply.status_code == status
        assert "set-cookie" not in reply.headers


async def test_a_session_does_not_renew_itself(site: Site) -> None:
    cookie = await site.log_in()
    assert await site.status("/auth/session", "POST", **cookie, origin=site.base) == 401


async def test_a_session_that_cannot_be_stored_is_refused_with_the_reason(site: Site) -> None:
    (site.state_dir / "http-sessions").write_text("in the way")
    reply = await site.ask("POST", "/auth/session", headers={**bearer(), "origin": site.base})
    assert reply.status_code == 500
    assert "is not a directory" in reply.json()["error"]


# --- every request with a cookie ---------------------------------------------------------------


@pytest.mark.slow(keep=6)
@pytest.mark.behaviour("http_cookies_need_an_origin")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "OWN"}, 200),
        ({"origin": "OWN", "sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({}, 403),
        ({"origin": OTHER}, 403),
        ({"origin": OTHER, "sec-fetch-site": "same-origin"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": PAGE}, 401),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-origin, same-site"}, 403),
        ({"sec-fetch-site": ""}, 403),
        ({"sec-fetch-site": "none"}, 403),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}, 403),
        ({**OPENED, "sec-fetch-dest": "iframe"}, 403),
        ({**OPENED, "sec-fetch-site": "same-site"}, 403),
        (OPENED, 200),
        ({"referer": "OWN/"}, 403),
    ],
)
async def test_every_request_with_a_cookie_needs_an_allowed_origin_or_the_browsers_word_for_it(
    site: Site, headers: dict[str, str], status: int
) -> None:
    sent = {name: value.replace("OWN", site.base) for name, value in headers.items()}
    cookie = await site.log_in()
    for path in ("/session", "/docs", "/openapi.json", "/metrics", "/permission"):
        reply = await site.ask("GET", path, headers={**cookie, **sent})
        assert reply.status_code == status
    if status != 200:
        assert await site.status("/auth/session", "DELETE", **cookie, **sent) == status
    # Only reading a page may come from no page at all.
    expected = 403 if headers == OPENED else status
    assert await site.status("/session", "POST", **cookie, **sent) == expected


async def test_who_opens_a_page_without_a_login_is_told_how_to_log_in(site: Site) -> None:
    stale = {"cookie": f"nousd-session-{site.port}={'x' * 43}"}
    for path in ("/docs", "/openapi.json", "/"):
        for headers in (OPENED, {**OPENED, **stale}):
            reply = await site.ask("GET", path, headers=headers)
            assert reply.status_code == 401
            assert "nousctl http login" in reply.json()["error"]
    reply = await site.ask("GET", "/session")
    assert reply.json()["error"] == "Unauthorized: missing or invalid API token"


async def test_who_follows_a_link_of_another_page_is_told_to_enter_the_address(site: Site) -> None:
    cookie = await site.log_in()
    followed = {**OPENED, **cookie, "sec-fetch-site": "same-site"}
    reply = await site.ask("GET", "/docs", headers=followed)
    assert reply.status_code == 403
    assert "enter the address" in reply.json()["error"]


async def test_a_token_or_a_public_route_does_not_spare_a_cookie_its_origin(site: Site) -> None:
    cookie = await site.log_in()
    assert await site.status(**cookie, **bearer()) == 403
    assert await site.status(**cookie, **bearer(), **SAME_ORIGIN) == 200
    assert await site.status("/global/health", **cookie) == 403
    assert await site.status("/global/health", **cookie, **SAME_ORIGIN) == 200
    assert await site.status("/auth/login", **cookie, sec_fetch_site="same-site") == 200


async def test_two_ways_to_say_where_a_request_comes_from_are_none(site: Site) -> None:
    cookie = await site.log_in()
    headers = [*cookie.items(), *[("sec-fetch-site", "same-origin")] * 2]
    assert (await site.http.get("/session", headers=headers)).status_code == 403


async def test_a_session_is_of_the_origin_that_made_it(site: Site) -> None:
    page = await site.log_in(PAGE)
    assert await site.status(**page, origin=PAGE) == 200
    assert await site.status(**page, origin=site.base) == 401
    assert await site.status(**page, **SAME_ORIGIN) == 401
    assert await site.status(**page, **OPENED) == 401


async def test_a_cookie_that_another_page_planted_beside_the_real_one_changes_nothing(
    site: Site,
) -> None:
    cookie = (await site.log_in())["cookie"]
    name = cookie.partition("=")[0]
    for planted in (f"{name}=junk; {cookie}", f"{name}={'x' * 43}; {name}; {cookie}"):
        assert await site.status(cookie=planted, **SAME_ORIGIN) == 200
    assert await site.status(cookie=f"{name}={'x' * 43}", **SAME_ORIGIN) == 401


async def test_a_cookie_of_another_port_is_not_ours(site: Site) -> None:
    cookie = (await site.log_in())["cookie"].replace(site.port, "1")
    assert await site.status(cookie=cookie, **SAME_ORIGIN) == 401
    assert await site.status(cookie=cookie, **bearer()) == 200


async def test_an_allowed_page_may_send_its_cookie_and_read_the_reply(site: Site) -> None:
    cookie = await site.log_in(PAGE)
    asked = {
        "origin": PAGE,
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type",
    }
    preflight = await site.ask("OPTIONS", "/session", headers=asked)
    reply = await site.ask("POST", "/session", headers={**cookie, "origin": PAGE}, json={})
    assert (preflight.status_code, reply.status_code) == (204, 200)
    for allowed in (preflight, reply):
        assert allowed.headers["access-control-allow-origin"] == PAGE
        assert allowed.headers["access-control-allow-credentials"] == "true"
        assert allowed.headers["vary"] == "origin"
    may_send = preflight.headers["access-control-allow-headers"].split(", ")
    assert {"content-type", "mcp-session-id", "mcp-protocol-version"} <= set(may_send)
    refused = await site.ask("POST", "/session", headers={**cookie, "origin": OTHER}, json={})
    assert refused.status_code == 403
    assert not [name for name in refused.headers if name.startswith("access-control")]


# --- the end of a session ----------------------------------------------------------------------


async def stream_until_cut(site: Site, cookie: dict[str, str], end: Any) -> None:
    """Open an event stream, call ``end``, and wait for the end of the stream."""
    with trio.fail_after(WAIT_SECONDS):
        headers = {**cookie, **SAME_ORIGIN}
        async with site.http.stream("GET", "/event", headers=headers) as reply:
            assert reply.status_code == 200
            chunks = reply.aiter_bytes()
            await anext(chunks)
            await end()
            with suppress(httpx2.RemoteProtocolError):
                async for _ in chunks:
                    pass


@pytest.mark.slow
async def test_delete_ends_a_session_and_its_streams(site: Site) -> None:
    cookie, other = await site.log_in(), await site.log_in()

    async def log_out() -> None:
        headers = {**cookie, "origin": site.base}
        reply = await site.ask("DELETE", "/auth/session", headers=headers)
        assert (reply.status_code, reply.content) == (204, b"")
        assert reply.headers["set-cookie"].startswith(f"nousd-session-{site.port}=; Max-Age=0; ")

    await stream_until_cut(site, cookie, log_out)
    assert await site.status(**cookie, **SAME_ORIGIN) == 401
    assert await site.status(**other, **SAME_ORIGIN) == 200


@pytest.mark.slow
async def test_a_new_token_voids_sessions_and_their_streams(site: Site) -> None:
    cookie = await site.log_in()

    async def rotate() -> None:
        site.switch.token = "another-token-that-only-tests-know"

    await stream_until_cut(site, cookie, rotate)
    assert await site.status(**cookie, **SAME_ORIGIN) == 401
    site.switch.token = TOKEN
    assert await site.status(**cookie, **SAME_ORIGIN) == 401, "void for good"
    site.switch.token = None
    assert await site.status(**cookie, **SAME_ORIGIN) == 401


@pytest.mark.slow
async def test_sessions_are_bounded_and_survive_a_restart(daemon: Daemon, tmp_path: Path) -> None:
    async with site_of(daemon, tmp_path) as site:
        cookies = [await site.log_in(PAGE) for _ in range(SESSIONS_MAX + 1)]
    async with site_of(daemon, tmp_path) as site:
        statuses = []
        for cookie in cookies:
            value = cookie["cookie"].partition("=")[2]
            again = f"nousd-session-{site.port}={value}"
            statuses.append(await site.status(cookie=again, origin=PAGE))
    assert sorted(statuses) == [200] * SESSIONS_MAX + [401]


# --- one-time links ----------------------------------------------------------------------------


async def log_in_by(site: Site, link: str, **headers: str) -> httpx2.Response:
    return await site.ask("POST", "/auth/login", headers=headers, json={"link": link})


@pytest.mark.behaviour("http_links_work_once")
async def test_a_link_logs_a_browser_in_once(site: Site) -> None:
    link, _ = login_links(site.state_dir).issue(hash_token(TOKEN))
    for method in ("GET", "HEAD"):
        page = await site.ask(method, "/auth/login")
        assert page.status_code == 200
        assert page.headers["referrer-policy"] == "no-referrer"
        assert page.headers["cache-control"] == "no-store"
        assert "script-src 'sha256-" in page.headers["content-security-policy"]
    reply = await log_in_by(site, link, origin=site.base)
    assert reply.status_code == 200
    cookie = {"cookie": reply.headers["set-cookie"].partition(";")[0]}
    assert link not in reply.text + cookie["cookie"]
    assert await site.status(**cookie, **SAME_ORIGIN) == 200
    again = await log_in_by(site, link, origin=site.base)
    assert again.status_code == 403
    assert "nousctl http login prints another" in again.json()["error"]
    assert link not in again.text


async def test_a_link_of_an_old_token_or_without_an_origin_is_void(site: Site) -> None:
    links = login_links(site.state_dir)
    old, _ = links.issue(hash_token("an older token"))
    new, _ = links.issue(hash_token(TOKEN))
    assert (await log_in_by(site, old, origin=site.base)).status_code == 403
    assert (await log_in_by(site, "", origin=site.base)).status_code == 403
    assert (await log_in_by(site, "x" * 129, origin=site.base)).status_code == 422
    assert (await log_in_by(site, new)).status_code == 400
    assert (await log_in_by(site, new, origin=OTHER)).status_code == 403
    site.switch.token = None
    assert (await log_in_by(site, new, origin=PAGE)).status_code == 403
    site.switch.token = TOKEN
    assert (await log_in_by(site, new, origin=PAGE)).status_code == 200
