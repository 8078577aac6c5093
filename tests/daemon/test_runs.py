"""Runs as a client sees them, from the prompt to the end, on a model that the test controls."""

from __future__ import annotations

from tests.daemon_harness import Client, Events, types


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
        "message_update",
        "status",
        "message_end",
        "turn_end",
        "agent_end",
    ]
    assert {event["payload"]["run_id"] for event in run} == {accepted["run_id"]}
    assert run[-1]["payload"]["status"] == "completed"
    messages = (await client.request("get_messages"))["messages"]
    assert [message["text"] for message in messages] == ["hello", "stub-reply"]
