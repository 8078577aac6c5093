"""Reconnecting: read the state, subscribe after its cursor, and nothing is missed or doubled."""

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
async def test_a_client_that_comes_in_mid_text_reads_the_beginning_and_hears_the_rest(
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
    told = "".join(update["delta"] for update in of_type(run, "message_update"))
    assert state["open_message"]["text"] + told == of_type(run, "message_end")[0]["text"]
    assert of_type(run, "message_start") == []
    assert "open_message" not in await late.request("get_state")


@pytest.mark.behaviour("state_then_subscribe_misses_nothing")
async def test_the_state_and_what_follows_its_cursor_agree_at_every_moment_of_a_stream(
    daemon: Daemon, client: Client, events: Events, stub: StubModel
) -> None:
    gate, some = Gate(), ["word "] * 300
    stub.script(text_reply(*some, gate, *some))
    run_id = (await client.request("prompt", text="go", wait=False))["run_id"]
    looks = []
    reader = await daemon.connect()
    for number in range(12):
        state = await reader.request("get_state")
        looks.append((state, await daemon.watch(after=state["cursor"])))
        if number == 6:
            gate.open()
    whole = of_type(await events.run(), "message_end")[-1]["text"]
    assert whole == "word " * 600
    for state, following in looks:
        if state["run_id"] != run_id:
            continue  # it was over before this look
        rest = await following.run(run_id)
        message = state.get("open_message", {"role": "assistant", "text": ""})
        before = message["text"] if message["role"] == "assistant" else ""
        updates = "".join(update["delta"] for update in of_type(rest, "message_update"))
        if "message_end" in types(rest):
            assert before + updates == whole
    assert looks[0][0]["run_id"] == run_id


async def test_a_replay_has_the_same_lines_as_the_live_stream(
    daemon: Daemon, client: Client, events: Events
) -> None:
    await client.request("prompt", text="first")
    live = await events.run()
    replayed = await (await daemon.watch(after="evt-0")).run()
    assert replayed == live
    from_within = await (await daemon.watch(after=live[4]["id"])).run()
    assert from_within == live[5:]


async def test_event_ids_only_grow(client: Client, events: Events) -> None:
    seqs = []
    for _ in range(3):
        await client.request("prompt", text="x")
        seqs += [int(id.removeprefix("evt-")) for id in ids(await events.run())]
    assert seqs == sorted(set(seqs))


@pytest.mark.behaviour("subscribing_replays_then_follows")
async def test_a_replay_goes_over_into_the_live_stream_without_a_seam(
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


async def test_all_types_are_sent_to_those_who_ask(daemon: Daemon, client: Client) -> None:
    everything = await daemon.watch(types="all")
    chosen = await daemon.watch(types=["entry_appended", "agent_end"])
    await client.request("prompt", text="x")
    seen = {event["type"] for event in await everything.run()}
    assert {"session_created", "queue_update", "entry_appended", "usage_reported"} <= seen
    assert {e["type"] for e in await chosen.run()} == {"entry_appended", "agent_end"}


@pytest.mark.behaviour("cursors_beyond_the_head_are_refused")
async def test_a_cursor_beyond_the_head_is_an_error_and_the_connection_lives(
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


async def test_an_answer_is_never_ahead_of_what_another_client_can_read(
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
