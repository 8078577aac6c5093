"""Names of clients: who sent an input, changed the queue, or answered, as other clients see it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nousd.store.memory import store as memory
from nousd.wire.limits import NAME_CHARS_MAX
from tests.daemon.asking_bench import Bench, asking_daemon, calls, naming
from tests.daemon.scripted import ScriptedProvider
from tests.harness.daemon import Client, Daemon, Events, Payload, memory_daemon, of_type
from tests.harness.stub_model import StubModel, hanging_reply, text_reply


@pytest.fixture
async def events(daemon: Daemon) -> Events:
    """A subscriber of all event types, from the start on."""
    return await daemon.watch(types="all")


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with asking_daemon(tmp_path) as bench:
        yield bench


async def queued(events: Events, change: str) -> Payload:
    payload: Payload = (await events.until("queue_update", change=change))["payload"]
    return payload


async def begin(client: Client, stub: StubModel, **more: Any) -> str:
    stub.script(hanging_reply())
    run_id = (await client.request("prompt", text="go", wait=False, **more))["run_id"]
    assert isinstance(run_id, str)
    return run_id


def from_user(seen: list[Any], event: str) -> list[tuple[Any, Any]]:
    """Return text and name of each message of the user."""
    shown = [
        each if event == "message_start" else each["entry"]
        for each in of_type(seen, event)
        if (each if event == "message_start" else each["entry"]).get("role") == "user"
    ]
    return [(each["text"], each.get("client_id")) for each in shown]


# --- inputs ----------------------------------------------------------------------------------


@pytest.mark.behaviour("inputs_say_who_sent_them")
async def test_every_input_is_shown_with_the_name_of_its_client(
    client: Client, events: Events, stub: StubModel
) -> None:
    await begin(client, stub, client_id="desktop")
    assert (await queued(events, "accepted"))["inputs"][0]["client_id"] == "desktop"
    for type, name in (("steer", "phone"), ("follow_up", "browser"), ("append_message", "mail")):
        await client.request(type, text=type, client_id=name)
        assert (await queued(events, "accepted"))["inputs"][0]["client_id"] == name
    await client.request("follow_up", text="nobody's")
    assert "client_id" not in (await queued(events, "accepted"))["inputs"][0]
    listed = (await client.request("get_queue"))["inputs"]
    assert [each.get("client_id") for each in listed] == ["phone", "browser", None]
    cleared = (await client.request("abort"))["cleared"]
    assert [each.get("client_id") for each in cleared] == ["phone", "browser", None]


@pytest.mark.behaviour("inputs_say_who_sent_them")
async def test_a_message_and_its_entry_have_the_name_of_the_client(
    client: Client, events: Events
) -> None:
    await client.request("append_message", text="first", client_id="mail")
    await client.request("prompt", text="second", client_id="desktop")
    seen = await events.run()
    assert from_user(seen, "message_start") == [("second", "desktop")]
    assert from_user(seen, "entry_appended") == [("first", "mail"), ("second", "desktop")]
    messages = (await client.request("get_messages"))["messages"]
    sent = [each.get("client_id") for each in messages if each["role"] == "user"]
    assert sent == ["mail", "desktop"]


@pytest.mark.parametrize(("other", "shown"), [("phone", "phone"), ("desktop", None), (None, None)])
async def test_joined_inputs_have_the_name_that_all_of_them_have(
    client: Client, events: Events, stub: StubModel, other: str | None, shown: str | None
) -> None:
    stub.script(hanging_reply())
    await client.request("set_follow_up_mode", mode="all")
    await client.request("prompt", text="go", wait=False)
    # Else an early abort leaves the reply to the next run.
    await stub.next_request()
    await client.request("follow_up", text="one", client_id="phone")
    await client.request("follow_up", text="two", **({"client_id": other} if other else {}))
    await client.request("abort", keep_queue=True)
    await events.run()
    stub.script(text_reply("done"))
    await client.request("resume")
    assert from_user(await events.run(), "message_start") == [("one\ntwo", shown)]


async def test_names_survive_a_restart(tmp_path: Path) -> None:
    async with memory.open_store() as log:
        async with memory_daemon(
            workdir=tmp_path, provider=ScriptedProvider(), store=log
        ) as daemon:
            client = await daemon.connect()
            await client.request("prompt", text="go", wait=False, client_id="desktop")
            await client.request("follow_up", text="later", client_id="phone")
        async with memory_daemon(
            workdir=tmp_path, provider=ScriptedProvider(), store=log
        ) as daemon:
            client = await daemon.connect()
            inputs = (await client.request("get_queue"))["inputs"]
            messages = (await client.request("get_messages"))["messages"]
    assert [each["client_id"] for each in inputs] == ["phone"]
    assert [each.get("client_id") for each in messages if each["role"] == "user"] == ["desktop"]


async def test_a_name_is_bounded(client: Client) -> None:
    named = {"text": "hi", "client_id": "n" * NAME_CHARS_MAX}
    await client.request("append_message", **named)
    error = await client.refusal("append_message", **{**named, "client_id": "n" * 257})
    assert error["message"] == "client_id is too long: at most 256"


# --- changes and answers ---------------------------------------------------------------------


@pytest.mark.behaviour("changes_and_answers_say_who_made_them")
async def test_a_change_of_the_queue_names_who_made_it_and_keeps_who_sent_the_input(
    client: Client, events: Events, stub: StubModel
) -> None:
    await begin(client, stub)
    sent = await client.request("follow_up", text="f", client_id="browser")
    await client.request("promote", input_id=sent["input_id"], client_id="phone")
    promoted = await queued(events, "promoted")
    assert (promoted["client_id"], promoted["inputs"][0]["client_id"]) == ("phone", "browser")
    await client.request("clear_queue", client_id="desktop")
    cleared = await queued(events, "cleared")
    assert (cleared["client_id"], cleared["inputs"][0]["client_id"]) == ("desktop", "browser")


@pytest.mark.behaviour("changes_and_answers_say_who_made_them")
async def test_an_abort_and_a_resume_name_who_made_them(
    client: Client, events: Events, stub: StubModel
) -> None:
    run_id = await begin(client, stub, client_id="desktop")
    await events.until("message_start", role="user")
    await client.request("follow_up", text="f")
    error = await client.refusal("resume", client_id="browser")
    assert error["details"]["client_id"] == "desktop"
    conflict = (await events.until("run_conflict"))["payload"]
    assert conflict["client_id"] == "browser"
    await client.request("abort", expected_run_id=run_id, client_id="phone")
    assert (await events.until("run_aborting"))["payload"]["client_id"] == "phone"
    assert (await queued(events, "cleared"))["client_id"] == "phone"
    await events.run()
    stub.script(text_reply("done"))
    resumed = await client.request("resume", client_id="mail")
    assert (await events.until("agent_start"))["payload"]["client_id"] == "mail"
    record = (await client.request("get_run", run_id=resumed["run_id"]))["run"]
    assert record["client_id"] == "mail"


@pytest.mark.behaviour("changes_and_answers_say_who_made_them")
@pytest.mark.parametrize(
    ("decision", "type"), [("once", "tool_call_approved"), ("deny", "tool_call_denied")]
)
async def test_a_decision_names_who_made_it(bench: Bench, decision: str, type: str) -> None:
    request = await bench.asked()
    naming_it = naming(request, decision, client_id="phone")
    await bench.client.request("confirm_tool", **naming_it)
    assert (await bench.events.until(type))["payload"]["client_id"] == "phone"
    error = await bench.client.refusal("confirm_tool", **naming_it)
    assert (error["message"], error["details"]["client_id"]) == ("already_decided", "phone")
    await bench.events.run()
    call = await bench.client.request("get_tool_call", tool_call_id=request["tool_call_id"])
    assert call["call"]["decision"]["client_id"] == "phone"


@pytest.mark.behaviour("changes_and_answers_say_who_made_them")
@pytest.mark.parametrize(
    ("command", "payload", "type"),
    [
        ("answer_question", {"answers": [{"text": "Ada"}]}, "question_answered"),
        ("reject_question", {}, "question_rejected"),
    ],
)
async def test_the_end_of_a_question_names_who_ended_it(
    bench: Bench, command: str, payload: Payload, type: str
) -> None:
    asks = json.dumps({"questions": [{"question": "Which name?"}]})
    await bench.start(calls(("question", asks)))
    asked = (await bench.events.until("question_asked"))["payload"]
    ending = {"question_id": asked["question_id"], "client_id": "phone", **payload}
    await bench.client.request(command, **ending)
    assert (await bench.events.until(type))["payload"]["client_id"] == "phone"
    error = await bench.client.refusal(command, **ending)
    assert (error["message"], error["details"]["client_id"]) == ("already_answered", "phone")


@pytest.mark.behaviour("changes_and_answers_say_who_made_them")
async def test_a_clients_own_call_names_its_client(client: Client, events: Events) -> None:
    made = await client.request("call_tool", tool="ls", args={"path": "."}, client_id="editor")
    assert (await events.until("tool_call_requested"))["payload"]["client_id"] == "editor"
    await events.until("tool_call_completed")
    call = await client.request("get_tool_call", tool_call_id=made["tool_call_id"])
    assert call["call"]["client_id"] == "editor"
