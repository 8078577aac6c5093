"""What the user sends to an agent program is consumed when the program has it, and not before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nousd.runtimes.interface import AgentHost
from nousd.store.memory import store as memory
from tests.daemon.agent_bench import AGENT, Act, AgentBench, Halting, agent_daemon, says
from tests.harness.daemon import Event, FakeClock, of_type, types, users


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[AgentBench]:
    async with agent_daemon(tmp_path) as bench:
        yield bench


async def waits_for_a_steer(host: AgentHost) -> None:
    """Take the input, then one steer inside of the same turn, and answer each."""
    await host.confirm_delivery()
    await says(host, "first")
    await host.wait_steer()
    steer = await host.take_steer()
    assert steer is not None
    assert not host.has_pending_steer()
    await steer.confirm_delivery()
    await steer.confirm_delivery()
    await says(host, f"then {steer.text}")


async def takes_nothing(_host: AgentHost) -> None:
    """End the turn without the input."""


def changes(run: list[Event]) -> list[str]:
    return [each["change"] for each in of_type(run, "queue_update")]


@pytest.mark.behaviour("inputs_of_agents_are_consumed_when_delivered")
async def test_an_input_is_consumed_when_the_agent_has_it(bench: AgentBench) -> None:
    act = Halting(takes=False)
    accepted = await bench.start(act)
    await act.waits.wait()
    await bench.events.until("queue_update", change="delivering")
    assert "message_start" not in types(list(bench.events.seen))
    (waiting,) = (await bench.client.request("get_queue"))["inputs"]
    assert waiting["input_id"] == accepted["input_id"]
    act.go_on.set()
    run = await bench.events.run()
    assert changes(run) == ["accepted", "delivering", "consumed"]
    assert users(run) == [("prompt", "go")]
    start = of_type(run, "agent_start")[0]
    assert (start["runtime"], start["runtime_version"], start["model"]) == (AGENT, "1.2.3", "")
    entries = (await bench.client.request("get_messages"))["messages"]
    assert [entry["text"] for entry in entries] == ["go", "late"]


async def test_an_input_that_is_being_delivered_cannot_be_changed(bench: AgentBench) -> None:
    first, second = Halting(takes=True), Halting(takes=False)
    await bench.start(first, second)
    await first.waits.wait()
    sent = await bench.client.request("follow_up", text="more")
    first.go_on.set()
    await second.waits.wait()
    named = {"input_id": sent["input_id"], "session_id": bench.session_id}
    for command, more in (
        ("remove_queued", {}),
        ("edit_queued", {"text": "else"}),
        ("move_queued", {}),
    ):
        refused = await bench.client.refusal(command, **named, **more)
        assert refused["message"] == "input_delivered"
    assert (await bench.client.refusal("promote", **named))["message"] == "input_not_promotable"
    assert (await bench.client.request("clear_queue"))["cleared"] == []
    second.go_on.set()
    assert users(await bench.events.run()) == [("prompt", "go"), ("follow_up", "more")]


@pytest.mark.behaviour("a_steer_can_reach_an_agents_turn")
async def test_a_steer_reaches_a_running_turn(bench: AgentBench) -> None:
    await bench.start(waits_for_a_steer)
    await bench.events.until("message_end", text="first")
    await bench.client.request("steer", text="left")
    run = await bench.events.run()
    assert users(run) == [("prompt", "go"), ("steer", "left")]
    assert len(of_type(run, "turn_start")) == 1
    assert changes(run) == ["accepted", "delivering", "consumed"] * 2
    entries = (await bench.client.request("get_messages"))["messages"]
    assert [entry["text"] for entry in entries] == ["go", "first", "left", "then left"]


async def test_a_steer_that_was_not_delivered_in_its_turn_begins_the_next(
    bench: AgentBench,
) -> None:
    async def forgets_it(host: AgentHost) -> None:
        await host.confirm_delivery()
        await host.wait_steer()
        assert await host.take_steer() is not None

    await bench.start(forgets_it)
    await bench.events.until("message_end")
    await bench.client.request("steer", text="left")
    run = await bench.events.run()
    assert users(run) == [("prompt", "go"), ("steer", "left")]
    assert len(of_type(run, "turn_start")) == 2


@pytest.mark.parametrize("keep_queue", [False, True])
async def test_an_abort_before_the_delivery_gives_the_input_back(
    bench: AgentBench, keep_queue: bool
) -> None:
    act = Halting(takes=False)
    await bench.start(act)
    await act.waits.wait()
    answer = await bench.client.request("abort", keep_queue=keep_queue)
    assert [each["text"] for each in answer["cleared"]] == ["go"]
    run = await bench.events.run()
    assert users(run) == []
    assert of_type(run, "agent_end")[0]["status"] == "cancelled"
    assert (await bench.client.request("get_queue"))["inputs"] == []
    assert (await bench.client.request("get_messages"))["messages"] == []


async def test_an_abort_after_the_delivery_leaves_the_message(bench: AgentBench) -> None:
    act = Halting(takes=True)
    await bench.start(act)
    await act.waits.wait()
    assert (await bench.client.request("abort"))["cleared"] == []
    run = await bench.events.run()
    assert users(run) == [("prompt", "go")]
    assert of_type(run, "agent_end")[0]["status"] == "cancelled"
    entries = (await bench.client.request("get_messages"))["messages"]
    assert [entry["text"] for entry in entries] == ["go"]


async def test_a_turn_that_ends_without_its_input_fails_the_run_once(bench: AgentBench) -> None:
    await bench.start(takes_nothing)
    run = await bench.events.run()
    assert of_type(run, "error")[0]["code"] == "input_not_delivered"
    (waiting,) = (await bench.client.request("get_queue"))["inputs"]
    assert waiting["text"] == "go"
    await bench.client.request("resume")
    assert users(await bench.events.run()) == [("prompt", "go")]


async def test_a_long_text_is_delivered_whole(bench: AgentBench) -> None:
    told: list[str] = []

    async def listens(host: AgentHost) -> None:
        told.append(host.turn_text)
        await host.confirm_delivery()

    long = "long " * 60_000
    act: Act = listens
    await bench.start(act, text=long)
    run = await bench.events.run()
    assert told == [long]
    assert of_type(run, "message_start")[0]["text_bytes"] == len(long)


async def test_an_input_that_was_not_delivered_survives_a_restart(tmp_path: Path) -> None:
    clock = FakeClock()
    async with memory.open_store() as store:
        async with agent_daemon(tmp_path, store=store, clock=clock) as bench:
            act = Halting(takes=False)
            await bench.start(act)
            await act.waits.wait()
            session_id = bench.session_id
        async with agent_daemon(tmp_path, store=store, clock=clock) as bench:
            named = {"session_id": session_id}
            (waiting,) = (await bench.client.request("get_queue", **named))["inputs"]
            removable = {**named, "input_id": waiting["input_id"]}
            edited = await bench.client.request("edit_queued", **removable, text="anew")
            assert edited["command"] == "edit_queued"
            await bench.client.request("resume", **named)
            run = await bench.events.run()
    assert users(run) == [("prompt", "anew")]
    assert of_type(run, "agent_start")[0]["runtime"] == AGENT


async def test_a_promoted_follow_up_reaches_a_running_turn(bench: AgentBench) -> None:
    await bench.start(waits_for_a_steer)
    await bench.events.until("message_end", text="first")
    sent = await bench.client.request("follow_up", text="left")
    await bench.client.request("promote", input_id=sent["input_id"])
    run = await bench.events.run()
    assert users(run) == [("prompt", "go"), ("steer", "left")]
    assert len(of_type(run, "turn_start")) == 1
