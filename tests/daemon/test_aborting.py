"""Aborts: the work that stops, the output that is stored, and the inputs that are returned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.harness.daemon import WAIT_SECONDS, Client, Daemon, Events, of_type, types
from tests.harness.stub_model import (
    Gate,
    StubModel,
    error_reply,
    hanging_reply,
    text_reply,
    tool_reply,
)
from tests.tools.bench import Lifeline, lifeline


@pytest.fixture
def line(short_folder: Path) -> Iterator[Lifeline]:
    with lifeline(short_folder / "lifeline") as found:
        yield found


async def start(client: Client, events: Events, *, until: str = "message_update") -> None:
    await client.request("prompt", text="go", wait=False)
    await events.until(until)


@pytest.mark.behaviour("abort_keeps_partial_text")
@pytest.mark.behaviour("abort_ends_the_run_balanced")
async def test_an_abort_during_streaming_stores_the_partial_answer(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(text_reply("half an ", Gate(), "answer"))
    await start(client, events)
    await client.request("abort")
    run = await events.run()
    assert types(run)[-5:] == [
        "message_update",
        "warning",
        "message_end",
        "turn_end",
        "agent_end",
    ]
    [warning] = of_type(run, "warning")
    assert (warning["code"], warning["message"]) == ("provider_aborted", "request_aborted")
    assert of_type(run, "message_end")[-1]["stop_reason"] == "aborted"
    assert run[-1]["payload"]["status"] == "cancelled"
    assert of_type(run, "error") == []
    answer = (await client.request("get_messages"))["messages"][-1]
    assert (answer["text"], answer["stop_reason"]) == ("half an ", "aborted")


async def test_an_abort_closes_the_connection_to_the_model_server(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(text_reply("half an ", Gate(), "answer"))
    await start(client, events)
    await client.request("abort")
    with trio.fail_after(WAIT_SECONDS):
        await stub.wait_closed()


@pytest.mark.behaviour("abort_returns_what_it_cleared")
async def test_an_abort_clears_the_queue_and_returns_its_inputs(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(text_reply("half an ", Gate(), "answer"))
    await start(client, events)
    queued = await client.request("follow_up", text="later", client_message_id="ui-1")
    await client.request("steer", text="sooner")
    aborted = await client.request("abort")
    run_id = (await events.run())[-1]["payload"]["run_id"]
    assert (aborted["command"], aborted["run_id"]) == ("abort", run_id)
    sooner, later = aborted["cleared"]
    assert (sooner["kind"], sooner["text"]) == ("steer", "sooner")
    assert (later["kind"], later["text"]) == ("follow_up", "later")
    assert (later["input_id"], later["client_message_id"]) == (queued["input_id"], "ui-1")
    state = await client.request("get_state")
    assert state["pending_counts"] == {"steer": 0, "follow_up": 0}
    assert (state["run_state"], state["run_id"], state["runs"]) == ("idle", "", [])
    assert (await client.request("get_queue"))["inputs"] == []
    assert len(stub.requests) == 1


async def test_after_an_abort_no_run_is_active_and_the_next_prompt_completes(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(text_reply("half an ", Gate(), "answer"))
    await start(client, events)
    await client.request("abort")
    assert (await client.refusal("abort"))["message"] == "no_active_run"
    assert (await client.refusal("steer", text="too late"))["message"] == "no_active_run"
    assert (await client.refusal("follow_up", text="too late"))["message"] == "no_active_run"
    await events.run()
    assert (await client.refusal("abort"))["message"] == "no_active_run"
    result = await client.request("prompt", text="again")
    assert (result["status"], result["output"]) == ("completed", "stub-reply")
    assert [message["content"] for message in stub.requests[1].json["messages"]] == [
        "go",
        "half an ",
        "again",
    ]


async def test_an_abort_before_the_first_token_stores_no_answer(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(hanging_reply())
    await client.request("prompt", text="go", wait=False)
    await stub.next_request()
    await client.request("abort")
    run = await events.run()
    assert types(run) == [
        *("agent_start", "turn_start", "message_start", "message_end"),
        *("warning", "turn_end", "agent_end"),
    ]
    entries = (await client.request("get_messages"))["messages"]
    assert [entry["text"] for entry in entries] == ["go"]
    assert (await client.request("prompt", text="again"))["output"] == "stub-reply"


async def test_an_abort_ends_the_wait_for_a_retry(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(error_reply(500, "busy", retry_after="59"))
    await start(client, events, until="warning")
    await client.request("abort")
    run = await events.run()
    assert run[-1]["payload"]["status"] == "cancelled"
    assert [warning["code"] for warning in of_type(run, "warning")] == [
        "provider_retry",
        "provider_aborted",
    ]
    assert len(stub.requests) == 1


async def test_an_abort_during_compaction_cancels_the_run_and_stores_no_summary(
    client: Client, events: Events, stub: StubModel
) -> None:
    await client.request("prompt", text="an old question")
    await events.run()
    summary = Gate()
    overflow = error_reply(400, "prompt is too long", code="context_length_exceeded")
    stub.script(overflow, text_reply(summary))
    await client.request("prompt", text="go", wait=False)
    with trio.fail_after(WAIT_SECONDS):
        await summary.reached()
    await client.request("abort")
    assert (await events.run())[-1]["payload"]["status"] == "cancelled"
    assert "compaction" not in [
        entry["type"] for entry in (await client.request("get_messages"))["messages"]
    ]


@pytest.mark.behaviour("abort_kills_tools_with_their_children")
@pytest.mark.parametrize(
    "command",
    [
        "sleep 1000 & sleep 1000",
        "(setsid sleep 1000 &) ; sleep 1000",
        "trap '' TERM; sleep 1000 & while :; do sleep 1000; done",
    ],
)
@pytest.mark.slow(keep=1)
async def test_an_abort_during_a_tool_call_kills_all_its_processes(
    command: str, client: Client, events: Events, stub: StubModel, line: Lifeline
) -> None:
    script = f'exec 9>"{line.path}"; echo ready >&9; {command}'
    stub.script(tool_reply(("bash", {"command": script}), ("bash", {"command": "echo never"})))
    await start(client, events, until="tool_execution_start")
    await line.wait_ready(1)
    await client.request("abort")
    run = await events.run()
    assert line.is_gone(), "a process of the command outlived the end of its run"
    assert types(run)[-3:] == ["tool_execution_end", "turn_end", "agent_end"]
    [end] = of_type(run, "tool_execution_end")
    assert (end["is_error"], end["executed"]) == (True, True)
    assert end["result"] == "tool_error: aborted"
    assert run[-1]["payload"]["status"] == "cancelled"


async def test_after_an_abort_during_a_tool_call_the_model_receives_a_result_for_every_call(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(
        tool_reply(("bash", {"command": "sleep 1000"}), ("bash", {"command": "echo never"}))
    )
    await start(client, events, until="tool_execution_start")
    await client.request("abort")
    await events.run()
    await client.request("prompt", text="what happened?")
    messages = stub.requests[1].json["messages"]
    assert [message["role"] for message in messages] == [
        *("user", "assistant", "tool", "tool", "user"),
    ]
    assert [message["content"] for message in messages[2:4]] == [
        "tool_error: aborted",
        "tool_error: interrupted",
    ]
    assert [call["id"] for call in messages[1]["tool_calls"]] == [
        message["tool_call_id"] for message in messages[2:4]
    ]


@pytest.mark.parametrize("targeted", [False, True])
async def test_another_connection_can_steer_and_abort_a_run_that_a_client_waits_for(
    targeted: bool, daemon: Daemon, client: Client, events: Events, stub: StubModel
) -> None:
    gate = Gate()
    stub.script(text_reply("one ", gate, "two"), text_reply("three ", Gate(), "four"))
    waiting = await client.ask("prompt", text="go", wait=True)
    await events.until("message_update")
    other = await daemon.connect()
    state = await other.request("get_state")
    assert state["run_state"] == "running"
    target = {"expected_run_id": state["run_id"]} if targeted else {}
    await other.request("steer", text="and then", **target)
    gate.open()
    await events.until("message_update", delta="three ")
    assert (await other.request("abort", **target))["run_id"] == state["run_id"]
    result = (await client.answer(waiting))["payload"]
    assert (result["run_id"], result["status"]) == (state["run_id"], "cancelled")
    assert result["output"] == "three "


@pytest.mark.slow
async def test_an_immediately_aborted_prompt_is_either_returned_or_stored_in_the_transcript(
    daemon: Daemon, client: Client, events: Events
) -> None:
    other = await daemon.connect()
    for number in range(30):
        text = f"prompt {number}"
        await client.ask("prompt", text=text, wait=False)
        await other.ask("abort")
        accepted, aborted = await client.receive(), await other.receive()
        assert accepted["ok"]
        run = await events.run(accepted["payload"]["run_id"])
        returned = aborted["ok"] and text in [i["text"] for i in aborted["payload"]["cleared"]]
        entries = (await client.request("get_messages"))["messages"]
        stored = text in [entry["text"] for entry in entries]
        assert returned != stored
        if aborted["ok"]:
            assert run[-1]["payload"]["status"] == "cancelled"
        if returned:
            assert types(run) == ["agent_start", "agent_end"]
