"""kill -9 while a call waits for approval, and right after it was approved."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.asking_bench import naming
from tests.daemon.process_harness import Place, running
from tests.harness.daemon import Client, Events, Payload, of_type, types
from tests.harness.stub_model import StubModel, text_reply, tool_reply


@pytest.fixture
def place(short_folder: Path, stub: StubModel) -> Place:
    return dataclasses.replace(Place(short_folder, stub), permission_mode="ask")


async def start_waiting_call(events: Events, client: Client, stub: StubModel, tool: str) -> Payload:
    """Start a run whose call waits for approval or for an answer, and return the request."""
    args: dict[str, dict[str, Any]] = {
        "write": {"path": "a.txt", "content": "x"},
        "question": {"questions": [{"question": "Why?"}]},
    }
    stub.script(tool_reply((tool, args[tool])))
    await client.request("prompt", text="go", wait=False)
    kind = "permission_requested" if tool == "write" else "question_asked"
    payload: Payload = (await events.until(kind))["payload"]
    return payload


@pytest.mark.behaviour("after_a_crash_what_waited_is_expired")
@pytest.mark.slow
async def test_a_request_interrupted_by_a_kill_is_expired_at_the_next_start(
    place: Place, stub: StubModel
) -> None:
    async with running(place) as process:
        events, client = await place.watch(types="all", confirms=True), await place.connect()
        request = await start_waiting_call(events, client, stub, "write")
        await process.kill()
    async with running(place):
        client = await place.connect()
        listed = await client.request("list_permissions")
        assert listed["pending"] == []
        assert listed["expired"] == [{"request": request, "by": "stop"}]
        late = await client.refusal("confirm_tool", **naming(request, "once"))
        assert late["message"] == "already_decided"
        assert late["details"] == {"decision": "denied", "by": "stop"}
        wrong = await client.refusal("confirm_tool", **{**naming(request, "once"), "attempt": 2})
        assert wrong["message"] == "attempt_mismatch"
        run = await (await place.watch(after="evt-0", types="all")).run()
        [denied] = of_type(run, "tool_call_denied")
        assert (denied["by"], denied["input_hash"]) == ("stop", request["input_hash"])
        assert not (place.work / "a.txt").exists()


@pytest.mark.slow
@pytest.mark.behaviour("what_was_allowed_stays_allowed_in_the_log")
async def test_a_kill_right_after_an_approval_keeps_it_and_runs_nothing_again(
    place: Place, stub: StubModel
) -> None:
    async with running(place) as process:
        events, client = await place.watch(types="all", confirms=True), await place.connect()
        request = await start_waiting_call(events, client, stub, "write")
        await client.request("confirm_tool", **naming(request, "always"))
        await process.kill()
    begun = (place.work / "a.txt").exists()
    async with running(place):
        client = await place.connect()
        listed = await client.request("list_permissions")
        assert (listed["pending"], listed["expired"]) == ([], [])
        assert listed["granted_everywhere"] == [request["rule"]]
        late = await client.refusal("confirm_tool", **naming(request, "deny"))
        assert late["details"] == {"decision": "approved", "by": "user"}
        run = await (await place.watch(after="evt-0", types="all")).run()
        [approved] = of_type(run, "tool_call_approved")
        assert approved["by"] == "user"
        [end] = of_type(run, "tool_execution_end")
        started = "tool_call_started" in types(run)
        assert end["executed"] == started
        assert started or not begun
        assert (place.work / "a.txt").exists() == begun


@pytest.mark.slow
async def test_a_question_interrupted_by_a_kill_is_rejected_at_the_next_start(
    place: Place, stub: StubModel
) -> None:
    async with running(place) as process:
        events, client = await place.watch(types="all", confirms=True), await place.connect()
        question = await start_waiting_call(events, client, stub, "question")
        await process.kill()
    async with running(place):
        client = await place.connect()
        assert (await client.request("list_questions"))["questions"] == []
        run = await (await place.watch(after="evt-0", types="all")).run()
        [rejected] = of_type(run, "question_rejected")
        assert (rejected["question_id"], rejected["by"]) == (question["question_id"], "stop")


async def test_a_request_survives_the_disconnection_of_all_clients(
    place: Place, stub: StubModel
) -> None:
    async with running(place):
        events, client = await place.watch(types="all", confirms=True), await place.connect()
        request = await start_waiting_call(events, client, stub, "write")
        stub.script(text_reply("done"))
        await events.aclose()
        await client.aclose()
        client = await place.connect()
        listed = await client.request("list_permissions")
        [pending] = listed["pending"]
        assert pending == request
        events = await place.watch(after=listed["cursor"], types="all")
        await client.request("confirm_tool", **naming(pending, "once"))
        run = await events.run()
        assert of_type(run, "tool_call_approved")[0]["by"] == "user"
        assert (place.work / "a.txt").read_text() == "x"
