"""The kind ``acp`` with a real program, OpenCode, where it is installed: a scripted model server stands
behind it, and things are planted in its workspace.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from nousd.runtimes.agents.acp.agent import Acp
from nousd.runtimes.agents.guest import Guest
from tests.harness.daemon import Event, of_type, users
from tests.harness.stub_model import Gate, Reply, StubModel, stub_model, text_reply, tool_reply
from tests.runtimes.bench import WAIT_SECONDS, RuntimeBench, runtime_bench, said

PROGRAM = shutil.which("opencode")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="there is no program opencode here"),
]

READ = ("nousd_workspace_read", {"path": "notes.txt"})
ONLY_OURS = {"*": "deny", "nousd_*": "allow"}
PLUGIN = """
import { writeFileSync } from "fs"
export const Planted = async () => { writeFileSync("PLANTED/plugin", ""); return {} }
"""


def settings(stub: StubModel, permission: dict[str, str]) -> str:
    """Return settings of the program: the stub as its only model."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": stub.api_base, "apiKey": "key"},
        "models": {"m": {"name": "m"}},
    }
    return json.dumps(
        {
            "model": "stub/m",
            "autoupdate": False,
            "share": "disabled",
            "provider": {"stub": provider},
            "agent": {"title": {"disable": True}},
            "permission": permission,
        }
    )


@asynccontextmanager
async def program(
    folder: Path, permission: dict[str, str] | None = None
) -> AsyncIterator[tuple[RuntimeBench, StubModel]]:
    """Run a daemon whose sessions are served by the program, as its page recommends."""
    work, planted = folder / "work", folder / "planted"
    (work / ".opencode" / "plugin").mkdir(parents=True)
    planted.mkdir()
    (work / ".opencode" / "plugin" / "p.js").write_text(PLUGIN.replace("PLANTED", str(planted)))
    server = {"type": "local", "command": ["touch", str(planted / "mcp")]}
    (work / "opencode.json").write_text(json.dumps({"mcp": {"planted": server}}))
    (work / "notes.txt").write_text("what is noted")
    async with stub_model() as stub:
        variables = {
            "HOME": str(folder),
            "OPENCODE_CONFIG_CONTENT": settings(stub, permission or ONLY_OURS),
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_PROJECT_CONFIG": "1",
            "OPENCODE_PURE": "1",
        }
        agent = Acp("opencode", [PROGRAM or "", "acp"], variables)
        async with runtime_bench(
            work, agent, guest=Guest(lambda: shutil.which("bwrap"), ())
        ) as bench:
            yield bench, stub
    assert list(planted.iterdir()) == []


async def prompted(bench: RuntimeBench, text: str = "go") -> list[Event]:
    """Return the events of a run."""
    with trio.fail_after(WAIT_SECONDS):
        accepted = await bench.client.request("prompt", text=text, wait=False)
        return await bench.events.run(accepted["run_id"])


async def test_only_our_tools_are_offered_and_a_call_is_one_call(tmp_path: Path) -> None:
    async with program(tmp_path) as (bench, stub):
        stub.script(tool_reply(READ, text="reading"), text_reply("read"))
        run = await prompted(bench)
        offered = {tool["function"]["name"] for tool in stub.requests[0].json["tools"]}
        told = json.dumps(stub.requests[1].json["messages"])
    assert said(run) == ["reading", "read"]
    assert all(name.startswith("nousd_") for name in offered)
    assert "what is noted" in told
    (requested,) = of_type(run, "tool_call_requested")
    assert requested["tool_name"] == "workspace.read"


async def test_a_tool_of_its_own_is_denied_where_it_asks(tmp_path: Path) -> None:
    async with program(tmp_path, {"*": "ask"}) as (bench, stub):
        stub.script(tool_reply(("bash", {"command": "touch own", "description": "d"})))
        run = await prompted(bench)
        assert not (tmp_path / "work" / "own").exists()
    (denied,) = of_type(run, "tool_call_denied")
    assert denied["tool_name"] == "execute"


async def test_a_tool_of_its_own_that_it_does_not_ask_about_is_observed(tmp_path: Path) -> None:
    async with program(tmp_path, {"*": "allow"}) as (bench, stub):
        call = ("bash", {"command": "echo observed", "description": "d"})
        stub.script(tool_reply(call), text_reply("done"))
        run = await prompted(bench)
    (completed,) = of_type(run, "tool_call_completed")
    assert (completed["executed_by"], completed["gated"]) == ("runtime", False)
    assert of_type(run, "tool_execution_end")[0]["result"] == "observed\n"


async def test_a_steer_skips_the_call_and_is_the_next_turn(tmp_path: Path) -> None:
    async with program(tmp_path) as (bench, stub):
        gate = Gate()
        reply = Reply((gate, *tool_reply(READ).parts))
        stub.script(reply, text_reply("stopped"), text_reply("steered"))
        with trio.fail_after(WAIT_SECONDS):
            await bench.client.request("prompt", text="go", wait=False)
            await gate.reached()
            await bench.client.request("steer", text="left")
            gate.open()
            run = await bench.events.run()
    assert users(run) == [("prompt", "go"), ("steer", "left")]
    assert of_type(run, "tool_call_denied")[0]["by"] == "steer"
    assert said(run)[-1] == "steered"


async def test_a_new_life_goes_on_with_its_session(tmp_path: Path) -> None:
    async with program(tmp_path) as (bench, stub):
        stub.script(text_reply("first answer"), text_reply("second"))
        await prompted(bench, "remember this")
        await bench.client.request("set_active_tools", tools=["read"])
        run = await prompted(bench)
        told = json.dumps(stub.requests[-1].json["messages"])
    assert [note["resume"] for note in of_type(run, "agent_session") if "resume" in note] == [
        "native"
    ]
    assert said(run) == ["second"]
    assert "first answer" in told
