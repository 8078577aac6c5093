"""Steers and follow-ups: when they take effect, in which order, and what the model receives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.daemon.held_command import HeldCommand
from tests.harness.daemon import Client, Daemon, Events, of_type, types, users
from tests.harness.stub_model import Gate, StubModel, text_reply, tool_reply

SKIPPED = "Skipped due to queued user message."


@pytest.fixture
def hold(short_folder: Path, daemon: Daemon) -> HeldCommand:
    return HeldCommand(short_folder / "work")


def messages_of(request: Any) -> list[tuple[str, Any]]:
    """Return role and content of the messages that the model received."""
    return [
        (message["role"], message["content"])
        for message in request.json["messages"]
        if message["role"] != "system"
    ]


async def pending(client: Client) -> tuple[int, int]:
    counts = (await client.request("get_state"))["pending_counts"]
    return counts["steer"], counts["follow_up"]


async def start_slowly(client: Client, events: Events, stub: StubModel) -> Gate:
    """Start a run and wait for the middle of its answer; return the gate that lets it continue."""
    gate = Gate()
    stub.script(text_reply("one ", gate, "two"))
    await client.request("prompt", text="go", wait=False)
    await events.until("message_update")
    return gate


async def test_a_steer_sent_while_the_model_writes_is_the_next_turn(
    client: Client, events: Events, stub: StubModel
) -> None:
    gate = await start_slowly(client, events, stub)
    accepted = await client.request("steer", text="turn left")
    assert accepted["command"] == "steer"
    assert await pending(client) == (1, 0)
    gate.open()
    run = await events.run()
    assert {event["payload"]["run_id"] for event in run} == {accepted["run_id"]}
    assert users(run) == [("prompt", "go"), ("steer", "turn left")]
    assert [end["text"] for end in of_type(run, "message_end")] == [
        "go",
        "one two",
        "turn left",
        "stub-reply",
    ]
    assert [turn["turn_id"] for turn in of_type(run, "turn_start")] == ["1", "2"]
    assert types(run).count("agent_start") == types(run).count("agent_end") == 1
    assert await pending(client) == (0, 0)
    assert messages_of(stub.requests[1]) == [
        ("user", "go"),
        ("assistant", "one two"),
        ("user", "turn left"),
    ]


@pytest.mark.behaviour("a_steer_skips_calls_not_yet_begun")
async def test_a_steer_during_a_tool_call_skips_the_calls_not_yet_started(
    client: Client, events: Events, stub: StubModel, hold: HeldCommand
) -> None:
    stub.script(
        tool_reply(
            ("bash", {"command": hold.text}),
            ("bash", {"command": "echo two"}),
            ("read", {"path": "three"}),
            text="calling tools",
        )
    )
    await client.request("prompt", text="go", wait=False)
    await events.until("tool_execution_start")
    steered = await client.request("steer", text="stop the tools")
    await hold.release("one")
    run = await events.run()
    assert types(run) == [
        *("agent_start", "turn_start", "message_start", "message_end"),
        *("message_start", "message_update", "status", "status", "message_end"),
        *("tool_execution_start", "tool_execution_update", "tool_execution_end"),
        *("tool_execution_start", "warning", "tool_execution_update", "tool_execution_end"),
        *("tool_execution_start", "warning", "tool_execution_update", "tool_execution_end"),
        "turn_end",
        *("turn_start", "message_start", "message_end"),
        *("message_start", "message_update", "status", "message_end", "turn_end", "agent_end"),
    ]
    assert of_type(run, "agent_end")[0]["run_id"] == steered["run_id"]
    warnings = of_type(run, "warning")
    assert {(w["code"], w["message"]) for w in warnings} == {("tool_execution_skipped", SKIPPED)}
    ran, *skipped = of_type(run, "tool_execution_end")
    assert (ran["result"], ran["is_error"], ran["executed"]) == ("one", False, True)
    for end in skipped:
        assert (end["is_error"], end["executed"]) == (True, False)
        assert end["result"] == f"tool_error: {SKIPPED}"


async def test_the_model_receives_a_result_for_every_call_before_the_steer(
    client: Client, events: Events, stub: StubModel, hold: HeldCommand
) -> None:
    stub.script(
        tool_reply(
            ("bash", {"command": hold.text}),
            ("bash", {"command": "echo two"}),
            text="now",
        )
    )
    await client.request("prompt", text="go", wait=False)
    await events.until("tool_execution_start")
    await client.request("steer", text="stop the tools")
    await hold.release("one")
    run = await events.run()
    assert len(stub.requests) == 2, "the old turn made no further model call"
    assert messages_of(stub.requests[1]) == [
        ("user", "go"),
        ("assistant", "now"),
        ("tool", "one"),
        ("tool", f"tool_error: {SKIPPED}"),
        ("user", "stop the tools"),
    ]
    _, assistant, *results, _ = stub.requests[1].json["messages"][-5:]
    assert [call["id"] for call in assistant["tool_calls"]] == [
        result["tool_call_id"] for result in results
    ]
    assert users(run) == [("prompt", "go"), ("steer", "stop the tools")]


async def test_a_steer_during_the_last_tool_call_precedes_the_next_model_call(
    client: Client, events: Events, stub: StubModel, hold: HeldCommand
) -> None:
    stub.script(tool_reply(("bash", {"command": hold.text})))
    await client.request("prompt", text="go", wait=False)
    await events.until("tool_execution_start")
    await client.request("steer", text="never mind")
    await hold.release("one")
    run = await events.run()
    assert "tool_execution_skipped" not in [w["code"] for w in of_type(run, "warning")]
    assert messages_of(stub.requests[1])[-2:] == [("tool", "one"), ("user", "never mind")]
    assert len(stub.requests) == 2


@pytest.mark.behaviour("follow_ups_wait_for_the_end_of_a_turn")
async def test_a_follow_up_skips_no_tool_calls_and_starts_after_the_turn(
    client: Client, events: Events, stub: StubModel, hold: HeldCommand
) -> None:
    stub.script(
        tool_reply(("bash", {"command": hold.text}), ("bash", {"command": "printf two"})),
        text_reply("both done"),
    )
    await client.request("prompt", text="go", wait=False)
    await events.until("tool_execution_start")
    accepted = await client.request("follow_up", text="and then this")
    assert accepted["command"] == "follow_up"
    assert await pending(client) == (0, 1)
    await hold.release("one")
    run = await events.run()
    assert [end["result"] for end in of_type(run, "tool_execution_end")] == ["one", "two"]
    assert of_type(run, "warning") == []
    assert users(run) == [("prompt", "go"), ("follow_up", "and then this")]
    assert of_type(run, "message_end")[2]["text"] == "both done"
    assert messages_of(stub.requests[2])[-2:] == [
        ("assistant", "both done"),
        ("user", "and then this"),
    ]


@pytest.mark.behaviour("steers_go_before_follow_ups")
@pytest.mark.behaviour("one_at_a_time_takes_one_text_per_turn")
@pytest.mark.behaviour("the_queue_is_in_order_of_consumption")
async def test_steers_precede_follow_ups_each_in_order_of_arrival(
    client: Client, events: Events, stub: StubModel
) -> None:
    gate = await start_slowly(client, events, stub)
    for command, text in (
        ("follow_up", "F1"),
        ("steer", "S1"),
        ("follow_up", "F2"),
        ("steer", "S2"),
    ):
        await client.request(command, text=text)
    assert await pending(client) == (2, 2)
    queued = (await client.request("get_queue"))["inputs"]
    assert [item["text"] for item in queued] == ["S1", "S2", "F1", "F2"]
    gate.open()
    run = await events.run()
    assert users(run) == [
        ("prompt", "go"),
        ("steer", "S1"),
        ("steer", "S2"),
        ("follow_up", "F1"),
        ("follow_up", "F2"),
    ]
    assert len(stub.requests) == 5


async def test_a_steer_during_a_follow_up_precedes_the_remaining_follow_ups(
    client: Client, events: Events, stub: StubModel
) -> None:
    gate, in_follow_up = await start_slowly(client, events, stub), Gate()
    await client.request("follow_up", text="F1")
    await client.request("follow_up", text="F2")
    stub.script(text_reply("on F1 ", in_follow_up, "done"))
    gate.open()
    await events.until("message_update", delta="on F1 ")
    await client.request("steer", text="S1")
    in_follow_up.open()
    assert users(await events.run())[1:] == [
        ("follow_up", "F1"),
        ("steer", "S1"),
        ("follow_up", "F2"),
    ]


@pytest.mark.behaviour("mode_all_joins_texts")
async def test_mode_all_joins_a_queue_into_one_turn(
    client: Client, events: Events, stub: StubModel
) -> None:
    await client.request("set_steering_mode", mode="all")
    await client.request("set_follow_up_mode", mode="all")
    gate = await start_slowly(client, events, stub)
    ids: dict[str, str] = {}
    for command, text in (
        ("follow_up", "F1"),
        ("follow_up", "F2"),
        ("steer", "S1"),
        ("steer", "S2"),
        ("steer", "S3"),
    ):
        ids[text] = (await client.request(command, text=text))["input_id"]
    gate.open()
    run = await events.run()
    assert users(run) == [
        ("prompt", "go"),
        ("steer", "S1\nS2\nS3"),
        ("follow_up", "F1\nF2"),
    ]
    _, steers, follow_ups = [s for s in of_type(run, "message_start") if s["role"] == "user"]
    assert steers["input_ids"] == [ids["S1"], ids["S2"], ids["S3"]]
    assert follow_ups["input_ids"] == [ids["F1"], ids["F2"]]
    entries = (await client.request("get_messages"))["messages"]
    assert [entry["text"] for entry in entries if entry["role"] == "user"] == [
        "go",
        "S1\nS2\nS3",
        "F1\nF2",
    ]


async def test_steering_mode_and_follow_up_mode_are_independent(
    client: Client, events: Events, stub: StubModel
) -> None:
    await client.request("set_follow_up_mode", mode="all")
    gate = await start_slowly(client, events, stub)
    for command, text in (
        ("follow_up", "F1"),
        ("follow_up", "F2"),
        ("steer", "S1"),
        ("steer", "S2"),
    ):
        await client.request(command, text=text)
    gate.open()
    assert users(await events.run())[1:] == [
        ("steer", "S1"),
        ("steer", "S2"),
        ("follow_up", "F1\nF2"),
    ]


@pytest.mark.parametrize("command", ["steer", "follow_up"])
async def test_steers_and_follow_ups_are_refused_without_a_run(
    command: str, client: Client
) -> None:
    error = await client.refusal(command, text="hello?")
    assert (error["code"], error["message"]) == ("command_rejected", "no_active_run")
    await client.request("prompt", text="hello")
    assert (await client.refusal(command, text="hello?"))["message"] == "no_active_run"


@pytest.mark.behaviour("expected_run_id_guards_against_the_wrong_run")
@pytest.mark.parametrize("command", ["steer", "follow_up", "abort"])
async def test_a_command_for_another_run_than_the_active_one_is_refused(
    command: str, client: Client, events: Events, stub: StubModel
) -> None:
    before = (await client.request("prompt", text="hello"))["run_id"]
    await events.run()
    gate = await start_slowly(client, events, stub)
    payload = {} if command == "abort" else {"text": "x"}
    error = await client.refusal(command, expected_run_id=before, **payload)
    assert (error["code"], error["message"]) == ("command_rejected", "run_mismatch")
    gate.open()
    run = await events.run()
    assert run[-1]["payload"]["status"] == "completed"
    assert users(run) == [("prompt", "go")]


@pytest.mark.behaviour("promote_makes_a_follow_up_a_steer")
async def test_a_promoted_follow_up_acts_as_a_steer(
    client: Client, events: Events, stub: StubModel, hold: HeldCommand
) -> None:
    stub.script(tool_reply(("bash", {"command": hold.text}), ("bash", {"command": "echo no"})))
    await client.request("prompt", text="go", wait=False)
    await events.until("tool_execution_start")
    await client.request("follow_up", text="F1")
    second = await client.request("follow_up", text="F2")
    await client.request("promote", input_id=second["input_id"])
    assert await pending(client) == (1, 1)
    assert (await client.refusal("promote", input_id=second["input_id"]))[
        "message"
    ] == "input_not_promotable"
    assert (await client.refusal("promote", input_id="in-none"))["message"] == "input_not_found"
    await hold.release("one")
    run = await events.run()
    assert users(run) == [("prompt", "go"), ("steer", "F2"), ("follow_up", "F1")]
    assert [w["code"] for w in of_type(run, "warning")] == ["tool_execution_skipped"]


@pytest.mark.behaviour("clear_queue_returns_what_it_took")
async def test_clear_queue_returns_the_inputs_and_runs_none_of_them(
    client: Client, events: Events, stub: StubModel
) -> None:
    gate = await start_slowly(client, events, stub)
    for command, text in (("follow_up", "F1"), ("steer", "S1"), ("follow_up", "F2")):
        await client.request(command, text=text)
    cleared = (await client.request("clear_queue", kind="follow_up"))["cleared"]
    assert [(item["kind"], item["text"]) for item in cleared] == [
        ("follow_up", "F1"),
        ("follow_up", "F2"),
    ]
    assert await pending(client) == (1, 0)
    gate.open()
    assert users(await events.run()) == [("prompt", "go"), ("steer", "S1")]
    assert (await client.request("clear_queue"))["cleared"] == []
