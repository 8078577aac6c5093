"""Failures of the model server: retries, errors, and the transcript after them."""

from __future__ import annotations

from pathlib import Path

import pytest

from nousd.providers.setup.registry import ProviderSettings, make_provider
from tests.harness.daemon import Client, Event, Events, of_type, socket_daemon, types
from tests.harness.stub_model import (
    Gate,
    Reply,
    StubModel,
    delta,
    error_reply,
    hanging_reply,
    text_reply,
)

OVERFLOW = error_reply(
    400, "This model's maximum context length is 10 tokens.", code="context_length_exceeded"
)


def codes(run: list[Event]) -> list[str]:
    return [warning["code"] for warning in of_type(run, "warning")]


async def failed_run(client: Client, events: Events) -> list[Event]:
    """Run a prompt that must fail; return its events."""
    await client.request("prompt", text="go", wait=False)
    run = await events.run()
    assert run[-1]["payload"]["status"] == "error"
    assert types(run)[-4:] == ["error", "message_end", "turn_end", "agent_end"]
    assert of_type(run, "message_end")[-1]["stop_reason"] == "error"
    return run


@pytest.mark.behaviour("failed_model_calls_are_retried_first")
async def test_a_model_call_that_fails_twice_is_retried_with_warnings(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(error_reply(500, "oops", retry_after="0"), error_reply(503, retry_after="0"))
    result = await client.request("prompt", text="go")
    assert (result["status"], result["output"]) == ("completed", "stub-reply")
    run = await events.run()
    first, second = of_type(run, "warning")
    assert first["code"] == second["code"] == "provider_retry"
    assert first["message"].startswith("openai retry attempt 1/3 after http 500")
    assert second["message"].startswith("openai retry attempt 2/3 after http 503")
    assert len(of_type(run, "message_start")) == 2, "a failed attempt without text has no message"
    assert len(stub.requests) == 3
    assert stub.requests[0].json == stub.requests[2].json


@pytest.mark.behaviour("a_failed_model_call_ends_the_run_balanced")
async def test_a_model_call_that_keeps_failing_ends_the_run_with_the_servers_message(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(*[error_reply(500, "out of coffee", retry_after="0")] * 3)
    run = await failed_run(client, events)
    assert codes(run) == ["provider_retry", "provider_retry", "provider_retry_exhausted"]
    [error] = of_type(run, "error")
    assert (error["code"], error["message"]) == (
        "provider_error",
        "provider stream returned error",
    )
    assert "out of coffee" in error["cause"]
    assert "out of coffee" in run[-1]["payload"]["error"]


@pytest.mark.parametrize("status", [400, 401, 404, 422])
async def test_a_permanent_http_error_is_not_retried(
    status: int, client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(error_reply(status, "not like this"))
    run = await failed_run(client, events)
    assert codes(run) == []
    assert "not like this" in of_type(run, "error")[0]["cause"]
    assert len(stub.requests) == 1


async def test_a_connection_dropped_before_the_response_is_retried(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(Reply(drops_at_once=True))
    result = await client.request("prompt", text="go")
    assert result["output"] == "stub-reply"
    assert codes(await events.run()) == ["provider_retry"]


async def test_a_stream_that_breaks_in_mid_text_keeps_the_text_and_is_not_retried(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(Reply((delta(content="half an "),), drops=True))
    run = await failed_run(client, events)
    assert codes(run) == []
    assert of_type(run, "message_end")[-1]["text"] == "half an "
    assert of_type(run, "error")[0]["cause"]
    answer = (await client.request("get_messages"))["messages"][-1]
    assert (answer["text"], answer["stop_reason"]) == ("half an ", "error")
    assert answer["error"] == of_type(run, "error")[0]["cause"]
    assert len(stub.requests) == 1


async def test_an_error_in_mid_stream_reports_the_servers_message(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(
        Reply((delta(content="half an "), {"error": {"message": "the cat sat on the server"}}))
    )
    run = await failed_run(client, events)
    assert "the cat sat on the server" in of_type(run, "error")[0]["cause"]
    assert of_type(run, "message_end")[-1]["text"] == "half an "


async def test_a_failed_call_without_text_leaves_an_empty_answer_that_is_never_sent(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(error_reply(400, "no"))
    run = await failed_run(client, events)
    user, answer = (await client.request("get_messages"))["messages"]
    assert user["text"] == "go"
    assert (answer["id"], answer["text"]) == (of_type(run, "message_end")[-1]["message_id"], "")
    assert "no" in answer["error"]
    await client.request("prompt", text="again")
    assert [message["content"] for message in stub.requests[1].json["messages"]] == [
        "go",
        "again",
    ]


@pytest.mark.behaviour("failed_runs_leave_inputs_pending")
async def test_a_failed_run_leaves_its_queue_pending(
    client: Client, events: Events, stub: StubModel
) -> None:
    gate = Gate()
    stub.script(Reply((delta(content="half "), gate), drops=True))
    await client.request("prompt", text="go", wait=False)
    await events.until("message_update")
    await client.request("follow_up", text="later")
    await client.request("steer", text="sooner")
    gate.open()
    run = await events.run()
    assert run[-1]["payload"]["status"] == "error"
    assert len(of_type(run, "turn_start")) == 1
    state = await client.request("get_state")
    assert state["run_state"] == "idle"
    assert state["pending_counts"] == {"steer": 1, "follow_up": 1}


async def test_a_silent_stream_fails_after_the_idle_timeout(
    short_folder: Path, stub: StubModel
) -> None:
    provider = make_provider(
        "openai", ProviderSettings(api_base=stub.api_base, idle_timeout_seconds=0.1)
    )
    async with socket_daemon(short_folder, provider=provider) as daemon:
        events, client = await daemon.watch(), await daemon.connect()
        stub.script(hanging_reply())
        run = await failed_run(client, events)
        assert "nothing for too long" in of_type(run, "error")[0]["cause"]
    await provider.aclose()


async def test_a_context_overflow_is_compacted_and_the_call_retried(
    client: Client, events: Events, stub: StubModel
) -> None:
    await client.request("prompt", text="an old question")
    await events.run()
    stub.script(OVERFLOW, text_reply("they talked"), text_reply("now it fits"))
    result = await client.request("prompt", text="a new question")
    assert (result["status"], result["output"]) == ("completed", "now it fits")
    run = await events.run()
    assert len(of_type(run, "turn_start")) == 1
    assert len(of_type(run, "message_start")) == 2
    assert of_type(run, "status")[0]["message"].startswith("compaction: trigger=overflow ")
    summary, question = [message["content"] for message in stub.requests[3].json["messages"]]
    assert "they talked" in summary
    assert question == "a new question"
    assert "an old question" in stub.requests[2].json["messages"][0]["content"]
    [compaction] = [
        entry
        for entry in (await client.request("get_messages"))["messages"]
        if entry["type"] == "compaction"
    ]
    assert (compaction["trigger"], compaction["summary"]) == ("overflow", "they talked")


async def test_a_context_overflow_after_compaction_fails_the_run(
    client: Client, events: Events, stub: StubModel
) -> None:
    await client.request("prompt", text="an old question")
    await events.run()
    stub.script(OVERFLOW, text_reply("they talked"), OVERFLOW)
    run = await failed_run(client, events)
    [error] = of_type(run, "error")
    assert error["code"] == "context_too_large"
    assert "maximum context length" in error["cause"]
    assert len(stub.requests) == 4


async def test_a_first_prompt_too_long_for_the_model_fails_its_run(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(OVERFLOW)
    run = await failed_run(client, events)
    assert of_type(run, "error")[0]["code"] == "context_too_large"
    assert len(stub.requests) == 1
