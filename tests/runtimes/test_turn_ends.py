"""Turns that an agent ends before everything about its calls is decided."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from nousd.runtimes.agents.interface import Agent, AgentCall
from tests.harness.daemon import WAIT_SECONDS, of_type
from tests.runtimes.bench import RuntimeBench, runtime_bench
from tests.runtimes.contracted import fake_codex
from tests.runtimes.scripted_adapter import ScriptedAgent
from tests.runtimes.test_agent_turn import Working

CALL = ["workspace.write", {"path": "asked", "content": "x"}]


@pytest.fixture
def agent(tmp_path: Path) -> ScriptedAgent:
    return ScriptedAgent(tmp_path / "memory")


LEAVING: dict[str, Callable[[Path], Agent]] = {"scripted": ScriptedAgent, "codex": fake_codex}
"""Programs that can end a turn while a call of theirs is open."""


async def pending(bench: RuntimeBench) -> list[object]:
    found = await bench.client.request("list_permissions")
    return list(found["pending"])


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("name", LEAVING)
@pytest.mark.parametrize("calls", [1, 3])
async def test_an_agent_that_ends_its_turn_takes_back_what_its_calls_ask(
    tmp_path: Path, name: str, calls: int
) -> None:
    agent = LEAVING[name](tmp_path / "memory")
    async with runtime_bench(tmp_path, agent, mode="ask") as bench:
        with trio.fail_after(WAIT_SECONDS):
            run = await bench.run(*[{"leave": CALL}] * calls, {"say": "done"})
        denied = of_type(run, "tool_call_denied")
        assert [(each["by"], each["reason"]) for each in denied] == [
            ("stop", "the agent ended its turn without an answer")
        ] * calls
        assert not (tmp_path / "asked").exists()
        assert len(of_type(run, "tool_execution_end")) == calls
        (end,) = of_type(run, "agent_end")
        assert end["status"] == "completed"
        assert await pending(bench) == []


async def test_an_answer_after_the_agents_turn_is_too_late(
    tmp_path: Path, agent: ScriptedAgent
) -> None:
    async with runtime_bench(tmp_path, agent, mode="ask") as bench:
        run = await bench.run({"leave": CALL})
        (denied,) = of_type(run, "tool_call_denied")
        named = {key: denied[key] for key in ("tool_call_id", "attempt", "input_hash")}
        refused = await bench.client.refusal("confirm_tool", decision="once", **named)
        assert "already_decided" in str(refused)


async def test_the_next_turn_can_ask_again(tmp_path: Path, agent: ScriptedAgent) -> None:
    async with runtime_bench(tmp_path, agent, mode="ask") as bench:
        await bench.run({"leave": CALL})
        with trio.fail_after(WAIT_SECONDS):
            await bench.start({"call": CALL})
            asked = (await bench.events.until("permission_requested"))["payload"]
            named = {key: asked[key] for key in ("tool_call_id", "attempt", "input_hash")}
            await bench.client.request("confirm_tool", decision="once", **named)
            await bench.events.run()
        assert (tmp_path / "asked").exists()


async def test_a_call_after_the_turn_is_refused_and_recorded(
    tmp_path: Path, agent: ScriptedAgent
) -> None:
    async with runtime_bench(tmp_path, agent) as bench:
        with trio.fail_after(WAIT_SECONDS):
            run = await bench.run({"late": CALL})
            if not of_type(run, "tool_call_denied"):
                await bench.events.until("tool_call_denied")
        (call,) = (await bench.client.request("list_tool_calls"))["calls"]
        assert (call["tool_name"], call["state"]) == ("workspace.write", "denied")
        found = await bench.client.request("get_events", types=["tool_call_requested"])
        (requested,) = [event["payload"] for event in found["events"]]
        assert (requested["runtime"], requested["args"]) == ("scripted", CALL[1])
        assert "run_id" not in requested
        assert not (tmp_path / "asked").exists()


async def test_calls_between_turns_are_recorded_within_a_bound() -> None:
    recorded: list[str] = []

    async def record(call: AgentCall) -> None:
        recorded.append(call.agent_call_id)

    life = Working()
    life.record_outside = record
    for number in range(30):
        call = AgentCall(agent_call_id=str(number), name="Bash", args={})
        assert (await life.refuse_outside(call)).text.startswith("no_active_run")
    assert recorded == [str(number) for number in range(20)]
