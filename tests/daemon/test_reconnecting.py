"""Reconnecting: reading the state and subscribing after its cursor misses and repeats nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from nousd.providers.interface import Provider
from tests.harness.daemon import Client, Daemon, Event, Events, of_type, socket_daemon, types
from tests.harness.stub_model import Gate, StubModel, burst_reply, text_reply


def ids(events: Sequence[Event]) -> list[str]:
    return [event["id"] for event in events]


@pytest.mark.behaviour("state_shows_the_open_message")
async def test_a_client_connecting_in_mid_message_reads_its_start_and_follows_the_rest(
    daemon: Daemon, client: Client, events: Events, stub: StubModel
) -> None:
    gate = Gate()
    stub.script(text_reply("what you ", "missed, ", gate, "and what ", "you hear"))
    await client.request("prompt", text="go", wait=False)
    start = await events.until("message_start", role="assistant")
    text = ""
    while text != "what you missed, ":
        text += (await events.until("message_update"))["payload"]["delta"]
    late = await daemon.connect()
    state = await late.request("get_state")
    assert state["open_message"] == {
        "message_id": start["payload"]["message_id"],
        "role": "assistant",
        "text": "what you missed, ",
    }
    following = await daemon.watch(after=state["cursor"])
    gate.open()
    run = await following.run(state["run_id"])
    rest = "".join(update["delta"] for update in of_type(run, "message_update"))
    assert state["open_message"]["text"] + rest == of_type(run, "message_end")[0]["text"]
    assert of_type(run, "message_start") == []
    assert "open_message" not in await late.request("get_state")


@pytest.mark.slow
@pytest.mark.behaviour("state_then_subscribe_misses_nothing")
async def test_the_state_and_the_events_after_its_cursor_form_the_whole_message(
    daemon: Daemon, client: Client, events: Events, stub: StubModel
) -> None:
    gate, some = Gate(), ["word "] * 300
    stub.script(text_reply(*some, gate, *some))
    run_id = (await client.request("prompt", text="go", wait=False))["run_id"]
    snapshots = []
    reader = await daemon.connect()
    for number in range(12):
        state = await reader.request("get_state")
        snapshots.append((state, await daemon.watch(after=state["cursor"])))
        if number == 6:
            gate.open()
    whole = of_type(await events.run(), "message_end")[-1]["text"]
    assert whole == "word " * 600
    for state, following in snapshots:
        if state["run_id"] != run_id:
            continue  # the run ended before this snapshot
        rest = await following.run(run_id)
        message = state.get("open_message", {"role": "assistant", "text": ""})
        before = message["text"] if message["role"] == "assistant" else ""
        updates = "".join(update["delta"] for update in of_type(rest, "message_update"))
        if "message_end" in types(rest):
            assert before + updates == whole
    assert snapshots[0][0]["run_id"] == run_id


async def test_a_replay_has_the_same_events_as_the_live_stream(
    daemon: Daemon, client: Client, events: Events
) -> None:
    await client.request("prompt", text="first")
    live = await events.run()
    replayed = await (await daemon.watch(after="evt-0")).run()
    assert replayed == live
    from_within = await (await daemon.watch(after=live[4]["id"])).run()
    assert from_within == live[5:]


async def test_event_ids_strictly_increase(client: Client, events: Events) -> None:
    seqs = []
    for _ in range(3):
        await client.request("prompt", text="x")
        seqs += [int(id.removeprefix("evt-")) for id in ids(await events.run())]
    assert seqs == sorted(set(seqs))


@pytest.mark.behaviour("subscribing_replays_then_follows")
async def test_a_replay_continues_into_the_live_stream_without_gap_or_repetition(
    daemon: Daemon, client: Client, stub: StubModel
) -> None:
    witness = await daemon.watch(types="all")
    stub.script(burst_reply(2000))
    run_id = (await client.request("prompt", text="go", wait=False))["run_id"]
    joined = [await daemon.watch(after="evt-0", types="all") for _ in range(6)]
    complete = ids(await witness.run(run_id))
    for late in joined:
        seen = ids(await late.run(run_id))
        assert seen[-len(complete) :] == complete
        assert len(set(seen)) == len(seen)


async def test_a_subscriber_receives_the_types_it_asks_for(daemon: Daemon, client: Client) -> None:
    everything = await daemon.watch(types="all")
    chosen = await daemon.watch(types=["entry_appended", "agent_end"])
    await client.request("prompt", text="x")
    seen = {event["type"] for event in await everything.run()}
    assert {"session_created", "queue_update", "entry_appended", "usage_reported"} <= seen
    assert {e["type"] for e in await chosen.run()} == {"entry_appended", "agent_end"}


@pytest.mark.behaviour("cursors_beyond_the_head_are_refused")
async def test_a_cursor_beyond_the_head_is_refused_and_the_connection_stays_open(
    daemon: Daemon, client: Client
) -> None:
    silent = await daemon.listen()
    await silent.send(
        {"v": "1", "id": "s9", "type": "subscribe", "payload": {"after": "evt-999999999"}}
    )
    answer = await silent.receive()
    assert (answer["id"], answer["ok"]) == ("s9", False)
    await silent.subscribe()
    await client.request("prompt", text="x")
    assert (await silent.run())[-1]["type"] == "agent_end"


@pytest.mark.parametrize("line", [b"hello\n", b"\n", b'{"v":"1","id":"x","type":"ping"}\n'])
async def test_other_input_on_the_event_socket_is_ignored(
    line: bytes, daemon: Daemon, client: Client
) -> None:
    silent = await daemon.listen()
    await silent.send(line)
    await client.request("prompt", text="x")
    assert (await silent.next())["type"] == "agent_start"


async def test_history_can_be_replayed_after_a_restart_with_the_same_ids(
    short_folder: Path, provider: Provider
) -> None:
    async with socket_daemon(short_folder, provider=provider) as daemon:
        events, client = await daemon.watch(), await daemon.connect()
        await client.request("prompt", text="first")
        before = await events.run()
    async with socket_daemon(short_folder, provider=provider) as daemon:
        replay = await daemon.watch(after="evt-0")
        assert await replay.run() == before
        client = await daemon.connect()
        await client.request("prompt", text="second")
        after = await replay.run()
        numbers = [int(id.removeprefix("evt-")) for id in ids([*before, *after])]
        assert numbers == sorted(set(numbers))


async def test_an_acknowledged_change_is_visible_to_other_clients_at_once(
    daemon: Daemon, client: Client, events: Events, stub: StubModel
) -> None:
    gate = Gate()
    stub.script(text_reply("one ", gate, "two"))
    accepted = await client.request("prompt", text="go", wait=False)
    other = await daemon.connect()
    state = await other.request("get_state")
    assert (state["run_id"], state["run_state"]) == (accepted["run_id"], "running")
    await events.until("message_update")
    queued = await client.request("follow_up", text="more")
    inputs = (await other.request("get_queue"))["inputs"]
    assert [item["input_id"] for item in inputs] == [queued["input_id"]]
    gate.open()
    await events.until("agent_end")
    assert (await other.request("get_state"))["run_state"] == "idle"
