"""Clients with contradictory expectations are each met; all others meet the engine's behaviour."""

from __future__ import annotations

from typing import Any

import pytest

from nousd.bridge.access.callers import CALLERS, ENGINE, caller_of
from tests.bridge.harness import Bridge, text

PYTHON = "python-httpx/0.28.1"
NODE = "node"
OTHERS = ("", "curl/8.5.0", "tandem-tui/0.7", "Mozilla/5.0 (node)")


async def prompt_sync(bridge: Bridge, agent: str) -> Any:
    session = await bridge.new_session()
    path = f"/session/{session}/prompt_sync"
    reply = await bridge.http.post(
        path, json={"parts": text("Hello")}, headers={"user-agent": agent}
    )
    assert reply.status_code == 200
    return reply.json()


@pytest.mark.parametrize("agent", [PYTHON, NODE])
async def test_clients_that_expect_a_reply_receive_one(bridge: Bridge, agent: str) -> None:
    assert await prompt_sync(bridge, agent) == {"reply": "stub-reply"}


@pytest.mark.parametrize("agent", OTHERS)
async def test_other_clients_receive_all_messages(bridge: Bridge, agent: str) -> None:
    assert caller_of(agent) == ENGINE
    assert [message["info"]["role"] for message in await prompt_sync(bridge, agent)] == [
        "user",
        "assistant",
    ]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/session", {}, 200),
        ("/session/nobody", {}, 404),
        ("/nowhere", {}, 404),
        ("/session", {"authorization": "Bearer wrong"}, 401),
        ("/session", {"origin": "https://elsewhere.example"}, 403),
    ],
)
async def test_every_response_closes_the_connection_of_a_client_that_cannot_reuse_it(
    bridge: Bridge, path: str, headers: dict[str, str], status: int
) -> None:
    answer = await bridge.http.get(path, headers={"user-agent": PYTHON, **headers})
    assert (answer.status_code, answer.headers["connection"]) == (status, "close")
    other = await bridge.http.get(path, headers={"user-agent": "curl/8.5.0", **headers})
    assert (other.status_code, other.headers.get("connection")) == (status, None)


def test_no_row_of_the_table_hides_another() -> None:
    beginnings = [beginning for beginning, _ in CALLERS]
    for beginning, caller in CALLERS:
        assert caller_of(beginning) == caller
        assert not any(beginning != b and beginning.startswith(b) for b in beginnings)
