"""SIGTERM: an orderly shutdown within seconds, despite connected clients and active runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from tests.daemon.process_harness import Place, running
from tests.harness.daemon import of_type, types
from tests.harness.stub_model import Gate, StubModel, text_reply, tool_reply
from tests.tools.bench import lifeline


@pytest.fixture
def place(short_folder: Path, stub: StubModel) -> Place:
    return Place(short_folder, stub)


async def test_a_stop_does_not_wait_for_idle_clients(place: Place) -> None:
    async with running(place) as process:
        idle = [await place.connect() for _ in range(3)]
        watching = [await place.watch() for _ in range(3)]
        assert (await idle[0].request("ping"))["message"] == "pong"
        assert await process.stop() == 0
        for connection in (*idle, *watching):
            with pytest.raises(EOFError):
                await connection.receive()
        assert sorted(path.name for path in place.socket.parent.iterdir()) == ["nous.sock.lock"]


@pytest.mark.slow
async def test_the_log_records_the_socket_what_runs_there_and_the_reason_for_the_stop(
    place: Place,
) -> None:
    async with running(place) as process:
        assert await process.stop() == 0
    log = [json.loads(line) for line in (place.folder / "daemon.log").read_text().splitlines()]
    assert [line["message"] for line in log if line["level"] == "info"] == [
        f"listening on {place.socket}",
        f"provider openai, model gpt-5-mini, workspace {place.work}, mode yolo, sandbox none, exec on",
        "stopping: SIGTERM",
        "stopped",
    ]


@pytest.mark.slow
async def test_a_verbose_log_records_refused_commands(short_folder: Path) -> None:
    place = Place(short_folder, options=("--verbose",))
    async with running(place) as process:
        client = await place.connect()
        await client.refusal("steer", text="too late")
        assert await process.stop() == 0
    assert "steer: no_active_run" in (place.folder / "daemon.log").read_text()


@pytest.mark.slow
async def test_a_stop_does_not_wait_for_clients_that_never_read(
    place: Place, stub: StubModel
) -> None:
    stub.script(text_reply(*["x" * 8000] * 500))
    async with running(place) as process:
        client = await place.connect()
        deaf = await trio.open_unix_socket(f"{place.socket}.events")
        events = await place.watch()
        await client.request("prompt", text="go", wait=False)
        await events.run()
        assert await process.stop() == 0
        await deaf.aclose()


@pytest.mark.slow
async def test_a_stop_during_a_run_sends_its_closing_events_and_keeps_the_queue(
    place: Place, stub: StubModel
) -> None:
    stub.script(text_reply("half an ", Gate(), "answer"))
    async with running(place) as process:
        events, client, waiting = await place.watch(), await place.connect(), await place.connect()
        request_id = await waiting.ask("prompt", text="go")
        await events.until("message_update")
        await client.request("follow_up", text="later")
        await client.request("steer", text="sooner")
        assert await process.stop() == 0
        run = await events.run()
        assert types(run)[-4:] == ["warning", "message_end", "turn_end", "agent_end"]
        assert of_type(run, "message_end")[-1]["stop_reason"] == "interrupted"
        assert run[-1]["payload"]["status"] == "interrupted"
        result = (await waiting.answer(request_id))["payload"]
        assert (result["status"], result["output"]) == ("interrupted", "half an ")
        with pytest.raises(EOFError):
            await events.next()
    async with running(place):
        client = await place.connect()
        state = await client.request("get_state")
        assert (state["run_state"], state["runs"]) == ("idle", [])
        assert state["pending_counts"] == {"steer": 1, "follow_up": 1}
        messages = (await client.request("get_messages"))["messages"]
        assert [message["text"] for message in messages] == ["go", "half an "]
        [record] = (await client.request("list_runs"))["runs"]
        assert record["status"] == "interrupted"
        assert len(stub.requests) == 1, "nothing runs again by itself"


@pytest.mark.slow
async def test_a_stop_during_a_tool_call_leaves_no_process(
    place: Place, stub: StubModel, short_folder: Path
) -> None:
    with lifeline(short_folder / "lifeline") as line:
        script = f'exec 9>"{line.path}"; echo ready >&9; sleep 1000 & sleep 1000'
        stub.script(tool_reply(("bash", {"command": script})))
        async with running(place) as process:
            events, client = await place.watch(), await place.connect()
            await client.request("prompt", text="go", wait=False)
            await line.wait_ready(1)
            assert await process.stop() == 0
            assert line.is_gone()
            run = await events.run()
            assert types(run)[-3:] == ["tool_execution_end", "turn_end", "agent_end"]
            assert run[-1]["payload"]["status"] == "interrupted"
