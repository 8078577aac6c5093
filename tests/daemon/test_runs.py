"""Runs as a client sees them, from the prompt to the end, with a model that the test controls."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import MockClock

from nousd.providers.interface import Provider
from tests.harness.daemon import Client, Daemon, Events, of_type, socket_daemon, types
from tests.harness.stub_model import Gate, Reply, StubModel, delta, error_reply, finish, text_reply


@pytest.mark.behaviour("runs_are_told_by_events")
async def test_a_prompt_streams_its_answer_and_ends_once(client: Client, events: Events) -> None:
    accepted = await client.request("prompt", text="hello", wait=False)
    run = await events.run()
    assert types(run) == [
        "agent_start",
        "turn_start",
        "message_start",
        "message_end",
        "message_start",
        "message_update",
        "status",
        "message_end",
        "turn_end",
        "agent_end",
    ]
    assert {event["payload"]["run_id"] for event in run} == {accepted["run_id"]}
    assert run[-1]["payload"]["status"] == "completed"
    assert "error" not in run[-1]["payload"]


async def test_events_carry_ids_roles_texts_and_usage(
    client: Client, events: Events, stub: StubModel
) -> None:
    accepted = await client.request("prompt", text="hello", wait=False, client_message_id="mine")
    run = await events.run()
    assert {event["payload"]["session_id"] for event in run} == {accepted["session_id"]}
    [start] = of_type(run, "agent_start")
    assert (start["runtime"], start["model"]) == ("native", "stub-model")
    user, assistant = of_type(run, "message_start")
    assert (user["role"], user["text"], user["turn_kind"]) == ("user", "hello", "prompt")
    assert user["input_ids"] == [accepted["input_id"]]
    assert user["client_message_id"] == "mine"
    assert assistant["role"] == "assistant"
    user_end, assistant_end = of_type(run, "message_end")
    assert user_end["text"] == "hello"
    assert assistant_end["text"] == "stub-reply"
    assert assistant_end["stop_reason"] == "stop"
    assert assistant_end["usage"] == {"input": 7, "output": 5, "total": 12}
    [usage] = of_type(run, "status")
    assert usage["message"] == "provider_usage: input=7 output=5 total=12"


@pytest.mark.behaviour("message_ids_are_entry_ids")
async def test_messages_are_stored_under_the_ids_of_their_events(
    client: Client, events: Events
) -> None:
    await client.request("prompt", text="hello", wait=False)
    ids = [start["message_id"] for start in of_type(await events.run(), "message_start")]
    messages = await client.request("get_messages")
    assert [entry["id"] for entry in messages["messages"]] == ids
    assert [entry["text"] for entry in messages["messages"]] == ["hello", "stub-reply"]
    assert messages["messages"][1]["parent_id"] == ids[0]
    assert messages["leaf_id"] == ids[1]


@pytest.mark.behaviour("wait_true_answers_the_result")
@pytest.mark.behaviour("results_carry_flat_events")
async def test_an_awaited_prompt_returns_the_output_and_the_events_of_its_run(
    client: Client, events: Events
) -> None:
    result = await client.request("prompt", text="hello")
    run = await events.run()
    assert result["output"] == "stub-reply"
    assert result["status"] == "completed"
    assert result["run_id"] == run[0]["payload"]["run_id"]
    assert "leaf_id" not in result
    flat = result["events"]
    assert [event["type"] for event in flat] == types(run)
    assert {event["run_id"] for event in flat} == {result["run_id"]}
    assert flat[1]["turn"] == 1
    [update] = [event for event in flat if event["type"] == "message_update"]
    assert update["delta"] == "stub-reply"
    assert update["id"] in {event["id"] for event in run}


async def test_a_prompt_returns_the_leaf_it_continues_from(client: Client) -> None:
    await client.request("prompt", text="first")
    leaf_id = (await client.request("get_state"))["leaf_id"]
    result = await client.request("prompt", text="second")
    assert result["leaf_id"] == leaf_id


@pytest.mark.behaviour("one_run_per_session")
@pytest.mark.parametrize("wait", [True, False])
async def test_a_second_prompt_is_refused_while_the_session_has_a_run(
    wait: bool, daemon: Daemon, client: Client, events: Events, stub: StubModel
) -> None:
    gate = Gate()
    stub.script(text_reply("slow ", gate, "answer"))
    first = await client.ask("prompt", text="first", wait=wait)
    await events.until("message_update")
    other = await daemon.connect()
    error = await other.refusal("prompt", text="second", wait=False)
    assert (error["code"], error["message"]) == ("command_rejected", "run_in_progress")
    [active] = (await other.request("get_state"))["runs"]
    shown = ("run_id", "session_id", "started_at")
    assert {name: error["details"][name] for name in shown} == {
        name: active[name] for name in shown
    }
    waited = await other.refusal("prompt", text="third")
    assert waited["message"] == "run_in_progress"
    gate.open()
    await client.answer(first)
    await events.run()
    assert len(stub.requests) == 1


@pytest.mark.behaviour("waiting_for_a_failed_run_is_provider_error")
async def test_an_awaited_run_that_fails_returns_an_error_with_its_id(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(error_reply(400, "no such thing"))
    error = await client.refusal("prompt", text="hello")
    [end] = of_type(await events.run(), "agent_end")
    assert error["code"] == "provider_error"
    assert error["message"] == "provider request failed"
    assert "no such thing" in error["cause"]
    assert error["details"] == {"run_id": end["run_id"]}
    assert end["status"] == "error"
    assert "no such thing" in end["error"]


@pytest.mark.behaviour("waiting_too_long_leaves_the_run_going")
async def test_a_command_timeout_returns_an_error_and_the_run_continues(
    short_folder: Path, provider: Provider, stub: StubModel, mock_clock: MockClock
) -> None:
    async with socket_daemon(short_folder, provider=provider, command_timeout_seconds=5) as daemon:
        events, client = await daemon.watch(), await daemon.connect()
        gate = Gate()
        stub.script(text_reply("late ", gate, "but whole"))
        prompt = await client.ask("prompt", text="hello")
        await gate.reached()
        mock_clock.jump(5)
        error = (await client.answer(prompt))["error"]
        assert (error["code"], error["message"]) == ("timeout", "command timed out")
        state = await client.request("get_state")
        assert error["details"] == {"run_id": state["run_id"]}
        assert state["run_state"] == "running"
        gate.open()
        assert (await events.run())[-1]["payload"]["status"] == "completed"
        messages = (await client.request("get_messages"))["messages"]
        assert messages[-1]["text"] == "late but whole"


async def test_white_space_in_a_stream_is_preserved(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(text_reply("a", " ", "b", "\n", "\n", "c", " "))
    result = await client.request("prompt", text="hello")
    updates = of_type(await events.run(), "message_update")
    assert "".join(update["delta"] for update in updates) == "a b\n\nc "
    assert result["output"] == "a b\n\nc "
    assert (await client.request("get_messages"))["messages"][-1]["text"] == "a b\n\nc "


@pytest.mark.behaviour("reasoning_is_never_in_the_message")
async def test_reasoning_is_streamed_and_stored_apart_from_the_answer(
    daemon: Daemon, client: Client, stub: StubModel
) -> None:
    everything, frozen = await daemon.watch(types="all"), await daemon.watch()
    stub.script(
        Reply(
            (
                delta(reasoning_content="hm, "),
                delta(reasoning_content="well"),
                delta(content="42"),
                *finish(),
            )
        )
    )
    result = await client.request("prompt", text="hello")
    assert result["output"] == "42"
    run = await everything.run()
    reasoning = of_type(run, "reasoning_update")
    assert "".join(update["delta"] for update in reasoning) == "hm, well"
    [update] = of_type(run, "message_update")
    assert update["delta"] == "42"
    assert {piece["message_id"] for piece in reasoning} == {update["message_id"]}
    assert "reasoning_update" not in types(await frozen.run())
    answer = (await client.request("get_messages"))["messages"][-1]
    assert (answer["text"], answer["reasoning"]) == ("42", "hm, well")


async def test_an_empty_model_response_leaves_an_empty_answer(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(text_reply())
    result = await client.request("prompt", text="hello")
    assert (result["output"], result["status"]) == ("", "completed")
    [_, end] = of_type(await events.run(), "message_end")
    assert (end["text"], end["stop_reason"]) == ("", "stop")
    answer = (await client.request("get_messages"))["messages"][-1]
    assert (answer["id"], answer["role"], answer["text"]) == (end["message_id"], "assistant", "")
    stub.script(text_reply("and on"))
    assert (await client.request("prompt", text="go on"))["output"] == "and on"


async def test_an_answer_cut_by_its_length_limit_has_the_stop_reason_length(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(Reply((delta(content="half an"), *finish("length"))))
    await client.request("prompt", text="hello")
    run = await events.run()
    assert "provider_stop_reason: length" in [s["message"] for s in of_type(run, "status")]
    assert of_type(run, "message_end")[-1]["stop_reason"] == "length"


@pytest.mark.behaviour("runs_are_remembered")
async def test_a_run_can_be_read_and_listed_after_its_end(client: Client) -> None:
    result = await client.request("prompt", text="hello")
    run = (await client.request("get_run", run_id=result["run_id"]))["run"]
    assert (run["status"], run["turns"], run["session_id"]) == (
        "completed",
        1,
        result["session_id"],
    )
    assert run["usage"]["duration_ms"] >= 0
    sums = {"calls": 1, "input": 7, "output": 5, "total": 12, "unpriced_calls": 1}
    assert run["usage"] == sums | {"duration_ms": run["usage"]["duration_ms"]}
    assert run["started_at"] <= run["ended_at"]
    assert (await client.request("list_runs"))["runs"] == [run]
    error = await client.refusal("get_run", run_id="run-unknown")
    assert (error["code"], error["message"]) == ("command_rejected", "run_not_found")


@pytest.mark.behaviour("silent_subscribers_get_the_frozen_events")
async def test_a_client_that_never_subscribes_receives_only_frozen_events(
    daemon: Daemon, client: Client
) -> None:
    silent = await daemon.listen()
    result = await client.request("prompt", text="hello")
    run = await silent.run()
    assert {event["payload"]["run_id"] for event in run} == {result["run_id"]}
    assert types(run)[0] == "agent_start"
    assert set(types(run)) <= {
        "agent_start",
        "agent_end",
        "turn_start",
        "turn_end",
        "message_start",
        "message_update",
        "message_end",
        "status",
    }
