"""How often one client may start work over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Scope

from nousd.bridge.access.credentials import ADMITTED_BY
from nousd.bridge.access.work_rate import CLIENTS_MAX, WorkRate
from nousd.bridge.replies import HttpError
from nousd.providers.setup.registry import make_provider
from tests.bridge.harness import Bridge, bridge_to, text
from tests.harness.daemon import Daemon, memory_daemon

PAGE = "http://127.0.0.1:8000"
"""A page that may ask."""


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with memory_daemon(workdir=tmp_path, provider=make_provider("mock")) as daemon:
        yield daemon


@pytest.fixture
async def bridge(daemon: Daemon) -> AsyncIterator[Bridge]:
    """A bridge whose clients may start work twice a minute."""
    async with bridge_to(daemon, starts_per_minute=2) as bridge:
        yield bridge


def asking(name: str, credential: str = "t") -> Scope:
    """Return the scope of a request that the gate admitted, from a client that calls itself so."""
    headers = [(b"x-tandem-client-id", name.encode())]
    return {"type": "http", "headers": headers, ADMITTED_BY: credential}


async def prompt(bridge: Bridge, session: str, **headers: str) -> httpx2.Response:
    """Send a prompt, and wait for the end of its run."""
    path = f"/session/{session}/prompt_sync"
    return await bridge.http.post(path, json={"parts": text("hello")}, headers=headers)


async def test_a_client_that_starts_work_too_often_is_told_when_to_try_again(
    bridge: Bridge,
) -> None:
    session = await bridge.new_session()
    for _ in range(2):
        assert (await prompt(bridge, session)).status_code == 200
    refused = await prompt(bridge, session)
    assert refused.status_code == 429
    assert 0 < int(refused.headers["retry-after"]) <= 30
    error = refused.json()
    assert (error["code"], error["retryable"]) == ("RATE_LIMITED", True)
    assert "2 times in a minute" in error["error"]
    assert "http_starts_per_minute" in error["error"]


async def test_a_refused_prompt_starts_nothing_and_reading_goes_on(bridge: Bridge) -> None:
    session = await bridge.new_session()
    for _ in range(3):
        answer = await prompt(bridge, session)
    assert answer.status_code == 429
    messages = await bridge.get(f"/session/{session}/message")
    assert [each["info"]["role"] for each in messages] == ["user", "assistant"] * 2
    assert await bridge.get("/session")
    assert await bridge.new_session()


async def test_each_way_to_start_work_takes_from_the_same_allowance(bridge: Bridge) -> None:
    session = await bridge.new_session()
    first = await bridge.http.post(
        f"/session/{session}/prompt_async", json={"parts": text("hello")}
    )
    assert first.status_code == 204
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "ls"}}
    headers = {"accept": "application/json, text/event-stream"}
    assert (await bridge.http.post("/mcp", json=call, headers=headers)).status_code != 429
    for path in (f"/session/{session}/summarize", f"/session/{session}/prompt_async", "/mcp"):
        body = call if path == "/mcp" else {"parts": text("hello")}
        refused = await bridge.http.post(path, json=body, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (429, "RATE_LIMITED")
    listing = {**call, "method": "tools/list"}
    assert (await bridge.http.post("/mcp", json=listing, headers=headers)).status_code != 429


async def test_clients_of_other_ids_have_allowances_of_their_own(bridge: Bridge) -> None:
    session = await bridge.new_session()
    for name in ("editor", "script"):
        for status in (200, 200, 429):
            answer = await prompt(bridge, session, **{"x-tandem-client-id": name})
            assert answer.status_code == status


async def test_a_cookie_that_admits_nobody_makes_no_other_client(daemon: Daemon) -> None:
    async with bridge_to(daemon, starts_per_minute=1) as bridge:
        session, port = await bridge.new_session(), bridge.base.rpartition(":")[2]
        origins, statuses = {"origin": bridge.base}, []
        for planted in ("", "a", "b"):
            cookie = {"cookie": f"nousd-session-{port}-00000000={planted}"}
            statuses.append((await prompt(bridge, session, **origins, **cookie)).status_code)
        assert statuses == [200, 429, 429]


async def test_a_page_that_logs_in_beside_another_changes_nothing_for_that_one(
    daemon: Daemon,
) -> None:
    async with bridge_to(daemon, starts_per_minute=1, origins=(PAGE,)) as bridge:
        session = await bridge.new_session()
        own, page = [
            (await bridge.http.post("/auth/session", headers={"origin": origin}))
            .headers["set-cookie"]
            .partition(";")[0]
            for origin in (bridge.base, PAGE)
        ]
        async with httpx2.AsyncClient(base_url=bridge.base, trust_env=False) as browser:
            for cookie, origin, status in (
                (own, bridge.base, 200),
                (f"{own}; {page}", bridge.base, 429),
                (f"{own}; {page}", PAGE, 200),
            ):
                headers = {"cookie": cookie, "origin": origin}
                reply = await browser.post(
                    f"/session/{session}/prompt_sync",
                    json={"parts": text("hello")},
                    headers=headers,
                )
                assert reply.status_code == status


async def test_zero_is_no_limit(daemon: Daemon) -> None:
    async with bridge_to(daemon, starts_per_minute=0) as bridge:
        session = await bridge.new_session()
        for _ in range(5):
            assert (await prompt(bridge, session)).status_code == 200


@given(
    st.integers(1, 7),
    st.lists(st.tuples(st.floats(0, 90), st.sampled_from("ab")), max_size=60),
)
def test_an_allowance_holds_a_minute_and_fills_evenly(
    per_minute: int, asked: list[tuple[float, str]]
) -> None:
    now = 0.0
    rate = WorkRate(per_minute, lambda: now)
    left = dict.fromkeys("ab", float(per_minute))
    for pause, client in asked:
        now += pause
        left = {
            name: min(per_minute, rest + pause * per_minute / 60) for name, rest in left.items()
        }
        try:
            rate.take(asking(client))
        except HttpError as error:
            assert left[client] < 1.001
            # After the time that it names there is room.
            seconds = int(error.headers["retry-after"])
            assert (1 - left[client]) * 60 / per_minute <= seconds + 0.001
        else:
            assert left[client] > 0.999
            left[client] -= 1


def test_few_clients_are_remembered_and_the_silent_ones_are_forgotten_first() -> None:
    rate = WorkRate(1, lambda: 0.0)
    busy = asking("busy")
    rate.take(busy)
    for number in range(CLIENTS_MAX - 1):
        rate.take(asking(str(number)))
    with pytest.raises(HttpError):
        rate.take(busy)
    rate.take(asking("one more"))
    rate.take(busy)


def test_a_session_of_a_browser_and_a_token_are_two_clients() -> None:
    rate = WorkRate(1, lambda: 0.0)
    for credential in ("a token", "the id of a session"):
        rate.take(asking("", credential))
        with pytest.raises(HttpError):
            rate.take(asking("", credential))


def test_the_flag_and_the_setting_reach_the_bridge(tmp_path: Path) -> None:
    from nousd.cli.nousd.http_settings import bridge_settings
    from nousd.config.resolve import resolve

    values = {"state_dir": tmp_path, "http": "127.0.0.1:0", "http_starts_per_minute": 7}
    settings = resolve(values, {}, None, asks_models=False).settings
    assert bridge_settings(settings).starts_per_minute == 7
