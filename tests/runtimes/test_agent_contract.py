"""What every runtime that drives an agent program promises, tried with a scripted program of each."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from nousd.machine.policy.rules import Rule
from nousd.runtimes.agents.interface import OwnTools
from tests.harness.daemon import of_type, types, users
from tests.runtimes.bench import WAIT_SECONDS, RuntimeBench, runtime_bench, said
from tests.runtimes.contracted import AGENTS, Contracted, fake_claude
from tests.runtimes.programs.acts import flood_of

pytestmark = pytest.mark.slow(keep=2)  # the default suite tries 2 of the agents with each

UNASKED: dict[str, tuple[str, dict[str, str]]] = {
    "claude": ("Read", {"file_path": "notes.txt"}),
    "acp": ("read_file", {"path": "notes.txt"}),
    "codex": ("view_image", {"path": "/work/picture.png"}),
    "opencode": ("read", {"filePath": "notes.txt"}),
}
"""A call of a tool of each one's own that it does not ask about."""

NAMELESS_CALLS = ("opencode",)
"""Agents that send no id with a call of our tools."""

READ = ["workspace.read", {"path": "notes.txt"}]


needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")


def write(name: str) -> list[object]:
    return ["workspace.write", {"path": name, "content": name}]


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "notes.txt").write_text("what is noted")
    return folder


@pytest.fixture
async def bench(workdir: Path, program: Contracted) -> AsyncIterator[RuntimeBench]:
    async with program.bench(workdir) as bench:
        yield bench


@pytest.mark.row("reasoning")
async def test_reasoning_streams_beside_the_text(bench: RuntimeBench) -> None:
    run = await bench.run({"think": "hm"}, {"say": "hello"})
    assert said(run) == ["hello"]
    thought = "".join(update["delta"] for update in of_type(run, "reasoning_update"))
    # A program may add a heading.
    assert thought.strip("*\n") == "hm"


@pytest.mark.row("streaming")
async def test_text_streams_into_one_message(bench: RuntimeBench) -> None:
    run = await bench.run({"say": "hello"})
    assert said(run) == ["hello"]
    assert "".join(update["delta"] for update in of_type(run, "message_update")) == "hello"
    (started,) = of_type(run, "agent_start")
    assert started["runtime"] == bench.runtime
    assert of_type(run, "agent_end")[0]["status"] == "completed"
    entries = (await bench.client.request("get_messages"))["messages"]
    assert (entries[-1]["role"], entries[-1]["text"]) == ("assistant", "hello")


@pytest.mark.slow(keep=1)
async def test_the_users_message_comes_before_the_first_word(bench: RuntimeBench) -> None:
    for act in ({"say": "a"}, {"early": True}):
        run = await bench.run(act, {"say": "b"})
        starts = [start["role"] for start in of_type(run, "message_start")]
        assert starts[0] == "user"
        assert len(users(run)) == 1


@pytest.mark.slow
@pytest.mark.row("what it was given")
async def test_what_the_agent_was_given_is_in_the_log(bench: RuntimeBench) -> None:
    run = await bench.run({"say": "a"})
    (told,) = of_type(run, "model_input")
    assert told["provider"] == bench.runtime
    assert set(told["tools"]) >= {"workspace.read", "workspace.write", "patch.apply"}
    assert told["input_ref"] == told["input_hash"]


@pytest.mark.row("MCP transport")
async def test_a_call_of_our_tool_goes_through_the_gate(bench: RuntimeBench) -> None:
    run = await bench.run({"call": READ}, {"say_results": True})
    # A program may wrap what a tool says.
    assert "what is noted" in said(run)[0]
    order = [type_ for type_ in types(run) if type_.startswith(("tool_call", "tool_execution"))]
    assert order[0] == "tool_execution_start"
    assert order[-1] == "tool_execution_end"
    (completed,) = of_type(run, "tool_call_completed")
    assert (completed["tool_name"], completed["executed_by"]) == ("workspace.read", "nousd")


@pytest.mark.row("parallel calls")
async def test_calls_made_at_once_overlap_and_their_brackets_do_not(
    bench: RuntimeBench, workdir: Path
) -> None:
    names = ["one", "two", "three"]
    run = await bench.run({"calls": [write(name) for name in names]}, {"say_results": True})
    assert files_in(workdir) == sorted(["notes.txt", *names])
    brackets = [
        type_ for type_ in types(run) if type_ in ("tool_execution_start", "tool_execution_end")
    ]
    assert brackets == ["tool_execution_start", "tool_execution_end"] * 3
    assert said(run)[0].count("Wrote") == 3


async def test_a_call_that_the_agent_repeats_runs_once(bench: RuntimeBench) -> None:
    if bench.runtime in NAMELESS_CALLS:
        pytest.skip("its MCP client gives calls no id, and repeats none")
    run = await bench.run({"again": write("once")}, {"say_results": True})
    assert len(of_type(run, "tool_call_started")) == 1
    assert said(run)[0].count("Wrote") == 2


@pytest.mark.slow(keep=1)
@pytest.mark.row("tool deny")
async def test_a_denied_call_has_no_effect_and_the_agent_is_told(
    workdir: Path, program: Contracted
) -> None:
    rules = (Rule("deny", "write", "the test"),)
    async with program.bench(workdir, rules=rules) as bench:
        run = await bench.run({"call": write("never")}, {"say_results": True})
        assert not (workdir / "never").exists()
        assert "tool_blocked" in said(run)[0]
        assert len(of_type(run, "tool_call_denied")) == 1


@pytest.mark.slow(keep=1)
@pytest.mark.row("tool deny")
async def test_a_rule_for_the_name_towards_agents_binds_it(
    workdir: Path, program: Contracted
) -> None:
    rules = (Rule("deny", "workspace.write", "the test"),)
    async with program.bench(workdir, rules=rules) as bench:
        await bench.run({"call": write("never")})
        assert not (workdir / "never").exists()


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "decision",
    [
        pytest.param("once", marks=pytest.mark.row("tool approve")),
        pytest.param("deny", marks=pytest.mark.row("tool deny")),
    ],
)
async def test_a_call_that_needs_approval_waits_for_it(
    workdir: Path, program: Contracted, decision: str
) -> None:
    async with program.bench(workdir, mode="ask") as bench:
        with trio.fail_after(WAIT_SECONDS):
            await bench.start({"call": write("asked")}, {"say_results": True})
            asked = (await bench.events.until("permission_requested"))["payload"]
            assert not (workdir / "asked").exists()
            named = {key: asked[key] for key in ("tool_call_id", "attempt", "input_hash")}
            await bench.client.request("confirm_tool", decision=decision, **named)
            run = await bench.events.run()
        assert (workdir / "asked").exists() == (decision == "once")
        assert of_type(run, "agent_end")[0]["status"] == "completed"


@pytest.mark.slow(keep=1)
@pytest.mark.row("non-interactive")
async def test_where_nobody_can_be_asked_a_call_is_denied_and_the_run_ends(
    workdir: Path, program: Contracted
) -> None:
    async with program.bench(workdir, mode="ask") as bench:
        await bench.events.subscribe(types="all")
        run = await bench.run({"call": write("never")}, {"say": "done"})
    assert not (workdir / "never").exists()
    assert of_type(run, "tool_call_denied")[0]["by"] == "policy"
    assert of_type(run, "agent_end")[0]["status"] == "completed"


@pytest.mark.slow(keep=1)
async def test_a_tool_of_the_agents_own_is_refused_while_these_are_off(
    bench: RuntimeBench,
) -> None:
    run = await bench.run({"own": ["Bash", {"command": "touch own"}]}, {"say_results": True})
    (denied,) = of_type(run, "tool_call_denied")
    assert denied["tool_name"] in ("Bash", "shell")
    assert "allowed" not in said(run)[0]


@pytest.mark.slow(keep=1)
@pytest.mark.row("steer")
async def test_a_steer_is_the_agents_next_input(bench: RuntimeBench) -> None:
    with trio.fail_after(WAIT_SECONDS):
        await bench.start({"say": "first"}, {"hold": True})
        await bench.events.until("message_end", text="first")
        await bench.client.request("steer", text='[{"say": "steered"}]')
        run = await bench.events.run()
    assert [kind for kind, _ in users(run)] == ["prompt", "steer"]
    assert said(run) == ["first", "steered"]


@pytest.mark.slow(keep=1)
@pytest.mark.row("follow-up")
async def test_a_follow_up_is_a_turn_of_its_own(bench: RuntimeBench) -> None:
    with trio.fail_after(WAIT_SECONDS):
        await bench.start({"say": "first"})
        await bench.client.request("follow_up", text='[{"say": "second"}]')
        run = await bench.events.run()
    assert said(run) == ["first", "second"]
    assert [kind for kind, _ in users(run)] == ["prompt", "follow_up"]


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "manner",
    [
        pytest.param("hold", marks=pytest.mark.row("cancel")),
        pytest.param("deaf", marks=pytest.mark.slow(keep=1)),
    ],
)
async def test_an_abort_ends_the_turn_even_if_the_agent_does_not_listen(
    bench: RuntimeBench, manner: str
) -> None:
    with trio.fail_after(WAIT_SECONDS):
        await bench.start({"say": "first"}, {manner: True})
        await bench.events.until("message_start", role="assistant")
        await bench.client.request("abort")
        run = await bench.events.run()
    assert of_type(run, "agent_end")[0]["status"] == "cancelled"
    assert said(await bench.run({"say": "again"})) == ["again"]


@pytest.mark.slow
async def test_an_agent_that_dies_ends_the_run_and_the_next_one_starts_it_anew(
    bench: RuntimeBench,
) -> None:
    run = await bench.run({"say": "first"}, {"die": 3})
    (failure,) = of_type(run, "error")
    assert failure["code"] == "agent_failed"
    assert "dying" in failure["cause"]
    assert of_type(run, "agent_end")[0]["status"] == "error"
    run = await bench.run({"say": "again"})
    assert said(run) == ["again"]
    begun = [note for note in of_type(run, "agent_session") if "resume" in note]
    assert [note["resume"] for note in begun] == ["reconstruct"]


@pytest.mark.slow(keep=1)
@pytest.mark.row("failure of the model")
async def test_a_failed_model_call_ends_the_run_with_its_words(bench: RuntimeBench) -> None:
    run = await bench.run({"fail": "no such model"})
    (failure,) = of_type(run, "error")
    assert "no such model" in failure["cause"]
    assert said(await bench.run({"say": "again"})) == ["again"]


@pytest.mark.slow(keep=1)
async def test_what_nobody_knows_is_kept_and_harms_nothing(bench: RuntimeBench) -> None:
    run = await bench.run({"unknown": 30}, {"garbage": 3}, {"say": "fine"})
    assert said(run) == ["fine"]
    kept = [warned for warned in of_type(run, "warning") if warned["code"].startswith("agent_")]
    assert 0 < len(kept) <= 20


@pytest.mark.slow
@pytest.mark.row("flood")
async def test_a_flood_is_whole(bench: RuntimeBench) -> None:
    run = await bench.run({"flood": 2000})
    assert said(run) == ["".join(flood_of(2000))]


@pytest.mark.slow(keep=1)
@pytest.mark.row("usage")
async def test_usage_is_counted(bench: RuntimeBench) -> None:
    run = await bench.run({"say": "a"})
    (reported,) = of_type(run, "usage_reported")
    assert reported["usage"]["total"] > 0


@pytest.mark.slow(keep=1)
@pytest.mark.row("one program for a session")
async def test_one_program_serves_the_turns_of_a_session(bench: RuntimeBench) -> None:
    await bench.run({"say": "one"})
    run = await bench.run({"say": "two"})
    assert [note for note in of_type(run, "agent_session") if "resume" in note] == []


@pytest.mark.slow(keep=1)
@pytest.mark.row("moved leaf")
async def test_a_moved_leaf_makes_the_programs_session_void(bench: RuntimeBench) -> None:
    await bench.run({"say": "one"})
    entries = (await bench.client.request("get_messages"))["messages"]
    await bench.run({"say": "two"})
    run = await bench.run({"say": "three"}, leaf_id=entries[-1]["id"])
    begun = [note for note in of_type(run, "agent_session") if "resume" in note]
    assert [note["resume"] for note in begun] == ["reconstruct"]


@pytest.mark.slow
@pytest.mark.row("hand-over")
async def test_a_conversation_is_handed_to_the_native_runtime_and_back(
    bench: RuntimeBench,
) -> None:
    await bench.run({"say": "by the agent"})
    await bench.client.request("set_runtime", runtime=None)
    await bench.run({"say": "ignored"})
    await bench.client.request("set_runtime", runtime=bench.runtime)
    run = await bench.run({"say": "by the agent again"})
    begun = [note for note in of_type(run, "agent_session") if "resume" in note]
    assert [note["resume"] for note in begun] == ["reconstruct"]
    assert said(run) == ["by the agent again"]


@pytest.mark.slow(keep=1)
@needs_bubblewrap
@pytest.mark.parametrize("decision", ["once", "deny"])
@pytest.mark.parametrize("own_tools", ["ask", "on"])
@pytest.mark.parametrize("kind", UNASKED)
async def test_a_tool_of_the_agents_own_that_it_asks_about_passes_the_gate(
    workdir: Path, kind: str, own_tools: OwnTools, decision: str, tmp_path: Path
) -> None:
    agent = AGENTS[kind](tmp_path / "memory")
    async with runtime_bench(workdir, agent, mode="auto", own_tools=own_tools) as bench:
        with trio.fail_after(WAIT_SECONDS):
            await bench.start({"own": ["Bash", {"command": "make it"}]}, {"say_results": True})
            asked = (await bench.events.until("permission_requested"))["payload"]
            assert asked["tool_name"] in ("Bash", "shell")
            assert asked["args"]["command"] == "make it"
            named = {key: asked[key] for key in ("tool_call_id", "attempt", "input_hash")}
            await bench.client.request("confirm_tool", decision=decision, **named)
            run = await bench.events.run()
        completed = of_type(run, "tool_call_completed")
        assert [(done["executed_by"], "gated" in done) for done in completed] == (
            [("runtime", False)] if decision == "once" else []
        )
        assert ("did it" in said(run)[0] or said(run)[0] == "once") == (decision == "once")


@needs_bubblewrap
@pytest.mark.parametrize("kind", UNASKED)
async def test_what_an_agent_does_unasked_is_written_as_such_where_its_own_tools_are_on(
    workdir: Path, kind: str, tmp_path: Path
) -> None:
    agent = AGENTS[kind](tmp_path / "memory")
    async with runtime_bench(workdir, agent, mode="ask", own_tools="on") as bench:
        run = await bench.run({"runs": UNASKED[kind]}, {"say": "seen"})
    assert of_type(run, "permission_requested") == []
    assert said(run) == ["seen"], run
    (started,), (completed,) = (
        of_type(run, "tool_call_started"),
        of_type(run, "tool_call_completed"),
    )
    for event in (started, completed):
        assert event["tool_name"] == UNASKED[kind][0]
        assert (event["executed_by"], event["gated"]) == ("runtime", False)
    (requested,) = of_type(run, "tool_call_requested")
    assert requested["args"] == UNASKED[kind][1]


@needs_bubblewrap
@pytest.mark.parametrize("kind", UNASKED)
async def test_an_unasked_call_whose_end_is_not_told_is_over_when_the_turn_is(
    workdir: Path, kind: str, tmp_path: Path
) -> None:
    agent = AGENTS[kind](tmp_path / "memory")
    async with runtime_bench(workdir, agent, own_tools="on") as bench:
        run = await bench.run({"leaves": UNASKED[kind]}, {"say": "a"})
        assert said(await bench.run({"say": "b"})) == ["b"]
    (completed,) = of_type(run, "tool_call_completed")
    assert (completed["is_error"], completed["gated"]) == (True, False)


@needs_bubblewrap
async def test_a_rule_about_paths_binds_the_agents_own_tools(workdir: Path, tmp_path: Path) -> None:
    agent = fake_claude(tmp_path / "memory")
    rules = (Rule("deny", "*(secret.txt)", "the test"),)
    async with runtime_bench(workdir, agent, rules=rules, own_tools="ask") as bench:
        run = await bench.run(
            {"own": ["Read", {"file_path": "secret.txt"}]},
            {"own": ["Read", {"file_path": "notes.txt"}]},
            {"say_results": True},
        )
        assert len(of_type(run, "tool_call_denied")) == 1
        assert said(run)[0].endswith("allowed: did it")


@needs_bubblewrap
async def test_an_own_call_whose_result_is_not_told_is_over_when_the_turn_is(
    workdir: Path, tmp_path: Path
) -> None:
    agent = fake_claude(tmp_path / "memory")
    hook = {
        "subtype": "hook_callback",
        "input": {"tool_name": "Bash", "tool_input": {"command": "make"}, "tool_use_id": "same"},
    }
    asked = [
        json.dumps({"type": "control_request", "request_id": id_, "request": hook})
        for id_ in ("first", "again")
    ]
    async with runtime_bench(workdir, agent, own_tools="ask") as bench:
        with trio.fail_after(WAIT_SECONDS):
            await bench.start({"raw": asked}, {"call": READ})
            await bench.client.request("follow_up", text='[{"say": "second"}]')
            run = await bench.events.run()
    assert said(run) == ["second"]
    own = [done for done in of_type(run, "tool_call_completed") if done["tool_name"] == "Bash"]
    assert [done["is_error"] for done in own] == [True]
