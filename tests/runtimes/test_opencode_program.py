"""The runtime ``opencode`` with the real program, where it is installed: a scripted model server stands
behind it, and things are planted in its workspace.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from nousd.machine.policy.rules import Rule
from nousd.runtimes.agents.guest import Guest
from nousd.runtimes.agents.opencode.agent import Opencode
from tests.harness.daemon import Event, of_type, users
from tests.harness.stub_model import Gate, Reply, StubModel, stub_model, text_reply, tool_reply
from tests.runtimes.bench import WAIT_SECONDS, RuntimeBench, runtime_bench, said

PROGRAM = shutil.which("opencode")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="there is no program opencode here"),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing"),
]

READ = ("nousd_workspace_read", {"path": "notes.txt"})
PICTURE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAEU"
    "lEQVR4nGP4z8AARGDiPwMAHfAD/aAzCYkAAAAASUVORK5CYII="
)
"""A PNG of four pixels."""
PLUGIN = """
import { writeFileSync } from "fs"
writeFileSync("PLANTED/NAME", "")
export const Planted = async () => ({})
"""


def settings(stub: StubModel, model: str) -> str:
    """Return settings of the user: the stub as the only provider."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": stub.api_base, "apiKey": "key"},
        "models": {
            name: {"attachment": True, "modalities": {"input": ["text", "image"]}}
            for name in ("m", "other")
        },
    }
    return json.dumps({"model": f"stub/{model}", "provider": {"stub": provider}})


def plant(work: Path, planted: Path) -> None:
    """Put what opencode would obey into a workspace."""
    for name in ("plugin", "plugins", "tool"):
        folder = work / ".opencode" / name
        folder.mkdir(parents=True)
        code = PLUGIN.replace("PLANTED", str(planted)).replace("NAME", name)
        (folder / "p.js").write_text(code)
    code = PLUGIN.replace("PLANTED", str(planted)).replace("NAME", "named")
    (work / "named.js").write_text(code)
    server = {"type": "local", "command": ["touch", str(planted / "mcp")]}
    for name in ("opencode.json", ".opencode/opencode.json"):
        (work / name).write_text(json.dumps({"mcp": {"p": server}, "plugins": ["./named.js"]}))
    (work / "AGENTS.md").write_text("planted instructions")


@asynccontextmanager
async def program(
    folder: Path, *, model: str = "m", **options: Any
) -> AsyncIterator[tuple[RuntimeBench, StubModel]]:
    """Run a daemon whose sessions are served by the program."""
    work, planted = folder / "work", folder / "planted"
    work.mkdir()
    planted.mkdir()
    plant(work, planted)
    (work / "notes.txt").write_text("what is noted")
    async with stub_model() as stub:
        config = folder / "config" / "opencode"
        config.mkdir(parents=True)
        (config / "opencode.json").write_text(settings(stub, model))
        variables = {
            "HOME": str(folder),
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "XDG_CONFIG_HOME": str(config.parent),
        }
        agent = Opencode("opencode", [PROGRAM or ""], variables)
        guest = Guest(lambda: shutil.which("bwrap"), ())
        async with runtime_bench(work, agent, guest=guest, **options) as bench:
            yield bench, stub
    assert list(planted.iterdir()) == []


async def prompted(bench: RuntimeBench, text: str = "go", **payload: Any) -> list[Event]:
    """Return the events of a run."""
    with trio.fail_after(WAIT_SECONDS):
        accepted = await bench.client.request("prompt", text=text, wait=False, **payload)
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
    assert "planted instructions" not in told
    (requested,) = of_type(run, "tool_call_requested")
    assert requested["tool_name"] == "workspace.read"
    assert len(of_type(run, "usage_reported")) == 2


async def test_the_same_call_may_be_made_again_and_again(tmp_path: Path) -> None:
    async with program(tmp_path) as (bench, stub):
        stub.script(*[tool_reply(READ) for _ in range(5)], text_reply("done"))
        run = await prompted(bench)
    assert said(run) == ["done"]
    assert len(of_type(run, "tool_call_completed")) == 5


async def test_a_tool_of_its_own_that_its_model_invents_is_denied(tmp_path: Path) -> None:
    async with program(tmp_path) as (bench, stub):
        stub.script(tool_reply(("bash", {"command": "touch own"})), text_reply("done"))
        run = await prompted(bench)
        assert not (tmp_path / "work" / "own").exists()
    (denied,) = of_type(run, "tool_call_denied")
    assert (denied["tool_name"], said(run)) == ("bash", ["done"])


async def test_its_own_tools_are_judged_by_what_they_would_do(tmp_path: Path) -> None:
    rules = (Rule("deny", "bash(touch no)", "the test"),)
    async with program(tmp_path, rules=rules, own_tools="ask") as (bench, stub):
        stub.script(
            tool_reply(("bash", {"command": "touch no", "description": "d"})),
            tool_reply(("bash", {"command": "touch yes", "description": "d"})),
            text_reply("done"),
        )
        run = await prompted(bench)
        assert not (tmp_path / "work" / "no").exists()
        assert (tmp_path / "work" / "yes").exists()
        offered = {tool["function"]["name"] for tool in stub.requests[0].json["tools"]}
    assert said(run) == ["done"]
    assert len(of_type(run, "tool_call_denied")) == 1
    (completed,) = of_type(run, "tool_call_completed")
    assert completed["executed_by"] == "runtime"
    assert "bash" in offered
    assert not offered & {"task", "question"}


async def test_what_it_runs_unasked_where_its_own_tools_are_on_is_written(tmp_path: Path) -> None:
    async with program(tmp_path, own_tools="on") as (bench, stub):
        call = ("bash", {"command": "echo ran", "description": "d"})
        stub.script(tool_reply(call), text_reply("done"))
        run = await prompted(bench)
    (completed,) = of_type(run, "tool_call_completed")
    assert (completed["executed_by"], completed["gated"]) == ("runtime", False)
    assert of_type(run, "tool_execution_end")[0]["result"] == "ran\n"
    assert said(run) == ["done"]


async def test_a_steer_goes_with_the_result_of_the_call(tmp_path: Path) -> None:
    async with program(tmp_path) as (bench, stub):
        gate = Gate()
        stub.script(Reply((gate, *tool_reply(READ).parts)), text_reply("steered"))
        with trio.fail_after(WAIT_SECONDS):
            await bench.client.request("prompt", text="go", wait=False)
            await gate.reached()
            await bench.client.request("steer", text="left")
            gate.open()
            run = await bench.events.run()
        *_, result, steer = stub.requests[-1].json["messages"]
    assert users(run) == [("prompt", "go"), ("steer", "left")]
    assert of_type(run, "tool_call_denied")[0]["by"] == "steer"
    assert said(run) == ["steered"]
    assert (result["role"], steer["role"]) == ("tool", "user")
    assert "left" in json.dumps(steer)


async def test_an_abort_ends_the_turn_and_the_next_one_is_told(tmp_path: Path) -> None:
    async with program(tmp_path) as (bench, stub):
        gate = Gate()
        stub.script(Reply((*text_reply("half").parts[:1], gate)), text_reply("again"))
        with trio.fail_after(WAIT_SECONDS):
            await bench.client.request("prompt", text="go", wait=False)
            await gate.reached()
            await bench.client.request("abort")
            run = await bench.events.run()
        assert of_type(run, "agent_end")[0]["status"] == "cancelled"
        assert said(await prompted(bench)) == ["again"]


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


async def test_a_picture_reaches_its_model(tmp_path: Path) -> None:
    async with program(tmp_path) as (bench, stub):
        stub.script(text_reply("seen"))
        run = await prompted(bench, attachments=[{"data": PICTURE, "media_type": "image/png"}])
        told = json.dumps(stub.requests[0].json["messages"])
    assert said(run) == ["seen"]
    assert f"data:image/png;base64,{PICTURE}" in told


async def test_a_broken_picture_ends_the_run_with_the_programs_words(tmp_path: Path) -> None:
    async with program(tmp_path) as (bench, _):
        broken = {"data": "iVBORw0KGgo=", "media_type": "image/png"}
        run = await prompted(bench, attachments=[broken])
    (failed,) = of_type(run, "error")
    assert "could not be decoded" in failed["cause"]


async def test_its_models_are_listed_and_one_is_chosen(tmp_path: Path) -> None:
    async with program(tmp_path) as (bench, stub):
        stub.script(text_reply("one"), text_reply("two"))
        await prompted(bench)
        listed = await bench.client.request("list_models", runtime="opencode")
        await bench.client.request("set_model", model="stub/other")
        await prompted(bench)
        asked = [request.json["model"] for request in stub.requests]
    assert {"stub/m", "stub/other"} <= {each["model"] for each in listed["models"]}
    assert asked == ["m", "other"]


async def test_a_model_that_it_lacks_ends_the_run_with_its_words(tmp_path: Path) -> None:
    async with program(tmp_path, model="lacking") as (bench, _):
        run = await prompted(bench)
    (failed,) = of_type(run, "error")
    assert "stub/lacking" in failed["cause"]
