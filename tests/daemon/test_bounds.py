"""Limits on queues, connections and unread answers; a final line without LF; disconnection."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.daemon.process_harness import Place, running
from tests.harness.daemon import Client, Daemon, Events, of_type
from tests.harness.stub_model import Gate, StubModel, text_reply

QUEUED_INPUTS_MAX = 1024
CONNECTIONS_MAX = 512


@pytest.mark.behaviour("queues_are_bounded")
@pytest.mark.slow
async def test_a_full_queue_refuses_more_and_keeps_what_it_has(
    client: Client, events: Events, stub: StubModel
) -> None:
    limits = (await client.request("get_capabilities"))["limits"]
    assert limits["queued_inputs_max"] == QUEUED_INPUTS_MAX
    stub.script(text_reply("one ", Gate(), "two"))
    await client.request("prompt", text="go", wait=False)
    await events.until("message_update")
    requests = [await client.ask("follow_up", text=f"f{n}") for n in range(QUEUED_INPUTS_MAX)]
    assert all([(await client.answer(request_id))["ok"] for request_id in requests])
    error = await client.refusal("follow_up", text="one more")
    assert (error["code"], error["message"]) == ("command_rejected", "queue_full")
    assert (await client.refusal("steer", text="one more"))["message"] == "queue_full"
    counts = (await client.request("get_state"))["pending_counts"]
    assert counts == {"steer": 0, "follow_up": QUEUED_INPUTS_MAX}
    assert len((await client.request("abort"))["cleared"]) == QUEUED_INPUTS_MAX


@pytest.mark.behaviour("connections_are_bounded")
async def test_a_connection_past_the_limit_is_refused_and_the_others_keep_working(
    short_folder: Path,
) -> None:
    place = Place(short_folder)
    async with running(place):
        clients = [await place.connect() for _ in range(CONNECTIONS_MAX)]
        for client in (clients[0], clients[-1]):
            assert (await client.request("ping"))["message"] == "pong"
        refused = await place.connect()
        answer = await refused.receive()
        assert (answer["id"], answer["error"]["message"]) == ("", "too_many_connections")
        with pytest.raises(EOFError):
            await refused.receive()
        assert (await clients[1].request("ping"))["message"] == "pong"
        await place.watch()  # the event socket counts its own connections


@pytest.mark.slow
@pytest.mark.behaviour("unread_answers_pause_reading")
async def test_unread_answers_pause_reading_from_their_client_only(
    daemon: Daemon, client: Client
) -> None:
    pings = 40_000
    line = b'{"id":"p","type":"ping"}\n'
    sent = trio.Event()

    async def send() -> None:
        await client.send(line * pings)
        sent.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await wait_all_tasks_blocked()
        assert not sent.is_set(), "the daemon goes on reading"
        other = await daemon.connect()
        assert (await other.request("ping"))["message"] == "pong"
        for _ in range(pings):
            assert (await client.receive())["type"] == "pong"
        await sent.wait()


@pytest.mark.behaviour("a_last_line_without_lf_is_answered")
async def test_a_last_line_without_a_line_feed_is_answered(client: Client) -> None:
    assert isinstance(client.stream, trio.SocketStream)
    await client.send(b'{"id":"one","type":"ping"}\n{"id":"two","type":"ping"}')
    await client.stream.send_eof()
    assert [(await client.receive())["id"], (await client.receive())["id"]] == ["one", "two"]
    with pytest.raises(EOFError):
        await client.receive()


@pytest.mark.parametrize("wait", [True, False])
async def test_a_run_outlives_the_client_that_started_it(
    wait: bool, daemon: Daemon, client: Client, events: Events, stub: StubModel
) -> None:
    gate = Gate()
    stub.script(text_reply("one ", gate, "two"))
    await client.ask("prompt", text="go", wait=wait)
    await events.until("message_update")
    await client.aclose()
    gate.open()
    run = await events.run()
    assert run[-1]["payload"]["status"] == "completed"
    assert of_type(run, "message_end")[-1]["text"] == "one two"
    other = await daemon.connect()
    assert len((await other.request("get_messages"))["messages"]) == 2


async def test_queue_update_events_report_each_change_of_the_queue(
    daemon: Daemon, client: Client, events: Events, stub: StubModel
) -> None:
    changes = await daemon.watch(types=["queue_update", "agent_end"])
    gate = Gate()
    stub.script(text_reply("one ", gate, "two"))
    await client.request("prompt", text="go", wait=False)
    await events.until("message_update")
    await client.request("follow_up", text="F1")
    later = await client.request("follow_up", text="F2")
    await client.request("promote", input_id=later["input_id"])
    await client.request("clear_queue", kind="follow_up")
    gate.open()
    updates = of_type(await changes.run(), "queue_update")
    assert [
        (update["change"], [item["text"] for item in update["inputs"]]) for update in updates
    ] == [
        ("accepted", ["go"]),
        ("consumed", ["go"]),
        ("accepted", ["F1"]),
        ("accepted", ["F2"]),
        ("promoted", ["F2"]),
        ("cleared", ["F1"]),
        ("consumed", ["F2"]),
    ]
    assert [tuple(update["pending_counts"].values()) for update in updates] == [
        *((0, 0), (0, 0), (0, 1), (0, 2), (1, 1), (1, 0), (0, 0)),
    ]
