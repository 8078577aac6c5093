"""The MCP endpoint, tested with the client of the official SDK."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal

import httpx2
import mcp_types
import pytest
import trio
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from trio.testing import wait_all_tasks_blocked

from nousd.daemon.policy.permissions import RulePermissions
from nousd.mcp_server import http as mcp_http
from nousd.providers.setup.registry import make_provider
from nousd.wire.limits import HTTP_BODY_BYTES_MAX
from tests.bridge.harness import TOKEN, Bridge, bridge_to
from tests.bridge.raw_http import opened
from tests.harness.daemon import WAIT_SECONDS, Daemon, socket_daemon

pytestmark = pytest.mark.filterwarnings(
    "ignore:Async generator:ResourceWarning"
)  # the SDK's client

MODES: tuple[Literal["auto", "legacy"], ...] = ("auto", "legacy")
"""Both generations of the protocol."""

INITIALIZE: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    },
}
ACCEPT: Final = {"accept": "application/json, text/event-stream"}


@pytest.fixture
async def daemon(short_folder: Path) -> AsyncIterator[Daemon]:
    with trio.fail_after(60):
        async with socket_daemon(short_folder, provider=make_provider("mock")) as daemon:
            yield daemon


@pytest.fixture
async def asking(short_folder: Path) -> AsyncIterator[Bridge]:
    """A bridge in front of a daemon in permission mode ask."""
    permissions = RulePermissions("ask")
    provider = make_provider("mock")
    with trio.fail_after(60):
        async with (
            socket_daemon(short_folder, provider=provider, permissions=permissions) as daemon,
            bridge_to(daemon) as bridge,
        ):
            yield bridge


@asynccontextmanager
async def mcp(
    bridge: Bridge, mode: Literal["auto", "legacy"] = "auto", query: str = "", token: str = TOKEN
) -> AsyncIterator[Client]:
    """Connect an MCP client to the bridge."""
    headers = {"authorization": f"Bearer {token}"}
    timeout = httpx2.Timeout(60)
    async with (
        httpx2.AsyncClient(headers=headers, timeout=timeout, trust_env=False, verify=False) as http,
        Client(
            streamable_http_client(f"{bridge.base}/mcp{query}", http_client=http),
            mode=mode,
            cache=None,
        ) as client,
    ):
        yield client


def text_of(result: mcp_types.CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, mcp_types.TextContent)
    return block.text


async def sessions_of(daemon: Daemon) -> list[dict[str, Any]]:
    client = await daemon.connect()
    listed: list[dict[str, Any]] = (await client.request("list_sessions"))["sessions"]
    return listed


@pytest.mark.behaviour("our_tools_are_served_over_http")
@pytest.mark.parametrize("mode", MODES)
async def test_the_tools_of_the_daemon_are_listed_and_called(
    mode: Literal["auto", "legacy"], bridge: Bridge, daemon: Daemon
) -> None:
    async with mcp(bridge, mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {"read", "write", "bash"} <= tools.keys()
        assert tools["write"].input_schema["required"] == ["path", "content"]
        written = await client.call_tool("write", {"path": "a.txt", "content": "hello"})
        assert not written.is_error
        assert text_of(await client.call_tool("read", {"path": "a.txt"})) == "hello"
        outside = await client.call_tool("read", {"path": "../secret.txt"})
        assert "path_outside_workdir" in text_of(outside)
    wire = await daemon.connect()
    calls = (await wire.request("list_tool_calls"))["calls"]
    assert [call["tool_name"] for call in calls] == ["read", "read", "write"]
    (session,) = await sessions_of(daemon)
    assert (session["name"], session["source"]) == ("mcp", "mcp")


@pytest.mark.slow
@pytest.mark.behaviour("our_tools_are_served_over_http")
async def test_mcp_clients_use_sessions_of_their_own_and_the_active_one_stays(
    bridge: Bridge, daemon: Daemon
) -> None:
    wire = await daemon.connect()
    mine = (await wire.request("new_session", name="mine"))["session_id"]
    played: tuple[tuple[Literal["auto", "legacy"], int], ...] = (
        ("legacy", 2),
        ("legacy", 3),
        ("auto", 4),
        ("auto", 4),
    )
    for mode, count in played:
        async with mcp(bridge, mode) as client:
            await client.list_tools()
            for _ in range(2):
                assert not (await client.call_tool("ls", {})).is_error
        assert len(await sessions_of(daemon)) == count
    assert (await wire.request("get_state"))["session_id"] == mine


@pytest.mark.parametrize("mode", MODES)
async def test_a_deleted_session_is_created_again(
    mode: Literal["auto", "legacy"], bridge: Bridge, daemon: Daemon
) -> None:
    async with mcp(bridge, mode) as client:
        await client.call_tool("ls", {})
        (made,) = await sessions_of(daemon)
        await bridge.http.delete(f"/session/{made['session_id']}")
        assert (await client.list_tools()).tools
        assert not (await client.call_tool("ls", {})).is_error
        (again,) = await sessions_of(daemon)
        assert again["session_id"] != made["session_id"]


@pytest.mark.parametrize("mode", MODES)
async def test_the_url_selects_a_session_and_the_offered_tools(
    mode: Literal["auto", "legacy"], bridge: Bridge, daemon: Daemon
) -> None:
    mine = await bridge.new_session(title="mine")
    async with mcp(bridge, mode, f"?session={mine}&tools=read,ls") as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == {"read", "ls"}
        assert not (await client.call_tool("ls", {})).is_error
        refused = await client.call_tool("write", {"path": "a", "content": "b"})
        assert text_of(refused) == "tool_not_found: write"
    assert len(await sessions_of(daemon)) == 1
    async with mcp(bridge, mode, "?session=ses-none") as client:
        with pytest.raises(MCPError, match="session_not_found"):
            await client.list_tools()
        refused = await client.call_tool("ls", {})
        assert "session_not_found" in text_of(refused)


@pytest.mark.parametrize("mode", MODES)
async def test_without_a_client_to_ask_a_call_is_refused_with_the_reason(
    mode: Literal["auto", "legacy"], asking: Bridge
) -> None:
    async with mcp(asking, mode) as client:
        refused = await client.call_tool("write", {"path": "a.txt", "content": "x"})
    assert refused.is_error
    assert refused.structured_content is not None
    assert refused.structured_content["policy_snapshot"]["permission_mode"] == "ask"
    assert "no connected client can be asked" in text_of(refused)


@pytest.mark.parametrize("mode", MODES)
async def test_a_reader_of_the_bridge_approves_an_mcp_call(
    mode: Literal["auto", "legacy"], asking: Bridge, short_folder: Path
) -> None:
    async with asking.events() as frames, trio.open_nursery() as nursery:

        async def say_yes() -> None:
            (*_, asked) = await frames.until("permission.asked")
            (request,) = (await asking.get("/permission"))["requests"]
            assert request["id"] == asked.properties["requestID"]
            await asking.post(f"/permission/{request['id']}/reply", reply="once")

        nursery.start_soon(say_yes)
        async with mcp(asking, mode) as client:
            written = await client.call_tool("write", {"path": "a.txt", "content": "x"})
    assert not written.is_error
    assert (short_folder / "work" / "a.txt").read_text() == "x"


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
async def test_ten_concurrent_calls_have_their_own_results(
    mode: Literal["auto", "legacy"], bridge: Bridge
) -> None:
    said: dict[int, str] = {}
    async with mcp(bridge, mode) as client:

        async def call(number: int) -> None:
            result = await client.call_tool("bash", {"command": f"echo {number}"})
            said[number] = text_of(result)

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(call, number)
    assert said == {number: str(number) for number in range(10)}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
async def test_calls_beyond_the_limit_wait_their_turn(
    mode: Literal["auto", "legacy"], bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_http, "CALLS_MAX", 2)
    ended = []
    async with mcp(bridge, mode) as client:

        async def call() -> None:
            ended.append((await client.call_tool("ls", {})).is_error)

        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(call)
    assert ended == [False] * 12


GOING: Final = {"command": "echo going; sleep 600"}


@pytest.mark.slow(keep=1)
@pytest.mark.behaviour("mcp_clients_cancel_calls")
@pytest.mark.parametrize("mode", MODES)
async def test_a_call_that_its_client_cancels_is_stopped(
    mode: Literal["auto", "legacy"], bridge: Bridge, daemon: Daemon
) -> None:
    events = await daemon.watch(types="all")
    async with mcp(bridge, mode) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "bash", GOING)
            await events.until("tool_call_output")
            nursery.cancel_scope.cancel()
        completed = await events.until("tool_call_completed")
        assert completed["payload"]["stop_reason"] == "aborted"
        assert text_of(await client.call_tool("bash", {"command": "echo on"})) == "on"


def rpc(method: str, version: str, **params: Any) -> dict[str, Any]:
    """Return a request to the endpoint as arguments of ``httpx2``."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    message = {"jsonrpc": "2.0", "id": 7, "method": method, "params": {**params, "_meta": meta}}
    headers = {**ACCEPT, "mcp-protocol-version": version, "mcp-method": method}
    return {"json": message, "headers": headers}


async def open_mcp_session(bridge: Bridge) -> str:
    """Open a session of the protocol and return its id."""
    reply = await bridge.http.post("/mcp", json=INITIALIZE, headers=ACCEPT)
    assert reply.status_code == 200, reply.text
    id = str(reply.headers["mcp-session-id"])
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    headers = {**ACCEPT, "mcp-session-id": id}
    accepted = await bridge.http.post("/mcp", json=ready, headers=headers)
    assert accepted.status_code == 202
    return id


@pytest.mark.behaviour("mcp_clients_cancel_calls")
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_a_call_whose_client_disconnects_is_stopped(
    version: str, bridge: Bridge, daemon: Daemon
) -> None:
    events = await daemon.watch(types="all")
    request = rpc("tools/call", version, name="bash", arguments=GOING)
    request["headers"]["mcp-name"] = "bash"
    if version == "2025-11-25":
        request["headers"]["mcp-session-id"] = await open_mcp_session(bridge)
        async with opened(bridge.http.build_request("POST", "/mcp", **request)) as reply:
            assert reply.status == 200
            await events.until("tool_call_output")
    else:
        async with trio.open_nursery() as nursery:
            # The response has a status only when it has content.
            nursery.start_soon(hang, bridge.http.build_request("POST", "/mcp", **request))
            await events.until("tool_call_output")
            nursery.cancel_scope.cancel()
    completed = await events.until("tool_call_completed")
    assert completed["payload"]["stop_reason"] == "aborted"


async def hang(request: httpx2.Request) -> None:
    async with opened(request):
        await trio.sleep_forever()


async def test_deleting_an_mcp_session_stops_its_calls(bridge: Bridge, daemon: Daemon) -> None:
    events = await daemon.watch(types="all")
    id = await open_mcp_session(bridge)
    request = rpc("tools/call", "2025-11-25", name="bash", arguments=GOING)
    request["headers"]["mcp-session-id"] = id
    async with opened(bridge.http.build_request("POST", "/mcp", **request)):
        await events.until("tool_call_output")
        deleted = await bridge.http.delete("/mcp", headers={"mcp-session-id": id})
        assert deleted.status_code == 200
        completed = await events.until("tool_call_completed")
    assert completed["payload"]["stop_reason"] == "aborted"
    gone = await bridge.http.post("/mcp", **request)
    assert gone.status_code == 404


async def test_mcp_sessions_beyond_the_limit_are_refused_and_create_no_daemon_session(
    bridge: Bridge, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_http, "SESSIONS_MAX", 3)
    ids = [await open_mcp_session(bridge) for _ in range(3)]
    refused = await bridge.http.post("/mcp", json=INITIALIZE, headers=ACCEPT)
    assert refused.status_code == 503
    await bridge.http.delete("/mcp", headers={"mcp-session-id": ids[0]})
    await open_mcp_session(bridge)
    assert await sessions_of(daemon) == []


async def test_an_idle_mcp_session_ends(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_http, "IDLE_SECONDS", 0.01)
    # Only its first request: on a busy machine it may end before a second one.
    begun = await bridge.http.post("/mcp", json=INITIALIZE, headers=ACCEPT)
    id = begun.headers["mcp-session-id"]
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    headers = {**ACCEPT, "mcp-session-id": id}
    with trio.fail_after(WAIT_SECONDS):
        while (await bridge.http.post("/mcp", json=ping, headers=headers)).status_code != 404:
            await wait_all_tasks_blocked(0.02)


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"authorization": "Bearer wrong"}, 401, "AUTH_REQUIRED"),
        ({"authorization": ""}, 401, "AUTH_REQUIRED"),
        ({"origin": "https://evil.example"}, 403, "FORBIDDEN"),
        ({"host": "evil.example"}, 403, "FORBIDDEN"),
    ],
)
async def test_the_mcp_endpoint_is_behind_the_access_checks(
    headers: dict[str, str], status: int, code: str, bridge: Bridge
) -> None:
    for method in ("GET", "POST", "DELETE"):
        given = {**ACCEPT, **headers}
        reply = await bridge.http.request(method, "/mcp", headers=given, json=INITIALIZE)
        assert (reply.status_code, reply.json()["code"]) == (status, code)


async def test_an_allowed_origin_and_host_are_accepted_with_any_port(daemon: Daemon) -> None:
    page = "https://app.example"
    async with bridge_to(daemon, origins=(page,), hosts=("box.example",)) as bridge:
        headers = {**ACCEPT, "origin": page, "host": "box.example:4000"}
        reply = await bridge.http.post("/mcp", json=INITIALIZE, headers=headers)
        assert reply.status_code == 200


async def test_a_body_that_is_too_long_is_refused(bridge: Bridge) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(HTTP_BODY_BYTES_MAX // 2**20 + 1):
            yield b"x" * 2**20

    headers = {**ACCEPT, "content-type": "application/json"}
    reply = await bridge.http.post("/mcp", content=pieces(), headers=headers)
    assert (reply.status_code, reply.json()["code"]) == (413, "BODY_TOO_LARGE")


async def test_without_the_extra_the_missing_package_is_named(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    reply = await bridge.http.post("/mcp", json=INITIALIZE, headers=ACCEPT)
    assert reply.status_code == 501
    assert reply.json()["code"] == "NOT_IMPLEMENTED"
    assert "nousd[mcp]" in reply.json()["error"]


@pytest.mark.parametrize("mode", MODES)
async def test_a_daemon_that_stops_ends_open_streams_and_calls(
    mode: Literal["auto", "legacy"], short_folder: Path
) -> None:
    async with socket_daemon(short_folder, provider=make_provider("mock")) as daemon:
        events = await daemon.watch(types="all")
        told = []
        with trio.fail_after(WAIT_SECONDS):
            async with trio.open_nursery() as nursery, bridge_to(daemon) as bridge:

                async def call() -> None:
                    async with mcp(bridge, mode) as client:
                        told.append(text_of(await client.call_tool("bash", GOING)))

                nursery.start_soon(call)
                await events.until("tool_call_output")
            completed = await events.until("tool_call_completed")
        assert completed["payload"]["stop_reason"] == "aborted"
        assert told == ["the call was stopped"]
