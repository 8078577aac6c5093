"""kill -9: accepted inputs survive, and the next start closes every run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.daemon.process_harness import Place, running
from tests.harness.daemon import of_type, types
from tests.harness.lifecycle import LifecycleChecker
from tests.harness.stub_model import Gate, StubModel, text_reply, tool_reply
from tests.tools.bench import lifeline


@pytest.fixture
def place(short_folder: Path, stub: StubModel) -> Place:
    return Place(short_folder, stub)


@pytest.mark.behaviour("interrupted_runs_are_closed_at_the_next_start")
@pytest.mark.behaviour("pending_inputs_survive_restarts")
@pytest.mark.slow
async def test_a_killed_run_is_closed_at_the_next_start_and_can_be_resumed(
    place: Place, stub: StubModel
) -> None:
    stub.script(text_reply("half an ", Gate(), "answer"))
    async with running(place) as process:
        events, client = await place.watch(), await place.connect()
        accepted = await client.request("prompt", text="go", wait=False)
        await events.until("message_update")
        later = await client.request("follow_up", text="later", client_message_id="m1")
        await process.kill()
    async with running(place):
        replay = await place.watch(after="evt-0", types="all")
        run = await replay.run()
        checker = LifecycleChecker()
        for event in run:
            checker.feed(json.dumps(event).encode())
        checker.finish()
        assert types(run)[-4:] == ["message_end", "entry_appended", "turn_end", "agent_end"]
        assert run[-1]["payload"]["status"] == "interrupted"
        assert of_type(run, "message_end")[-1]["text"] == "half an "
        client = await place.connect()
        state = await client.request("get_state")
        assert (state["session_id"], state["run_state"]) == (accepted["session_id"], "idle")
        assert state["pending_counts"] == {"steer": 0, "follow_up": 1}
        user, answer = (await client.request("get_messages"))["messages"]
        assert user["text"] == "go"
        assert (answer["text"], answer["stop_reason"]) == ("half an ", "interrupted")
        again = await client.request("follow_up", text="later", client_message_id="m1")
        assert again == {**later, "repeated": True}
        await client.request("resume")
        resumed = await replay.run()
        assert resumed[-1]["payload"]["status"] == "completed"
        assert [start["text"] for start in of_type(resumed, "message_start")[:1]] == ["later"]
        assert [message["content"] for message in stub.requests[1].json["messages"][1:]] == [
            *("go", "half an ", "later"),
        ]


@pytest.mark.behaviour("accepted_is_durable")
@pytest.mark.behaviour("nothing_runs_again_by_itself")
async def test_an_accepted_prompt_survives_a_kill_right_after_its_acknowledgement(
    place: Place, stub: StubModel
) -> None:
    gate = Gate()
    stub.script(text_reply(gate, "stub-reply"))
    async with running(place) as process:
        client = await place.connect()
        accepted = await client.request("prompt", text="do not lose me", wait=False)
        await process.kill()
    gate.open()
    async with running(place):
        client = await place.connect()
        texts = [m["text"] for m in (await client.request("get_messages"))["messages"]]
        queued = [item["text"] for item in (await client.request("get_queue"))["inputs"]]
        assert texts + queued == ["do not lose me"]
        [record] = (await client.request("list_runs"))["runs"]
        assert (record["run_id"], record["status"]) == (accepted["run_id"], "interrupted")
        events = await place.watch()
        await client.request("resume")
        run = await events.run()
        assert of_type(run, "message_end")[-1]["text"] == "stub-reply"


async def test_a_killed_daemon_leaves_no_process_and_runs_no_tool_twice(
    place: Place, stub: StubModel, short_folder: Path
) -> None:
    with lifeline(short_folder / "lifeline") as line:
        script = (
            f'exec 9>"{line.path}"; echo again >> log; echo ready >&9;'
            " (setsid sh -c 'echo ready >&9; sleep 1000' &); sleep 1000"
        )
        stub.script(tool_reply(("bash", {"command": script})))
        async with running(place) as process:
            client = await place.connect()
            await client.request("prompt", text="go", wait=False)
            await line.wait_ready(2)
            await process.kill()
            await line.wait_gone()
    async with running(place):
        client = await place.connect()
        *_, result = (await client.request("get_messages"))["messages"]
        assert (result["role"], result["is_error"], result["executed"]) == ("tool", True, True)
        assert result["text"] == "tool_error: interrupted"
        events = await place.watch()
        await client.request("resume")
        assert "tool_execution_start" not in types(await events.run())
        assert (place.work / "log").read_text() == "again\n"


@pytest.mark.behaviour("event_ids_only_grow")
@pytest.mark.slow
async def test_event_ids_keep_growing_after_a_kill(place: Place) -> None:
    seen = []
    for _ in range(2):
        async with running(place) as process:
            events, client = await place.watch(), await place.connect()
            await client.request("prompt", text="go")
            seen += [int(event["id"].removeprefix("evt-")) for event in await events.run()]
            await process.kill()
    assert seen == sorted(set(seen))


@pytest.mark.slow
async def test_a_stale_socket_of_a_killed_daemon_is_replaced(place: Place) -> None:
    async with running(place) as process:
        await process.kill()
    assert place.socket.exists()
    async with running(place):
        client = await place.connect()
        assert (await client.request("ping"))["message"] == "pong"


@pytest.mark.behaviour("seen_is_stored")
@pytest.mark.slow
async def test_events_that_a_client_received_survive_a_kill(place: Place, stub: StubModel) -> None:
    stub.script(text_reply(*["word "] * 2000, Gate()))
    async with running(place) as process:
        events, client = await place.watch(), await place.connect()
        await client.request("prompt", text="go", wait=False)
        seen = [await events.next() for _ in range(6)]
        await process.kill()
    async with running(place):
        replayed = await (await place.watch(after="evt-0")).run()
        assert seen[-1]["type"] == "message_update"
        assert replayed[: len(seen)] == seen
        assert len(replayed) > len(seen)


@pytest.mark.slow
async def test_a_torn_tail_of_the_log_keeps_earlier_entries_and_accepts_new_ones(
    place: Place,
) -> None:
    place.options = ("--provider", "mock")
    place.stub = None
    async with running(place) as process:
        client = await place.connect()
        await client.request("prompt", text="before")
        await client.request("prompt", text="at the tear")
        await process.kill()
    tail = place.state / "nousd.db-wal"
    with tail.open("r+b") as file:
        file.truncate(tail.stat().st_size - 30)
    async with running(place):
        client = await place.connect()
        assert (await client.request("prompt", text="after"))["status"] == "completed"
        texts = [entry["text"] for entry in (await client.request("get_messages"))["messages"]]
        assert texts[0] == "before"
        # The tear may take a whole turn; its prompt was accepted before and waits for another.
        assert {"at the tear", "after"} <= set(texts)
