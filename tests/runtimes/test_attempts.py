"""Calls that an agent asks for again, under the same id of its own, after its run was cut off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.harness.daemon import Event, Payload, of_type
from tests.runtimes.bench import WAIT_SECONDS, RuntimeBench, runtime_bench, said
from tests.runtimes.scripted_adapter import ScriptedAgent
from tests.runtimes.test_agent_processes import AgentPlace, new_session, placed, talking

READ = ["workspace.read", {"path": "notes.txt"}]
WRITE = ["workspace.write", {"path": "once", "content": "x"}]


@pytest.fixture
def agent(tmp_path: Path) -> ScriptedAgent:
    return ScriptedAgent(tmp_path / "memory")


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "notes.txt").write_text("first")
    return folder


def identity(run: list[Event]) -> tuple[str, int]:
    """Return id and attempt of the only call that was requested."""
    (requested,) = of_type(run, "tool_call_requested")
    return requested["tool_call_id"], requested["attempt"]


def named(asked: Payload) -> dict[str, Any]:
    return {key: asked[key] for key in ("tool_call_id", "attempt", "input_hash")}


async def cut_off(bench: RuntimeBench, call: list[Any]) -> list[Event]:
    """Return a run whose program made a call and then ended."""
    run = await bench.run({"again": call}, {"die": 3})
    assert of_type(run, "agent_end")[0]["status"] == "error"
    return run


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("decision", ["once", "deny"])
async def test_a_call_that_may_have_had_an_effect_is_decided_anew_as_the_next_attempt(
    workdir: Path, agent: ScriptedAgent, decision: str
) -> None:
    async with runtime_bench(workdir, agent) as bench:
        first = await cut_off(bench, WRITE)
        (workdir / "once").unlink()
        with trio.fail_after(WAIT_SECONDS):
            await bench.start({"again": WRITE}, {"say_results": True})
            asked = (await bench.events.until("permission_requested"))["payload"]
            assert "may have run before" in asked["reason"]
            await bench.client.request("confirm_tool", decision=decision, **named(asked))
            run = await bench.events.run()
        (call_id, attempt) = identity(first)
        assert (asked["tool_call_id"], asked["attempt"]) == (call_id, attempt + 1)
        assert (workdir / "once").exists() == (decision == "once")
        assert of_type(run, "agent_end")[0]["status"] == "completed"
        entries = (await bench.client.request("get_messages"))["messages"]
        assert len({entry["id"] for entry in entries}) == len(entries)


@pytest.mark.slow
async def test_a_call_that_only_reads_gets_its_stored_result(
    workdir: Path, agent: ScriptedAgent
) -> None:
    async with runtime_bench(workdir, agent) as bench:
        first = await cut_off(bench, READ)
        (workdir / "notes.txt").write_text("second")
        run = await bench.run({"again": READ}, {"say_results": True})
    (call_id, attempt) = identity(first)
    assert identity(run) == (call_id, attempt + 1)
    assert said(run) == ["first | first"]
    assert of_type(run, "tool_call_started") == []


@pytest.mark.slow
async def test_other_arguments_make_another_call(workdir: Path, agent: ScriptedAgent) -> None:
    other = ["workspace.write", {"path": "other", "content": "x"}]
    async with runtime_bench(workdir, agent) as bench:
        first = await cut_off(bench, WRITE)
        run = await bench.run({"again": other})
    assert identity(run) != identity(first)
    assert identity(run)[1] == 1
    assert (workdir / "other").exists()


async def test_a_program_may_use_an_id_again_after_a_run_that_was_completed(
    workdir: Path, agent: ScriptedAgent
) -> None:
    async with runtime_bench(workdir, agent) as bench:
        first = await bench.run({"again": READ})
        (workdir / "notes.txt").write_text("second")
        run = await bench.run({"again": READ}, {"say_results": True})
    assert identity(run)[0] != identity(first)[0]
    assert said(run) == ["second | second"]


@pytest.mark.slow
async def test_a_new_id_makes_a_new_call(workdir: Path, agent: ScriptedAgent) -> None:
    async with runtime_bench(workdir, agent) as bench:
        first = await cut_off(bench, WRITE)
        run = await bench.run({"call": WRITE})
    assert identity(run)[0] != identity(first)[0]
    assert identity(run)[1] == 1


@pytest.mark.slow
async def test_another_attempt_overlaps_other_calls_in_balance(
    workdir: Path, agent: ScriptedAgent
) -> None:
    async with runtime_bench(workdir, agent) as bench:
        await cut_off(bench, WRITE)
        with trio.fail_after(WAIT_SECONDS):
            await bench.start({"leave": READ}, {"again": WRITE}, {"die": 3})
            await bench.events.until("permission_requested")
            await bench.client.request("abort")
            run = await bench.events.run()
        assert of_type(run, "agent_end")[0]["status"] == "cancelled"
        entries = (await bench.client.request("get_messages"))["messages"]
        assert len({entry["id"] for entry in entries}) == len(entries)


@pytest.fixture
def place() -> Iterator[AgentPlace]:
    with placed(AgentPlace) as place:
        yield place


@pytest.mark.slow
async def test_a_kill_of_the_daemon_makes_the_call_another_attempt(place: AgentPlace) -> None:
    with trio.fail_after(WAIT_SECONDS):
        async with talking(place) as talk:
            session_id = await new_session(talk, place.runtime)
            await talk.start(session_id, {"again": WRITE}, {"hold": True})
            done = (await talk.events.until("tool_call_completed"))["payload"]
            await talk.process.kill()
        async with talking(place) as talk:
            # Nobody who could be asked listens.
            run = await talk.run(session_id, {"again": WRITE})
    (denied,) = of_type(run, "tool_call_denied")
    assert identity(run) == (done["tool_call_id"], 2)
    assert "may have run before" in denied["reason"]
    assert of_type(run, "agent_end")[0]["status"] == "completed"
