"""Resume: continue with pending inputs, or from a leaf without an answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.daemon import Client, Events, of_type, users
from tests.harness.stub_model import (
    Gate,
    Reply,
    StubModel,
    delta,
    error_reply,
    finish,
    hanging_reply,
    text_reply,
    tool_reply,
)


def messages_of(request: Any) -> list[tuple[str, Any]]:
    return [(message["role"], message["content"]) for message in request.json["messages"]]


async def fail_with_queue(client: Client, events: Events, stub: StubModel) -> None:
    """Fail a run while F1, S1 and F2 are pending."""
    gate = Gate()
    stub.script(Reply((delta(content="half "), gate), drops=True))
    await client.request("prompt", text="go", wait=False)
    await events.until("message_update")
    for command, text in (("follow_up", "F1"), ("steer", "S1"), ("follow_up", "F2")):
        await client.request(command, text=text)
    gate.open()
    await events.run()


async def test_a_failed_run_is_not_resumed_automatically(
    client: Client, events: Events, stub: StubModel
) -> None:
    await fail_with_queue(client, events, stub)
    assert (await client.request("get_state"))["run_state"] == "idle"
    queued = (await client.request("get_queue"))["inputs"]
    assert [item["text"] for item in queued] == ["S1", "F1", "F2"]
    assert len(stub.requests) == 1


@pytest.mark.behaviour("resume_runs_what_is_pending")
async def test_resume_consumes_pending_steers_before_follow_ups(
    client: Client, events: Events, stub: StubModel
) -> None:
    await fail_with_queue(client, events, stub)
    accepted = await client.request("resume")
    assert accepted["command"] == "resume"
    run = await events.run()
    assert run[-1]["payload"] == {
        "session_id": accepted["session_id"],
        "run_id": accepted["run_id"],
        "status": "completed",
    }
    assert users(run) == [("steer", "S1"), ("follow_up", "F1"), ("follow_up", "F2")]
    assert messages_of(stub.requests[1]) == [("user", "go"), ("assistant", "half "), ("user", "S1")]


async def test_a_new_prompt_is_consumed_before_inputs_left_by_an_earlier_run(
    client: Client, events: Events, stub: StubModel
) -> None:
    await fail_with_queue(client, events, stub)
    await client.request("prompt", text="something else")
    assert users(await events.run()) == [
        ("prompt", "something else"),
        ("steer", "S1"),
        ("follow_up", "F1"),
        ("follow_up", "F2"),
    ]


async def test_a_steer_left_by_an_earlier_run_does_not_interrupt_the_next_runs_tools(
    client: Client, events: Events, stub: StubModel
) -> None:
    await fail_with_queue(client, events, stub)
    stub.script(
        tool_reply(("bash", {"command": "printf a"}), ("bash", {"command": "printf b"})),
        text_reply("both done"),
    )
    await client.request("prompt", text="use tools", wait=False)
    run = await events.run()
    assert [end["result"] for end in of_type(run, "tool_execution_end")] == ["a", "b"]
    assert users(run)[:2] == [("prompt", "use tools"), ("steer", "S1")]


@pytest.mark.behaviour("resume_continues_an_unanswered_leaf")
async def test_resume_answers_a_prompt_whose_run_failed(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(error_reply(400, "no"))
    await client.request("prompt", text="go", wait=False)
    await events.run()
    await client.request("resume")
    run = await events.run()
    assert users(run) == []
    assert len(of_type(run, "turn_start")) == 1
    assert of_type(run, "message_end")[-1]["text"] == "stub-reply"
    assert messages_of(stub.requests[1]) == [("user", "go")]
    entries = (await client.request("get_messages"))["messages"]
    assert [(entry["role"], entry["text"]) for entry in entries] == [
        ("user", "go"),
        ("assistant", ""),
        ("assistant", "stub-reply"),
    ]
    assert entries[-1]["turn_kind"] == "resume"


async def test_resume_continues_an_aborted_answer(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(text_reply("half an ", Gate(), "answer"))
    await client.request("prompt", text="go", wait=False)
    await events.until("message_update")
    await client.request("abort")
    await events.run()
    await client.request("resume")
    assert (await events.run())[-1]["payload"]["status"] == "completed"
    question, half, wish = messages_of(stub.requests[1])
    assert (question, half) == (("user", "go"), ("assistant", "half an "))
    assert wish[0] == "user"


async def test_resume_continues_after_an_aborted_tool_without_running_it_again(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(tool_reply(("bash", {"command": "sleep 1000"})))
    await client.request("prompt", text="go", wait=False)
    await events.until("tool_execution_start")
    await client.request("abort")
    await events.run()
    await client.request("resume")
    run = await events.run()
    assert of_type(run, "tool_execution_start") == [], "no tool is run twice"
    assert messages_of(stub.requests[1])[-1] == ("tool", "tool_error: aborted")


@pytest.mark.behaviour("resume_needs_something_to_resume")
async def test_resume_is_refused_if_nothing_is_left_to_do(
    client: Client, events: Events, stub: StubModel
) -> None:
    await client.request("new_session")
    error = await client.refusal("resume")
    assert (error["code"], error["message"]) == ("command_rejected", "nothing_to_resume")
    await client.request("prompt", text="go")
    assert (await client.refusal("resume"))["message"] == "nothing_to_resume"
    stub.script(Reply((delta(content="long"), *finish("length"))))
    await client.request("prompt", text="go")
    assert (await client.refusal("resume"))["message"] == "nothing_to_resume"
    assert len(stub.requests) == 2


async def test_a_resumed_run_can_be_steered_and_aborted(
    client: Client, events: Events, stub: StubModel
) -> None:
    await fail_with_queue(client, events, stub)
    stub.script(hanging_reply())
    await client.request("resume")
    await events.until("message_end")
    await client.request("steer", text="S2")
    aborted = await client.request("abort")
    assert [item["text"] for item in aborted["cleared"]] == ["S2", "F1", "F2"]
    assert (await events.run())[-1]["payload"]["status"] == "cancelled"
