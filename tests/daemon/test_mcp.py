"""A daemon's MCP servers: their tools in runs, through the same policy gate, and what is stored."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import trio

from nousd.daemon.policy.permissions import RulePermissions
from nousd.daemon.workspace.project import Project, reader
from nousd.daemon.workspace.trust import Trust
from nousd.providers.interface import Provider
from nousd.tools.mcp import server as server_module
from nousd.tools.mcp.spec import ServerSpec
from tests.daemon.mcp_bench import COMMAND, SPEC, STUB, daemon_with_mcp, result_of
from tests.harness.daemon import of_type
from tests.harness.stub_model import StubModel, tool_reply


@pytest.mark.behaviour("mcp_tools_go_through_the_gate")
async def test_a_model_calls_a_servers_tool_like_any_other(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    async with daemon_with_mcp(short_folder, provider, stub, mcp_servers=(SPEC,)) as kit:
        await kit.until("ready")
        run = await kit.call("echo", text="hello")
        assert result_of(run)["result"] == "hello"
        (completed,) = of_type(run, "tool_call_completed")
        assert (completed["executed_by"], completed["execution_env"]) == ("mcp", "unknown")
        offered = [tool["function"]["name"] for tool in stub.requests[0].json["tools"]]
        assert "mcp__stub__echo" in offered
        assert "mcp__stub__echo" in of_type(run, "model_input")[0]["tools"]


@pytest.mark.behaviour("mcp_tools_go_through_the_gate")
async def test_a_servers_read_only_hint_does_not_let_its_tool_run_without_approval(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    permissions = RulePermissions("auto")
    async with daemon_with_mcp(
        short_folder, provider, stub, mcp_servers=(SPEC,), permissions=permissions
    ) as kit:
        await kit.until("ready")
        run = await kit.call("echo", text="hello")  # annotated as read-only by its server
        assert not result_of(run)["executed"]
        assert of_type(run, "tool_call_denied") != []


@pytest.mark.slow
@pytest.mark.behaviour("mcp_permissions_fall_with_the_definition")
async def test_a_saved_permission_lapses_when_the_server_changes_the_tools_definition(
    short_folder: Path, provider: Provider, stub: StubModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "REFRESH_SECONDS", 0)
    spec = ServerSpec(name="stub", command=COMMAND, tool_classes={"change": frozenset({"read"})})
    permissions = RulePermissions("auto")
    async with daemon_with_mcp(
        short_folder, provider, stub, confirms=True, mcp_servers=(spec,), permissions=permissions
    ) as kit:
        await kit.until("ready")
        run = await kit.call_and_decide("always", "echo", text="asked")
        assert result_of(run)["result"] == "asked"
        run = await kit.call("echo", text="not asked")
        assert result_of(run)["result"] == "not asked"
        assert result_of(await kit.call("change"))["executed"]
        await kit.until("ready")
        run = await kit.call_and_decide("deny", "echo", text="asked again")
        assert not result_of(run)["executed"]


@pytest.mark.slow
@pytest.mark.behaviour("a_bad_mcp_server_costs_its_own_calls")
async def test_a_server_that_dies_fails_its_call_but_not_the_run_and_reconnects(
    short_folder: Path, provider: Provider, stub: StubModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "FIRST_PAUSE_SECONDS", 0.01)
    async with daemon_with_mcp(short_folder, provider, stub, mcp_servers=(SPEC,)) as kit:
        await kit.until("ready")
        run = await kit.call("die")
        (warning,) = of_type(run, "warning")
        assert warning["code"] == "mcp_server_failed"
        assert result_of(run)["is_error"]
        assert run[-1]["payload"]["status"] == "completed"
        failed = await kit.until("backoff")
        assert failed["payload"]["error"] == "it ended"
        await kit.until("ready")
        assert result_of(await kit.call("echo", text="back"))["result"] == "back"


@pytest.mark.slow
@pytest.mark.behaviour("a_bad_mcp_server_costs_its_own_calls")
async def test_an_abort_cancels_a_call_that_the_server_never_answers(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    async with daemon_with_mcp(short_folder, provider, stub, mcp_servers=(SPEC,)) as kit:
        await kit.until("ready")
        stub.script(tool_reply(("mcp__stub__hang", {})))
        await kit.client.request("prompt", text="go", wait=False)
        await kit.events.until("tool_call_started")
        await kit.client.request("abort")
        run = await kit.events.run()
        assert run[-1]["payload"]["status"] == "cancelled"
        assert result_of(await kit.call("cancelled"))["result"] != "[]"


@pytest.mark.behaviour("mcp_servers_are_added_for_good")
async def test_an_added_server_survives_restarts_until_it_is_removed(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    async with daemon_with_mcp(short_folder, provider, stub) as kit:
        await kit.client.request("add_mcp", name="stub", command=list(COMMAND), tools=["echo"])
        await kit.until("ready")
        assert await kit.tool_names() == ["mcp__stub__echo"]
        await kit.client.request("add_mcp", name="stub", command=list(COMMAND), tools=["env"])
        await kit.until("ready", tools=["mcp__stub__env"])
        assert await kit.tool_names() == ["mcp__stub__env"]
    async with daemon_with_mcp(short_folder, provider, stub) as kit:
        (server,) = (await kit.client.request("list_mcp"))["servers"]
        assert server["origin"] == "add_mcp"
        await kit.client.request("remove_mcp", name="stub")
        assert (await kit.client.request("list_mcp"))["servers"] == []
    async with daemon_with_mcp(short_folder, provider, stub) as kit:
        assert (await kit.client.request("list_mcp"))["servers"] == []
        assert await kit.tool_names() == []


@pytest.mark.behaviour("mcp_servers_are_taken_away")
async def test_a_server_from_the_settings_cannot_be_changed_by_commands(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    async with daemon_with_mcp(short_folder, provider, stub, mcp_servers=(SPEC,)) as kit:
        for asked in ({"type": "remove_mcp"}, {"type": "add_mcp", "command": ["other"]}):
            refused = await kit.client.refusal(**asked, name="stub")
            assert refused["message"] == "mcp_server_is_configured"


@pytest.mark.behaviour("mcp_servers_are_restarted")
async def test_restart_mcp_reconnects_a_failed_server(
    short_folder: Path, provider: Provider, stub: StubModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "ATTEMPTS_MAX", 1)
    program = short_folder / "program"
    async with daemon_with_mcp(
        short_folder,
        provider,
        stub,
        mcp_servers=(ServerSpec(name="stub", command=(str(program),)),),
    ) as kit:
        failed = await kit.until("failed")
        assert failed["payload"]["tools"] == []
        program.write_text(f"#!/bin/sh\nexec {sys.executable} -S {STUB}\n")
        program.chmod(0o700)
        await kit.client.request("restart_mcp", name="stub")
        await kit.until("ready")
        assert "mcp__stub__echo" in await kit.tool_names()


@pytest.mark.slow
@pytest.mark.behaviour("a_project_names_mcp_servers_once_it_is_trusted")
async def test_a_projects_server_runs_only_while_trusted_and_yields_to_an_added_one(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    root = short_folder / "work"
    settings = root / ".nousd" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f"[mcp.stub]\ncommand = {json.dumps(COMMAND)}\n\n[mcp.Bad]\nurl = 5\n")

    def project() -> Project:
        return Project(root, reader(root), Trust())

    async with daemon_with_mcp(short_folder, provider, stub, project=project()) as kit:
        assert (await kit.client.request("list_mcp"))["servers"] == []
        (file,) = (await kit.client.request("list_trust"))["files"]
        await kit.client.request("trust", hash=file["hash"])
        await kit.until("ready")
        (server,) = (await kit.client.request("list_mcp"))["servers"]
        assert (server["name"], server["origin"]) == ("stub", "project")
        # A server that the user adds overrides the project's server of that name.
        await kit.client.request("add_mcp", name="stub", command=list(COMMAND), tools=["env"])
        await kit.until("ready", tools=["mcp__stub__env"])
    async with daemon_with_mcp(short_folder, provider, stub, project=project()) as kit:
        await kit.until("ready", tools=["mcp__stub__env"])  # from before the restart
        await kit.until("ready", tools=["mcp__stub__env"])
        (server,) = (await kit.client.request("list_mcp"))["servers"]
        assert (server["origin"], server["tools"]) == ("add_mcp", ["mcp__stub__env"])
        await kit.client.request("remove_mcp", name="stub")
        await kit.until("removed")
        await kit.until("ready")
        (server,) = (await kit.client.request("list_mcp"))["servers"]
        assert server["origin"] == "project"
        await kit.client.request("untrust")
        await kit.until("removed")
        assert (await kit.client.request("list_mcp"))["servers"] == []


@pytest.mark.slow
async def test_a_server_replaced_repeatedly_has_the_tools_of_its_last_definition(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    async with daemon_with_mcp(short_folder, provider, stub) as kit:
        for tool in ("echo", "env", "pid", "empty"):
            await kit.client.request("add_mcp", name="stub", command=list(COMMAND), tools=[tool])
        await kit.until("ready", tools=["mcp__stub__empty"])
        assert await kit.tool_names() == ["mcp__stub__empty"]


@pytest.mark.slow
async def test_a_server_added_again_starts_after_the_removed_one_has_ended(
    short_folder: Path, provider: Provider, stub: StubModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    may_end, connected = trio.Event(), server_module.McpServer._run_session

    async def slow_to_end(server: server_module.McpServer) -> None:
        order.append("begins")
        try:
            await connected(server)
        finally:
            with trio.CancelScope(shield=True):
                await may_end.wait()
            order.append("ends")

    monkeypatch.setattr(server_module.McpServer, "_run_session", slow_to_end)
    async with daemon_with_mcp(short_folder, provider, stub) as kit:
        await kit.client.request("add_mcp", name="stub", command=list(COMMAND), tools=["echo"])
        await kit.until("ready")
        await kit.client.request("remove_mcp", name="stub")
        await kit.client.request("add_mcp", name="stub", command=list(COMMAND), tools=["env"])
        (server,) = (await kit.client.request("list_mcp"))["servers"]
        assert server["state"] == "connecting"
        may_end.set()
        await kit.until("ready", tools=["mcp__stub__env"])
        assert await kit.tool_names() == ["mcp__stub__env"]
    assert order == ["begins", "ends"] * 2


async def test_an_internal_error_fails_the_server_but_not_the_daemon(
    short_folder: Path, provider: Provider, stub: StubModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(server_module, "definitions_of", fault)
    monkeypatch.setattr(server_module, "ATTEMPTS_MAX", 1)
    async with daemon_with_mcp(short_folder, provider, stub, mcp_servers=(SPEC,)) as kit:
        failed = await kit.until("failed")
        assert failed["payload"]["tools"] == []
        assert await kit.client.request("ping")
