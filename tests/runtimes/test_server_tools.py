"""Tools of MCP servers, as agent programs are offered them."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from nousd.machine.policy.rules import Rule
from nousd.runtimes.agents.interface import AgentTool
from nousd.runtimes.agents.tools import offered_tools
from nousd.runtimes.agents.tools.call_reports import ToolCall
from nousd.runtimes.agents.tools.mcp_tools import mcp_name
from nousd.runtimes.agents.tools.reported_calls import ReportedCalls
from nousd.tools.mcp.spec import ServerSpec
from tests.harness.daemon import Event, of_type
from tests.runtimes.bench import WAIT_SECONDS, RuntimeBench, resumed, runtime_bench, said
from tests.runtimes.contracted import AGENTS, Contracted, fake_codex
from tests.runtimes.scripted_adapter import ScriptedAgent

pytestmark = pytest.mark.slow(keep=2)  # the default suite tries 2 of the agents with each

SERVER = Path(__file__).parent / "programs" / "mcp_server.py"

NOTE = "mcp__session_tools__note"
CALL = {"call": ["session_tools__note", {"text": "mine"}]}
"""A call of that tool, by its name towards programs."""

NAMING = tuple(kind for kind in AGENTS if kind != "codex")
"""Programs that ask about tools of their own by any name."""

TELL = {"say_results": True}


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": "notes", "inputSchema": {"type": "object"}, **more}


def command_of(*tools: dict[str, Any]) -> list[str]:
    return [sys.executable, "-S", str(SERVER), json.dumps(tools)]


async def hand_in(
    bench: RuntimeBench, *tools: dict[str, Any], name: str = "tools", session_id: str = ""
) -> None:
    """Add a server with these tools to a session, the active one unless another is named."""
    wanted = session_id or bench.session_id
    command = command_of(*(tools or (tool("note"),)))
    await bench.client.request("add_mcp", session_id=wanted, name=name, command=command)
    await until_ready(bench, name)


async def until_ready(bench: RuntimeBench, name: str) -> None:
    """Wait until a server is connected, which it was not when this was called for the first time."""
    with trio.fail_after(WAIT_SECONDS):
        await bench.events.until("mcp_server_status", state="ready", name=name)


async def remove(bench: RuntimeBench) -> None:
    await bench.client.request("remove_mcp", session_id=bench.session_id, name="tools")
    with trio.fail_after(WAIT_SECONDS):
        await bench.events.until("mcp_server_status", state="removed", name="tools")


def offered(run: list[Event]) -> list[str]:
    """Return the tools of servers that the program was offered in a run."""
    (told,) = of_type(run, "model_input")
    return [name for name in told["tools"] if name.startswith("mcp__")]


def left_out(run: list[Event]) -> list[str]:
    warnings = of_type(run, "warning")
    return [each["message"] for each in warnings if each["code"] == "agent_tools_left_out"]


@pytest.fixture
async def bench(workdir: Path, program: Contracted) -> AsyncIterator[RuntimeBench]:
    async with program.bench(workdir) as bench:
        yield bench


@pytest.fixture
async def scripted(workdir: Path, tmp_path: Path) -> AsyncIterator[RuntimeBench]:
    async with runtime_bench(workdir, ScriptedAgent(tmp_path / "memory")) as bench:
        yield bench


# --- what every program is tried with -----------------------------------------------------------


@pytest.mark.slow(keep=1)
@pytest.mark.row("MCP servers")
async def test_a_tool_of_the_sessions_own_server_is_offered_and_called(
    bench: RuntimeBench, workdir: Path
) -> None:
    await hand_in(bench)
    run = await bench.run(CALL, TELL)
    assert offered(run) == [NOTE]
    assert 'note was given {"text": "mine"}' in said(run)[0].replace("\\", "")
    assert (workdir / "calls").read_text() == "note\n"
    (completed,) = of_type(run, "tool_call_completed")
    assert (completed["tool_name"], completed["executed_by"]) == (NOTE, "mcp")
    (evaluated, *_) = of_type(run, "tool_call_policy_evaluated")
    assert evaluated["tool_name"] == NOTE


@pytest.mark.slow
@pytest.mark.row("MCP servers")
async def test_a_denied_call_of_it_has_no_effect_and_the_agent_is_told(
    workdir: Path, program: Contracted
) -> None:
    rules = (Rule("deny", "mcp__session_tools__*", "the test"),)
    async with program.bench(workdir, rules=rules) as bench:
        await hand_in(bench)
        run = await bench.run(CALL, TELL)
    assert "tool_blocked" in said(run)[0]
    assert not (workdir / "calls").exists()
    (denied,) = of_type(run, "tool_call_denied")
    assert denied["tool_name"] == NOTE


@pytest.mark.row("MCP servers")
async def test_a_call_of_it_is_asked_about_as_one_of_a_foreign_tool(
    workdir: Path, program: Contracted
) -> None:
    async with program.bench(workdir, mode="auto") as bench:
        await hand_in(bench)
        with trio.fail_after(WAIT_SECONDS):
            await bench.start(CALL, TELL)
            asked = (await bench.events.until("permission_requested"))["payload"]
            assert (asked["tool_name"], asked["args"]) == (NOTE, {"text": "mine"})
            assert not (workdir / "calls").exists()
            named = {key: asked[key] for key in ("tool_call_id", "attempt", "input_hash")}
            await bench.client.request("confirm_tool", decision="once", **named)
            run = await bench.events.run()
    assert (workdir / "calls").read_text() == "note\n"
    assert of_type(run, "agent_end")[0]["status"] == "completed"


@pytest.mark.slow
@pytest.mark.row("MCP servers")
async def test_servers_that_come_and_go_between_turns_change_what_the_next_one_is_offered(
    bench: RuntimeBench,
) -> None:
    assert offered(await bench.run({"say": "one"})) == []
    await hand_in(bench)
    run = await bench.run(CALL, TELL)
    assert offered(run) == [NOTE]
    assert "note was given" in said(run)[0]
    await remove(bench)
    run = await bench.run({"say": "three"})
    assert (offered(run), said(run)) == ([], ["three"])
    assert len(resumed(run)) == 1


# --- what scripted programs are tried with ------------------------------------------------------


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("kind", AGENTS)
async def test_a_program_keeps_its_session_when_the_tools_change_unless_a_session_keeps_its_tools(
    workdir: Path, kind: str, tmp_path: Path
) -> None:
    async with runtime_bench(workdir, AGENTS[kind](tmp_path / "memory")) as bench:
        await bench.run({"say": "one"})
        await hand_in(bench)
        run = await bench.run({"say": "two"})
        assert resumed(run) == ["reconstruct" if kind == "codex" else "native"]
        assert resumed(await bench.run({"say": "three"})) == []


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("kind", NAMING)
async def test_a_tool_of_another_sessions_server_is_neither_offered_nor_called(
    workdir: Path, kind: str, tmp_path: Path
) -> None:
    async with runtime_bench(workdir, AGENTS[kind](tmp_path / "memory")) as bench:
        other = await bench.client.request("new_session", activate=False)
        await hand_in(bench, session_id=other["session_id"])
        run = await bench.run({"own": [NOTE, {"text": "theirs"}]}, TELL)
    assert offered(run) == []
    assert not (workdir / "calls").exists()
    assert len(of_type(run, "tool_call_denied")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", NAMING)
async def test_a_tool_of_the_programs_own_that_has_the_name_of_an_offered_one_is_not_that_one(
    workdir: Path, kind: str, tmp_path: Path
) -> None:
    async with runtime_bench(workdir, AGENTS[kind](tmp_path / "memory")) as bench:
        await hand_in(bench)
        for name in (NOTE, "session_tools__note"):
            run = await bench.run({"own": [name, {"text": "x"}]}, TELL)
            (denied,) = of_type(run, "tool_call_denied")
            assert denied["by"] == "policy"
    assert not (workdir / "calls").exists()


@pytest.mark.slow
async def test_tools_of_the_daemons_servers_are_offered_after_those_of_the_session(
    workdir: Path, tmp_path: Path
) -> None:
    spec = ServerSpec(name="all", command=tuple(command_of(tool("note"), tool("look"))))
    agent = ScriptedAgent(tmp_path / "memory")
    async with runtime_bench(workdir, agent, mcp_servers=(spec,)) as bench:
        await until_ready(bench, "all")
        await hand_in(bench)
        run = await bench.run({"call": ["all__note", {}]}, TELL)
    assert offered(run) == [NOTE, "mcp__all__look", "mcp__all__note"]
    assert said(run) == ["note was given {}"]


async def test_tools_that_a_run_may_not_use_are_not_offered(scripted: RuntimeBench) -> None:
    await hand_in(scripted)
    run = await scripted.run({"call": ["session_tools__note", {}]}, TELL, tools=["read"])
    assert offered(run) == []
    assert "tool_not" in said(run)[0]


@pytest.mark.slow
async def test_names_that_programs_would_take_for_one_are_kept_apart(
    scripted: RuntimeBench, workdir: Path
) -> None:
    await hand_in(scripted, tool("a.b"), tool("a_b"), tool("x" * 60))
    run = await scripted.run({"say": "a"})
    assert len(offered(run)) == 3
    names = [mcp_name(name) for name in offered(run)]
    assert names[1] == "session_tools__a_b"
    assert len(set(names)) == 3
    run = await scripted.run({"calls": [[name, {}] for name in names]})
    called = (workdir / "calls").read_text().split()
    assert sorted(called) == ["a.b", "a_b", "x" * 60]


@pytest.mark.slow
@pytest.mark.parametrize("most", ["OFFERED_MAX", "OFFERED_BYTES_MAX"])
async def test_what_there_is_no_room_for_is_left_out_with_a_warning(
    scripted: RuntimeBench, most: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await hand_in(scripted, *(tool(f"tool{number:02}") for number in range(30)))
    all_of_them = await scripted.run({"say": "a"})
    assert (len(offered(all_of_them)), left_out(all_of_them)) == (30, [])
    size = {"OFFERED_MAX": 4 + 10, "OFFERED_BYTES_MAX": 4000}[most]
    monkeypatch.setattr(offered_tools, most, size)
    run = await scripted.run({"say": "b"})
    told = offered(run)
    assert 0 < len(told) < 30
    assert told == offered(all_of_them)[: len(told)]
    (warning,) = left_out(run)
    assert f"not offered {30 - len(told)} tools" in warning
    assert f"mcp__session_tools__tool{len(told):02}" in warning
    assert left_out(await scripted.run({"say": "c"})) == []


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "array", "items": [{"type": "string"}]}}},
        {"properties": {"a": True}},
        {"properties": {"a": {"required": "b"}}},
        {"properties": {"a": json.loads('{"items":' * 80 + "{}" + "}" * 80)}},
    ],
)
async def test_a_schema_that_not_all_programs_read_is_told_in_words(
    workdir: Path, tmp_path: Path, schema: dict[str, Any]
) -> None:
    given = {"type": "object", **schema}
    async with runtime_bench(workdir, fake_codex(tmp_path / "memory")) as bench:
        await hand_in(bench, tool("note", inputSchema=given))
        run = await bench.run(CALL, TELL)
        (told,) = of_type(run, "model_input")
        stored = await bench.client.request("get_artifact", artifact_id=told["input_ref"])
    assert "note was given" in said(run)[0]
    tools = json.loads(base64.b64decode(stored["data"]))["tools"]
    (found,) = [each for each in tools if each["name"] == NOTE]
    assert found["parameters"] == {"type": "object"}
    assert json.loads(found["description"].partition("arguments: ")[2]) == given


@pytest.mark.parametrize(
    "name",
    ["mcp__mcp__echo", "mcp__mcp", "mcp__files__a.b", f"mcp__files__{'x' * 50}", "\u00e4" * 70],
)
def test_a_name_that_a_program_may_refuse_is_another_one_towards_it(name: str) -> None:
    towards = mcp_name(name)
    assert re.fullmatch(r"(?!mcp__)[A-Za-z][A-Za-z0-9_-]{0,51}", towards)
    assert towards != mcp_name(f"{name[:-1]}.")


async def test_a_report_that_does_not_say_whose_tool_it_is_is_of_the_programs_own() -> None:
    reported = ReportedCalls((AgentTool("mcp__files__note", "", {}),))
    for title, is_ours in (("files__note", False), ("nousd_files__note", True)):
        assert reported.is_ours(ToolCall(title, title=title, kind="other")) == is_ours
