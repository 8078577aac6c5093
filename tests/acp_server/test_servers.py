"""The MCP servers of an editor: approved by the user, then those of the session, and nobody else's."""

from __future__ import annotations

import json
import math
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from nousd.acp_server import servers as servers_module
from nousd.acp_server.requests import McpServer, NamedValue
from nousd.acp_server.servers import SessionServers, describe_server, parse_servers
from nousd.net.jsonrpc import INVALID_PARAMS, RpcError
from nousd.providers.setup.registry import make_provider
from tests.acp_server.bench import Bench, choosing
from tests.acp_server.editor import Editor, Message, RpcFailed, editor_at
from tests.daemon.mcp_bench import STUB
from tests.harness.daemon import socket_daemon
from tests.tools.test_mcp_http import serving_mcp

KEY = "very-secret-value-0123456789"
SERVER: Message = {
    "name": "My Stub",
    "command": sys.executable,
    "args": ["-S", str(STUB)],
    "env": [{"name": "API_KEY", "value": KEY}],
}
ECHO = '[[tool mcp__session_my-stub__echo {"text":"hi"}]] [[then]] [[text Done.]]'
YES = choosing("start")
NO = choosing("leave_out")


def requests_to_start(editor: Editor) -> list[Message]:
    asked = [message["params"]["toolCall"] for message in editor.of("session/request_permission")]
    return [call for call in asked if call["title"].startswith("Start the MCP server")]


def said_by_us(editor: Editor) -> list[str]:
    return [update["title"] for update in editor.updates("notice")]


async def results(editor: Editor, session_id: str, text: str = ECHO) -> list[str]:
    """Prompt, and return the results of the calls since then."""
    before = len(editor.updates("tool_call_update"))
    assert await editor.prompt(session_id, text) == "end_turn"
    ended = [call for call in editor.updates("tool_call_update")[before:] if "status" in call]
    return [
        block["content"]["text"]
        for call in ended
        if call["status"] in {"completed", "failed"}
        for block in call["content"]
    ]


@pytest.mark.slow
@pytest.mark.behaviour("editors_hand_in_mcp_servers")
async def test_a_server_is_started_once_the_user_agrees_and_the_first_prompt_has_its_tools(
    bench: Bench,
) -> None:
    bench.editor.answers["session/request_permission"] = YES
    session_id = await bench.editor.new(bench.folder, SERVER)
    assert await results(bench.editor, session_id) == ["hi"]
    (asked,) = requests_to_start(bench.editor)
    shown = asked["content"][0]["content"]["text"]
    assert shown == f"{sys.executable} -S {STUB}\nwith the variables API_KEY"
    assert KEY not in json.dumps(bench.editor.seen)
    # It is that session's alone.
    assert "tool_not_found" in (await results(bench.editor, bench.session_id))[0]
    (server,) = (await bench.client.request("list_mcp"))["servers"]
    assert (server["session_id"], server["name"]) == (session_id, "my-stub")


@pytest.mark.behaviour("editors_hand_in_mcp_servers")
@pytest.mark.parametrize("answer", [NO, {"outcome": {"outcome": "cancelled"}}])
async def test_a_server_that_the_user_denies_never_starts_and_the_session_says_so(
    bench: Bench, answer: Message, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers_module, "_READY_SECONDS", math.inf)
    starts = tmp_path / "starts"
    counting = {**SERVER, "args": [*SERVER["args"], "--count", str(starts)]}
    bench.editor.answers["session/request_permission"] = answer
    session_id = await bench.editor.new(bench.folder, counting)
    assert "tool_not_found" in (await results(bench.editor, session_id))[0]
    said = said_by_us(bench.editor)[0]
    assert said == "The MCP server My Stub is left out: it was not approved."
    assert not starts.exists()
    assert (await bench.client.request("list_mcp"))["servers"] == []


@pytest.mark.slow
@pytest.mark.behaviour("editors_hand_in_mcp_servers")
async def test_the_user_is_asked_once_for_each_command_of_a_session(bench: Bench) -> None:
    bench.editor.answers["session/request_permission"] = YES
    session_id = await bench.editor.new(bench.folder, SERVER)
    await results(bench.editor, session_id)
    again: dict[str, Any] = {"sessionId": session_id, "cwd": str(bench.folder)}
    await bench.editor.ask("session/load", **again, mcpServers=[SERVER])
    assert await results(bench.editor, session_id) == ["hi"]
    assert len(requests_to_start(bench.editor)) == 1
    assert len((await bench.client.request("list_mcp"))["servers"]) == 1
    await bench.editor.ask("session/close", sessionId=session_id)
    assert (await bench.client.request("list_mcp"))["servers"] == []
    await bench.editor.ask("session/resume", **again, mcpServers=[SERVER])
    assert await results(bench.editor, session_id) == ["hi"]
    assert len(requests_to_start(bench.editor)) == 1
    changed = {**SERVER, "args": [*SERVER["args"], "--chatty"]}
    await bench.editor.ask("session/resume", **again, mcpServers=[changed])
    await results(bench.editor, session_id)
    assert len(requests_to_start(bench.editor)) == 2
    await bench.editor.ask("session/resume", **again, mcpServers=[])
    assert (await bench.client.request("list_mcp"))["servers"] == []
    other = await bench.editor.new(bench.folder, SERVER)
    await results(bench.editor, other)
    assert len(requests_to_start(bench.editor)) == 3


@pytest.mark.slow
async def test_servers_are_there_again_after_the_daemon_was_restarted(folder: Path) -> None:
    async with trio.open_nursery() as nursery:
        begun, stopped, again = trio.Event(), trio.Event(), trio.Event()

        async def daemons() -> None:
            async with socket_daemon(folder, provider=make_provider("mock")):
                begun.set()
                await stopped.wait()
            async with socket_daemon(folder, provider=make_provider("mock")):
                again.set()
                await trio.sleep_forever()

        nursery.start_soon(daemons)
        await begun.wait()
        async with editor_at(folder / "nous.sock", ensure=again.wait) as editor:
            editor.answers["session/request_permission"] = YES
            session_id = await editor.new(folder / "work", SERVER)
            assert await results(editor, session_id) == ["hi"]
            stopped.set()
            await again.wait()
            assert await results(editor, session_id) == ["hi"]
            assert len(requests_to_start(editor)) == 1
        nursery.cancel_scope.cancel()


async def test_a_server_that_does_not_work_is_reported_and_costs_no_prompt(bench: Bench) -> None:
    bench.editor.answers["session/request_permission"] = YES
    broken = {**SERVER, "command": "/no/such/program", "args": []}
    session_id = await bench.editor.new(bench.folder, broken)
    assert await bench.editor.prompt(session_id, "[[text Fine.]]") == "end_turn"
    (said,) = said_by_us(bench.editor)
    assert said.startswith("The MCP server My Stub does not work: ")


@pytest.mark.slow
async def test_a_server_that_never_answers_keeps_one_prompt_waiting_and_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers_module, "_READY_SECONDS", 0.5)
    bench.editor.answers["session/request_permission"] = YES
    silent = {**SERVER, "args": [*SERVER["args"], "--silent"]}
    session_id = await bench.editor.new(bench.folder, silent)
    assert await bench.editor.prompt(session_id, "[[text First.]]") == "end_turn"
    monkeypatch.setattr(servers_module, "_READY_SECONDS", math.inf)
    assert await bench.editor.prompt(session_id, "[[text Second.]]") == "end_turn"


async def test_a_secret_in_a_command_line_is_refused_before_anyone_is_asked(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers_module, "_READY_SECONDS", math.inf)
    leaking = {**SERVER, "args": ["--api-key=sk-ant-0123456789abcdef"]}
    session_id = await bench.editor.new(bench.folder, leaking)
    assert await bench.editor.prompt(session_id, "[[text Fine.]]") == "end_turn"
    assert requests_to_start(bench.editor) == []
    assert "command holds what looks like a secret" in said_by_us(bench.editor)[0]


async def test_a_prompt_waits_for_the_users_decision_and_a_cancellation_ends_that(
    bench: Bench,
) -> None:
    session_id = await bench.editor.new(bench.folder, SERVER)
    prompts = [await bench.editor.begin_prompt(session_id, "[[hang]]") for _ in range(2)]
    await bench.editor.asked("session/request_permission")
    assert bench.editor.updates("user_message_chunk", "agent_message_chunk") == []
    await bench.editor.notify("session/cancel", sessionId=session_id)
    for prompt in prompts:
        assert (await bench.editor.result(prompt))["stopReason"] == "cancelled"


async def test_a_server_behind_a_url_is_asked_about_and_gets_its_headers(bench: Bench) -> None:
    bench.editor.answers["session/request_permission"] = YES
    async with serving_mcp() as web:
        headers = [{"name": "Authorization", "value": f"Bearer {KEY}"}]
        far = {"type": "http", "name": "far", "url": web.url, "headers": headers}
        session_id = await bench.editor.new(bench.folder, far)
        text = "[[tool mcp__session_far__near {}]] [[then]] [[text Done.]]"
        assert await results(bench.editor, session_id, text) == ["from afar"]
        assert f"Authorization: Bearer {KEY}" in web.heads[0]
        await bench.editor.ask("session/close", sessionId=session_id)
    (asked,) = requests_to_start(bench.editor)
    shown = asked["content"][0]["content"]["text"]
    assert shown == f"{web.url}\nwith the headers Authorization"


@pytest.mark.slow
async def test_an_editor_that_ends_takes_no_server_from_another_one(folder: Path) -> None:
    async with (
        socket_daemon(folder, provider=make_provider("mock")) as daemon,
        editor_at(folder / "nous.sock") as staying,
    ):
        staying.answers["session/request_permission"] = YES
        session_id = await staying.new(folder / "work", SERVER)
        assert await results(staying, session_id) == ["hi"]
        async with editor_at(folder / "nous.sock") as other:
            made = {"sessionId": session_id, "cwd": str(folder / "work"), "mcpServers": [SERVER]}
            await other.ask("session/resume", **made)
            assert await results(other, session_id) == ["hi"]
        assert await results(staying, session_id) == ["hi"]
        client = await daemon.connect()
        assert len((await client.request("list_mcp"))["servers"]) == 1


# --- without a daemon ------------------------------------------------------------------------


def named(name: str, **keys: Any) -> McpServer:
    return McpServer(name=name, command="p", **keys)


def test_each_server_gets_a_name_of_its_own_that_the_daemon_takes() -> None:
    titles = ["Context7", "my server", "My-Server", "", "x" * 40, "x" * 41, "é"]
    names = [server.name for server in parse_servers(map(named, titles))]
    assert names[:4] == ["context7", "my-server", "my-server-2", "server"]
    assert names[4:] == ["x" * 32, "x" * 30 + "-2", "server-2"]


def test_too_many_servers_and_unknown_kinds_are_refused() -> None:
    for servers in ([named("a")] * 17, [named("a", type="sse")]):
        with pytest.raises(RpcError) as caught:
            parse_servers(servers)
        assert caught.value.code == INVALID_PARAMS


def test_the_whole_command_is_shown_and_nothing_in_it_hides_another_part() -> None:
    words = ("two words", "a\nb", "\x1b[2K", "\u202efdp")
    (server,) = parse_servers([named("a", args=words, env=(NamedValue(name="A", value="v\n"),))])
    shown = describe_server(server)
    assert shown == "p 'two words' 'a\\nb' '\\x1b[2K' '\\u202efdp'\nwith the variables A"


async def test_an_invalid_server_is_an_error_of_the_request(bench: Bench) -> None:
    far = {"type": "sse", "name": "far", "url": "http://127.0.0.1:1/", "headers": []}
    with pytest.raises(RpcFailed, match="the MCP server far: sse is not supported"):
        await bench.editor.new(bench.folder, far)


async def test_servers_are_added_again_for_as_long_as_the_editor_is_open(
    autojump_clock: MockClock,
) -> None:
    added: list[tuple[float, int]] = []

    async def send(_: str, payload: dict[str, Any]) -> dict[str, Any]:
        added.append((trio.current_time(), payload["ttl_seconds"]))
        return {}

    async def tell(_: str) -> None:
        raise AssertionError("there is nothing to tell")

    rpc: Any = None
    servers = SessionServers(rpc, send, tell, "sess-1", parse_servers([named("a")]))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(servers.renew)
        await servers.begin()
        await trio.sleep(10_000)
        nursery.cancel_scope.cancel()
    assert added[-1][0] > 9_000
    for (before, seconds), (after, _) in pairwise(added):
        assert after - before < seconds
