"""Resending after a lost response: the same client message id is accepted once."""

from __future__ import annotations

from pathlib import Path

import pytest

from nousd.providers.interface import Provider
from nousd.wire.responses import Accepted
from tests.harness.daemon import Client, Daemon, Events, Payload, of_type, socket_daemon
from tests.harness.stub_model import Gate, StubModel, hanging_reply, text_reply


def resend_response(first: Payload) -> Payload:
    """Return the response to a resend of the input with this first acknowledgement."""
    return {**first, "repeated": True}


@pytest.mark.behaviour("resending_is_idempotent")
async def test_a_resent_prompt_gets_the_first_acknowledgement_and_starts_no_run(
    daemon: Daemon, client: Client, events: Events, stub: StubModel
) -> None:
    gate = Gate()
    stub.script(text_reply("one ", gate, "two"))
    first = await client.request("prompt", text="go", wait=False, client_message_id="m1")
    other = await daemon.connect()
    again = await other.request("prompt", text="go", wait=False, client_message_id="m1")
    assert again == resend_response(first)
    gate.open()
    await events.run()
    again = await other.request("prompt", text="go", wait=False, client_message_id="m1")
    assert again == resend_response(first)
    assert len(stub.requests) == 1
    assert len((await client.request("get_messages"))["messages"]) == 2


async def test_a_resent_awaited_prompt_gets_the_result_of_the_first_run(
    client: Client, stub: StubModel
) -> None:
    first = await client.request("prompt", text="go", client_message_id="m1")
    again = await client.request("prompt", text="go", client_message_id="m1")
    assert again == first
    assert len(stub.requests) == 1


@pytest.mark.behaviour("resending_is_idempotent")
async def test_a_resent_steer_is_queued_once_even_after_its_run(
    client: Client, events: Events, stub: StubModel
) -> None:
    gate = Gate()
    stub.script(text_reply("one ", gate, "two"))
    await client.request("prompt", text="go", wait=False)
    await events.until("message_update")
    first = await client.request("steer", text="left", client_message_id="m2")
    assert await client.request("steer", text="left", client_message_id="m2") == resend_response(
        first
    )
    assert (await client.request("get_state"))["pending_counts"]["steer"] == 1
    gate.open()
    run = await events.run()
    assert len(of_type(run, "turn_start")) == 2
    assert await client.request("steer", text="left", client_message_id="m2") == resend_response(
        first
    )


async def test_the_same_prompt_pipelined_twice_starts_one_run(
    client: Client, events: Events, stub: StubModel
) -> None:
    for request_id in ("a", "b"):
        await client.send(
            {
                "id": request_id,
                "type": "prompt",
                "payload": {"text": "go", "wait": False, "client_message_id": "m1"},
            }
        )
    first, second = await client.receive(), await client.receive()
    assert (first["id"], second["id"]) == ("a", "b")
    assert second["payload"] == resend_response(first["payload"])
    await events.run()
    assert len(stub.requests) == 1


async def test_the_same_prompt_from_two_connections_at_once_starts_one_run(
    daemon: Daemon, client: Client, stub: StubModel
) -> None:
    other = await daemon.connect()
    await client.request("new_session")
    requests = [
        (connection, await connection.ask("prompt", text="go", client_message_id="m1"))
        for connection in (client, other)
    ]
    answers = [(await connection.answer(id_))["payload"] for connection, id_ in requests]
    assert answers[0]["run_id"] == answers[1]["run_id"]
    assert len(stub.requests) == 1


async def test_the_same_id_in_another_session_is_another_message(
    client: Client, stub: StubModel
) -> None:
    first = await client.request("prompt", text="go", client_message_id="m1")
    await client.request("new_session")
    second = await client.request("prompt", text="go", client_message_id="m1")
    assert first["run_id"] != second["run_id"]
    assert len(stub.requests) == 2


async def test_a_client_message_id_is_remembered_across_a_restart(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    async with socket_daemon(short_folder, provider=provider) as daemon:
        events, client = await daemon.watch(), await daemon.connect()
        first = await client.request("prompt", text="go", wait=False, client_message_id="m1")
        await events.run()
    async with socket_daemon(short_folder, provider=provider) as daemon:
        client = await daemon.connect()
        again = await client.request("prompt", text="go", wait=False, client_message_id="m1")
        assert again == resend_response(first)
        assert len(stub.requests) == 1


async def test_a_follow_up_promoted_in_a_later_run_keeps_its_first_acknowledgement(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    stub.script(hanging_reply(), hanging_reply())
    follow_up = {"text": "later", "client_message_id": "m-1"}
    async with socket_daemon(short_folder, provider=provider) as daemon:
        client = await daemon.connect()
        await client.request("prompt", text="go", wait=False)
        await stub.next_request()
        first = await client.request("follow_up", **follow_up)
    async with socket_daemon(short_folder, provider=provider) as daemon:
        client = await daemon.connect()
        later = await client.request("prompt", text="go on", wait=False)
        assert later["run_id"] != first["run_id"]
        await client.request("promote", input_id=first["input_id"])
        assert await client.request("follow_up", **follow_up) == resend_response(first)


async def test_a_promoted_follow_up_resent_after_a_restart_gets_its_first_acknowledgement(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    stub.script(hanging_reply())
    follow_up = {"text": "later", "client_message_id": "m-1"}
    async with socket_daemon(short_folder, provider=provider) as daemon:
        client = await daemon.connect()
        await client.request("prompt", text="go", wait=False)
        await stub.next_request()
        first = await client.request("follow_up", **follow_up)
        await client.request("promote", input_id=first["input_id"])
    async with socket_daemon(short_folder, provider=provider) as daemon:
        client = await daemon.connect()
        assert await client.request("follow_up", **follow_up) == resend_response(first)


async def test_a_committed_input_is_not_kept_in_memory(daemon: Daemon, client: Client) -> None:
    result = await client.request("prompt", text="go", client_message_id="m1")
    live = await daemon.services.sessions.get(result["session_id"])
    assert not live.accepted


async def test_an_input_committed_during_a_lookup_stays_in_memory_until_the_lookup_ends(
    daemon: Daemon, client: Client
) -> None:
    other = await client.request("new_session")
    live = await daemon.services.sessions.get(other["session_id"])
    with live.retain_accepted():
        # The lookup read the log before the commit and continues after it.
        result = await client.request("prompt", text="go", client_message_id="m1")
        (known,) = live.accepted.values()
        # A commit handle would keep everything alive that its commit refers to.
        assert isinstance(known.reply, Accepted)
        assert known.reply.run_id == result["run_id"]
    assert not live.accepted
