"""Runs that called MCP tools are replayed without the servers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import trio

from nousd.tools.mcp import server
from nousd.tools.mcp.spec import ServerSpec
from tests.daemon.asking_bench import calls
from tests.daemon.scripted import ScriptedProvider, says
from tests.harness.daemon import Client, of_type
from tests.replay.memory_log import replays
from tests.replay.test_replay import daemon_with_log

STUB = Path(__file__).parent.parent / "tools" / "stub_mcp_server.py"
SPEC = ServerSpec(name="stub", command=(sys.executable, "-S", str(STUB)))


async def test_results_and_failures_of_mcp_servers_replay_identically(tmp_path: Path) -> None:
    text = (
        '[[tool mcp__stub__echo {"text":"hello"}]] [[tool mcp__stub__echo {}]] '
        "[[tool mcp__stub__picture {}]] [[tool mcp__stub__refuse {}]] [[tool mcp__stub__progress {}]] "
        "[[tool mcp__stub__die {}]] [[then]] [[say 1]]"
    )
    with trio.fail_after(60):
        async with daemon_with_log(tmp_path, mcp_servers=(SPEC,)) as (client, watch, rows):
            while not (await client.request("list_mcp"))["servers"][0]["tools"]:
                await watch.until("mcp_server_status")
            await client.request("prompt", text=text, wait=False)
            run = await watch.run()
            codes = [warning["code"] for warning in of_type(run, "warning")]
            assert "mcp_server_failed" in codes
            (report,) = (await replays(rows)).values()
    assert report.is_same, "\n".join(report.lines)


@pytest.mark.slow
async def test_mcp_tools_that_change_during_a_run_replay_identically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REFRESH_SECONDS", 0.01)
    with trio.fail_after(60):
        async with daemon_with_log(tmp_path, mcp_servers=(SPEC,)) as (client, watch, rows):
            while not (await client.request("list_mcp"))["servers"][0]["tools"]:
                await watch.until("mcp_server_status")
            text = "[[tool mcp__stub__change {}]] [[then]] [[slow 500]] [[say 4]]"
            await client.request("prompt", text=text, wait=False)
            await watch.until("tool_call_completed")
            while "mcp__stub__new" not in (await client.request("list_mcp"))["servers"][0]["tools"]:
                await watch.until("mcp_server_status")
            await client.request("follow_up", text='[[tool mcp__stub__echo {"text":"changed"}]]')
            await watch.until("agent_end")
            first, *_, last = of_type(watch.seen, "model_input")
            assert set(last["tools"]) - set(first["tools"]) == {"mcp__stub__new"}
            (report,) = (await replays(rows)).values()
    assert report.is_same, "\n".join(report.lines)


async def tools_of(client: Client) -> set[str]:
    return {tool["name"] for tool in (await client.request("list_tools"))["tools"]}


@pytest.mark.slow
async def test_an_mcp_tool_added_and_removed_during_a_run_replays_identically(
    tmp_path: Path,
) -> None:
    provider = ScriptedProvider()
    echoes = calls(("mcp__stub__echo", '{"text": "hello"}'))
    with trio.fail_after(60):
        async with daemon_with_log(tmp_path, provider) as (client, watch, rows):
            await client.request("prompt", text="go", wait=False)
            provider.answer(echoes)
            await watch.until("tool_call_denied")
            await provider.calls.wait_waiting()
            await client.request("add_mcp", name="stub", command=list(SPEC.command))
            while not (await client.request("list_mcp"))["servers"][0]["tools"]:
                await watch.until("mcp_server_status")
            provider.answer(echoes)
            await watch.until("tool_call_completed")
            # The next model call is offered the tool, the one after it is not.
            for is_there in (True, False):
                offered = (await watch.until("model_input"))["payload"]["tools"]
                assert ("mcp__stub__echo" in offered) is is_there
                if is_there:
                    await client.request("remove_mcp", name="stub")
                    while "mcp__stub__echo" in await tools_of(client):
                        pass
                provider.answer(echoes)
                await watch.until("tool_call_denied")
            provider.answer(says("done"))
            await watch.until("agent_end")
            reasons = [denied["reason"] for denied in of_type(watch.seen, "tool_call_denied")]
            assert reasons == ["tool_not_found: mcp__stub__echo"] * 3
            (report,) = (await replays(rows)).values()
    assert report.is_same, "\n".join(report.lines)
