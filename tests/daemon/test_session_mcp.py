"""MCP servers that belong to one session: who finds their tools, what is stored, and when they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from nousd.daemon.mcp import session_servers
from nousd.daemon.policy.permissions import RulePermissions
from nousd.machine.policy.rules import rules_in
from nousd.providers.interface import Provider
from nousd.providers.setup.registry import make_provider
from nousd.redaction.redactor import Redactor
from nousd.tools.mcp import server as server_module
from tests.daemon.mcp_bench import COMMAND, SPEC, Kit, daemon_with_mcp, result_of
from tests.daemon.scripted import ScriptedTool, gives
from tests.harness.daemon import Event, memory_daemon, of_type
from tests.harness.stub_model import StubModel, text_reply, tool_reply
from tests.tools.test_mcp_http import serving_mcp

ECHO = "mcp__session_stub__echo"
KEY = "very-secret-value-0123456789"


async def new_session(kit: Kit) -> str:
    created = await kit.client.request("new_session", activate=False)
    return str(created["session_id"])


async def add(kit: Kit, session_id: str, **keys: Any) -> None:
    given = {"name": "stub", "command": list(COMMAND), **keys}
    await kit.client.request("add_mcp", session_id=session_id, **given)


async def call(kit: Kit, session_id: str, tool: str, **args: Any) -> list[Event]:
    """Let the model call a tool in a session; return the events of the run."""
    kit.stub.script(tool_reply((tool, args)), text_reply("done"))
    await kit.client.request("prompt", session_id=session_id, text="go", wait=False)
    return await kit.events.run()


def offered(run: list[Event]) -> list[str]:
    """Return the tools of servers that a run's first model call was offered."""
    first = of_type(run, "model_input")[0]
    return [name for name in first["tools"] if name.startswith("mcp__")]


async def tools_of(kit: Kit, session_id: str) -> list[str]:
    listed = await kit.client.request("list_tools", session_id=session_id)
    return [tool["name"] for tool in listed["tools"] if tool["name"].startswith("mcp__")]


async def servers_of(kit: Kit, session_id: str | None) -> list[dict[str, Any]]:
    servers = (await kit.client.request("list_mcp", session_id=session_id))["servers"]
    assert isinstance(servers, list)
    return servers


def files_with(text: str, folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if text.encode() in path.read_bytes()]


@pytest.mark.slow
@pytest.mark.behaviour("mcp_servers_belong_to_sessions")
async def test_only_the_models_of_the_session_are_offered_its_tools_and_may_call_them(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    async with daemon_with_mcp(short_folder, provider, stub, mcp_servers=(SPEC,)) as kit:
        await kit.until("ready")
        own, other = await new_session(kit), await new_session(kit)
        await add(kit, own, tools=["echo"])
        await kit.until("ready", session_id=own, name="stub", tools=[ECHO])
        run = await call(kit, own, ECHO, text="mine")
        assert result_of(run)["result"] == "mine"
        # A server of the daemon that has the same name stays what it was.
        assert {ECHO, "mcp__stub__echo"} <= set(offered(run))
        run = await call(kit, other, ECHO, text="theirs")
        assert not result_of(run)["executed"]
        assert of_type(run, "warning")[0]["code"] == "tool_not_found"
        assert ECHO not in offered(run)
        assert ECHO in await tools_of(kit, own)
        assert ECHO not in await tools_of(kit, other)
        refused = await kit.client.refusal("prompt", session_id=other, text="x", tools=[ECHO])
        assert refused["message"] == f"tool_not_registered: {ECHO}"


@pytest.mark.slow
@pytest.mark.behaviour("mcp_servers_belong_to_sessions")
async def test_sessions_have_servers_of_one_name_and_a_branch_has_none(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    async with daemon_with_mcp(short_folder, provider, stub) as kit:
        first, second = await new_session(kit), await new_session(kit)
        for session_id, level in ((first, "one"), (second, "two")):
            await add(kit, session_id, env={"LEVEL": level})
            await kit.until("ready", session_id=session_id)
        for session_id, level in ((first, "one"), (second, "two")):
            run = await call(kit, session_id, "mcp__session_stub__env")
            assert json.loads(result_of(run)["result"])["LEVEL"] == level
        branch = await kit.client.request("branch_session", session_id=first)
        assert await tools_of(kit, branch["session_id"]) == []
        assert len(await servers_of(kit, None)) == 2
        assert [server["session_id"] for server in await servers_of(kit, first)] == [first]


@pytest.mark.behaviour("mcp_tools_go_through_the_gate")
async def test_rules_for_a_server_of_the_daemon_do_not_match_that_of_a_session(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    rules = rules_in("test", allow=("mcp__stub__*",), deny=("mcp__session_stub__pid",), ask=())
    permissions = RulePermissions("auto", rules)
    async with daemon_with_mcp(short_folder, provider, stub, permissions=permissions) as kit:
        session_id = await new_session(kit)
        await add(kit, session_id)
        await kit.until("ready")
        run = await call(kit, session_id, ECHO, text="x")
        assert not result_of(run)["executed"]  # nobody can be asked
        run = await call(kit, session_id, "mcp__session_stub__pid")
        (denied,) = of_type(run, "tool_call_denied")
        assert "mcp__session_stub__pid" in denied["reason"]


@pytest.mark.behaviour("mcp_servers_of_sessions_are_not_stored")
async def test_values_of_variables_are_literal_and_nowhere_but_in_the_program(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    async with daemon_with_mcp(short_folder, provider, stub, secrets=Redactor()) as kit:
        session_id = await new_session(kit)
        await add(kit, session_id, env={"API_KEY": KEY, "PLAIN": "${HOME}"})
        await kit.until("ready")
        run = await call(kit, session_id, "mcp__session_stub__env")
        told = json.loads(result_of(run)["result"])
        assert told["API_KEY"] == "[redacted]"
        assert told["PLAIN"] == "${HOME}"
        shown = json.dumps([await servers_of(kit, session_id), [*kit.statuses.seen, *run]])
        assert KEY not in shown
        assert "PLAIN" not in json.dumps(await servers_of(kit, session_id))
    assert files_with(KEY, short_folder) == []


@pytest.mark.behaviour("mcp_servers_of_sessions_are_approved_once")
async def test_a_session_remembers_over_a_restart_what_was_added_to_it(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    async with daemon_with_mcp(short_folder, provider, stub) as kit:
        session_id = await new_session(kit)
        given = {"session_id": session_id, "name": "stub", "command": list(COMMAND)}
        refused = await kit.client.refusal("add_mcp", if_approved=True, **given)
        assert refused["message"] == "mcp_not_approved"
        assert await servers_of(kit, session_id) == []
        await kit.client.request("add_mcp", env={"A": "1"}, **given)
    async with daemon_with_mcp(short_folder, provider, stub) as kit:
        assert await servers_of(kit, session_id) == []  # it ended with the daemon
        await kit.client.request("add_mcp", if_approved=True, env={"A": "2"}, **given)
        await kit.until("ready", session_id=session_id)
        for differs in ({"env": {"B": "1"}}, {"command": [*COMMAND, "x"]}, {"cwd": "/"}):
            other = {**given, "env": {"A": "1"}, **differs}
            refused = await kit.client.refusal("add_mcp", if_approved=True, **other)
            assert refused["message"] == "mcp_not_approved"
        elsewhere = {**given, "session_id": await new_session(kit), "env": {"A": "1"}}
        refused = await kit.client.refusal("add_mcp", if_approved=True, **elsewhere)
        assert refused["message"] == "mcp_not_approved"


@pytest.mark.slow
async def test_the_same_server_again_goes_on_and_a_changed_one_replaces_it(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    async with daemon_with_mcp(short_folder, provider, stub) as kit:
        session_id = await new_session(kit)
        pids: list[str] = []
        for level in ("one", "one", "two"):
            await add(kit, session_id, env={"LEVEL": level})
            if level != "one" or not pids:
                await kit.until("ready", session_id=session_id)
            run = await call(kit, session_id, "mcp__session_stub__pid")
            pids.append(result_of(run)["result"])
        assert pids[0] == pids[1] != pids[2]
        assert len(await servers_of(kit, session_id)) == 1
        await kit.client.request("restart_mcp", session_id=session_id, name="stub")
        await kit.until("ready", session_id=session_id)
        run = await call(kit, session_id, "mcp__session_stub__pid")
        assert result_of(run)["result"] != pids[2]


@pytest.mark.slow(keep=1)
@pytest.mark.behaviour("mcp_servers_belong_to_sessions")
@pytest.mark.parametrize("how", ["removed", "deleted", "scheduled"])
async def test_a_server_ends_with_its_session(
    short_folder: Path, provider: Provider, stub: StubModel, how: str
) -> None:
    async with daemon_with_mcp(short_folder, provider, stub) as kit:
        session_id, other = await new_session(kit), await new_session(kit)
        for each in (session_id, other):
            await add(kit, each)
            await kit.until("ready", session_id=each)
        if how == "removed":
            await kit.client.request("remove_mcp", session_id=session_id, name="stub")
            await kit.until("removed", session_id=session_id)
            assert await tools_of(kit, session_id) == []
            refused = await kit.client.refusal("remove_mcp", session_id=session_id, name="stub")
            assert refused["message"] == "mcp_server_not_found"
        else:
            undo = {"undo_seconds": 60} if how == "scheduled" else {}
            await kit.client.request("delete_session", session_id=session_id, **undo)
        if how == "scheduled":
            refused = await kit.client.refusal(
                "add_mcp", session_id=session_id, name="stub", command=list(COMMAND)
            )
            assert refused["message"] == "deletion_scheduled"
        assert [server["session_id"] for server in await servers_of(kit, None)] == [other]
        assert await tools_of(kit, other) != []


@pytest.mark.slow
async def test_one_server_too_many_ends_those_of_a_session_that_is_not_at_work(
    short_folder: Path, provider: Provider, stub: StubModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_servers, "MCP_SERVERS_OF_SESSIONS_MAX", 2)
    monkeypatch.setattr(server_module, "FIRST_PAUSE_SECONDS", 60)
    async with daemon_with_mcp(short_folder, provider, stub) as kit:
        at_work, idle, newest = [await new_session(kit) for _ in range(3)]
        for session_id in (at_work, idle):
            await add(kit, session_id)
            await kit.until("ready", session_id=session_id)
        kit.stub.script(tool_reply(("mcp__session_stub__hang", {})))
        await kit.client.request("prompt", session_id=at_work, text="go", wait=False)
        await kit.events.until("tool_call_started")
        await add(kit, newest)
        await kit.until("removed", session_id=idle)
        assert [server["session_id"] for server in await servers_of(kit, None)] == sorted(
            (at_work, newest)
        )
        await kit.client.request("abort", session_id=at_work)
        await kit.events.run()


async def test_the_log_is_sound_and_the_sessions_place_in_lists_stays(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    async with daemon_with_mcp(short_folder, provider, stub) as kit:
        first, second = await new_session(kit), await new_session(kit)
        await add(kit, first)
        await kit.client.request("prompt", session_id=second, text="later", wait=True)
        await kit.until("ready", session_id=first)
        await kit.client.request("restart_mcp", session_id=first, name="stub")
        await kit.until("ready", session_id=first)
        rows = (await kit.client.request("list_sessions"))["sessions"]
        assert [row["session_id"] for row in rows] == [second, first]


async def test_a_server_ends_when_nobody_adds_it_again_in_time(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never_connect(_: server_module.McpServer) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(server_module.McpServer, "run", never_connect)
    work = ScriptedTool()
    options: dict[str, Any] = {"tools": (work.tool,), "stale_seconds": 10_000}
    mock = make_provider("mock")
    async with memory_daemon(workdir=tmp_path, provider=mock, **options) as daemon:
        client = await daemon.connect()
        events = await daemon.watch(types="all")
        session_id = (await client.request("new_session"))["session_id"]

        async def count() -> int:
            return len((await client.request("list_mcp", session_id=session_id))["servers"])

        given = {"session_id": session_id, "name": "s", "command": ["/no/such/program"]}
        for _ in range(3):
            await client.request("add_mcp", **given, ttl_seconds=600)
            await trio.sleep(500)
            assert await count() == 1
        text = "[[tool work {}]] [[then]] [[text Done.]]"
        await client.request("prompt", session_id=session_id, text=text, wait=False)
        await events.until("tool_call_started")
        await trio.sleep(300)
        assert await count() == 1  # the run may need it
        work.finish(gives("worked"))
        await events.run()
        await trio.sleep(601)
        assert await count() == 0
        await client.request("add_mcp", **given, ttl_seconds=600)
        await client.request("add_mcp", **given)
        await trio.sleep(10_000)
        assert await count() == 1


@pytest.mark.behaviour("mcp_servers_of_sessions_are_not_stored")
async def test_a_server_behind_a_url_gets_its_headers_as_they_are(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    async with (
        serving_mcp() as web,
        daemon_with_mcp(short_folder, provider, stub, secrets=Redactor()) as kit,
    ):
        session_id = await new_session(kit)
        headers = {"Authorization": f"Bearer {KEY}", "X-Plain": "${HOME}"}
        await kit.client.request(
            "add_mcp", session_id=session_id, name="far", url=web.url, headers=headers
        )
        await kit.until("ready", session_id=session_id)
        run = await call(kit, session_id, "mcp__session_far__near")
        assert result_of(run)["result"] == "from afar"
        (completed,) = of_type(run, "tool_call_completed")
        assert completed["execution_env"] == "remote"
        assert f"Authorization: Bearer {KEY}" in web.heads[0]
        assert "X-Plain: ${HOME}" in web.heads[0]
        assert KEY not in json.dumps(await servers_of(kit, session_id))
    assert files_with(KEY, short_folder) == []
