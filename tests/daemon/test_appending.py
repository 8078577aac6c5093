"""Messages appended without a run: their position in the tree, and that nothing removes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from nousd.providers.interface import Provider
from nousd.wire.limits import EVENT_TEXT_BYTES_MAX
from tests.daemon.process_harness import Place, running
from tests.harness.daemon import (
    WAIT_SECONDS,
    Client,
    Daemon,
    Events,
    Payload,
    of_type,
    socket_daemon,
)
from tests.harness.stub_model import Gate, StubModel, hanging_reply, text_reply, tool_reply


@pytest.fixture
async def events(daemon: Daemon) -> Events:
    """A subscriber of everything, from the start on."""
    return await daemon.watch(types="all")


async def messages(client: Client, **wanted: Any) -> list[Payload]:
    listed: list[Payload] = (await client.request("get_messages", **wanted))["messages"]
    return listed


def texts(entries: Sequence[Payload]) -> list[str]:
    return [entry["text"] for entry in entries]


def sent_texts(stub: StubModel, request: int = -1) -> list[str]:
    """Return the user and assistant messages that the model received, without the system prompt."""
    return [
        message["content"]
        for message in stub.requests[request].json["messages"]
        if message["role"] in ("user", "assistant")
    ]


# --- without a run ---------------------------------------------------------------------------


@pytest.mark.behaviour("appended_messages_need_no_run")
async def test_appending_stores_a_message_without_starting_a_run(
    client: Client, events: Events, stub: StubModel
) -> None:
    answer = await client.request("append_message", text="hello")
    (entry,) = await messages(client)
    assert (entry["id"], entry["role"], entry["text"]) == (answer["entry_id"], "user", "hello")
    assert entry["run_id"] == ""
    assert not {"pending", "parent_id"} & entry.keys()
    state = await client.request("get_state")
    assert (state["run_state"], state["leaf_id"]) == ("idle", answer["entry_id"])
    assert state["session_id"] == answer["session_id"]
    appended = await events.until("entry_appended")
    assert appended["payload"] == {"session_id": answer["session_id"], "entry": entry}
    assert (await client.request("get_queue"))["inputs"] == []
    assert not stub.requests


async def test_each_appended_message_is_the_parent_of_the_next(client: Client) -> None:
    first = await client.request("append_message", text="one")
    second = await client.request("append_message", text="two")
    one, two = await messages(client)
    assert (one["id"], two["id"]) == (first["entry_id"], second["entry_id"])
    assert two["parent_id"] == one["id"]


async def test_the_next_run_sends_appended_messages_to_the_model(
    client: Client, stub: StubModel
) -> None:
    await client.request("append_message", text="one")
    await client.request("append_message", text="two")
    await client.request("prompt", text="three")
    assert sent_texts(stub) == ["one", "two", "three"]


async def test_resume_answers_an_appended_message(client: Client, events: Events) -> None:
    await client.request("append_message", text="one")
    await client.request("resume")
    run = await events.run()
    assert run[-1]["payload"]["status"] == "completed"
    assert [entry["role"] for entry in await messages(client)] == ["user", "assistant"]


async def test_a_full_queue_refuses_appended_messages_only_during_a_run(
    client: Client, events: Events, stub: StubModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.script(hanging_reply())
    await client.request("prompt", text="go", wait=False)
    await stub.next_request()
    await client.request("follow_up", text="later")
    monkeypatch.setattr("nousd.machine.session.queue_updates.QUEUED_INPUTS_MAX", 1)
    assert (await client.refusal("append_message", text="no"))["message"] == "queue_full"
    await client.request("abort", keep_queue=True)
    await events.run()
    await client.request("append_message", text="yes")
    assert texts(await messages(client))[-1] == "yes"


async def test_appending_to_an_unknown_session_is_refused(client: Client) -> None:
    error = await client.refusal("append_message", text="x", session_id="sess-none")
    assert error["code"] == "session_not_found"


async def test_an_appended_message_can_have_attachments(client: Client, stub: StubModel) -> None:
    file = {"data": "aGk=", "media_type": "text/plain", "name": "a.txt"}
    await client.request("append_message", text="see", attachments=[file])
    (entry,) = await messages(client)
    assert entry["attachments"][0]["name"] == "a.txt"
    await client.request("prompt", text="well?")
    assert "hi" in str(stub.requests[0].json["messages"])


# --- during a run ----------------------------------------------------------------------------


@pytest.mark.behaviour("appended_messages_wait_for_a_run")
async def test_a_message_appended_during_a_run_is_pending_until_the_run_ends(
    client: Client, events: Events, stub: StubModel
) -> None:
    gate = Gate()
    stub.script(text_reply("one ", gate, "two"))
    await client.request("prompt", text="go", wait=False)
    await events.until("message_update")
    answer = await client.request("append_message", text="by the way")
    *_, waiting = await messages(client)
    assert (waiting["id"], waiting["pending"]) == (answer["entry_id"], True)
    assert "parent_id" not in waiting
    assert (await client.request("get_state"))["pending_counts"] == {"steer": 0, "follow_up": 0}
    gate.open()
    run = await events.run()
    assert run[-1]["payload"]["status"] == "completed"
    user, reply, there = await messages(client)
    assert texts([user, reply, there]) == ["go", "one two", "by the way"]
    assert (there["id"], there["parent_id"]) == (answer["entry_id"], reply["id"])
    assert "pending" not in there
    assert len(stub.requests) == 1


@pytest.mark.behaviour("appended_messages_wait_for_a_run")
async def test_an_appended_message_joins_before_the_next_input_and_not_between_a_call_and_its_result(
    client: Client, events: Events, stub: StubModel
) -> None:
    gate = Gate()
    stub.script(tool_reply(("ls", {})), text_reply("done ", gate, "now"), text_reply("and this"))
    await client.request("prompt", text="go", wait=False)
    await events.until("tool_execution_start")
    await client.request("append_message", text="appended")
    await events.until("message_update")
    await client.request("follow_up", text="next")
    gate.open()
    await events.run()
    roles = [(entry["role"], entry["text"]) for entry in await messages(client)]
    assert [role for role, _ in roles[:4]] == ["user", "assistant", "tool", "assistant"]
    assert roles[4:] == [("user", "appended"), ("user", "next"), ("assistant", "and this")]
    assert sent_texts(stub)[-2:] == ["appended", "next"]


@pytest.mark.parametrize("long", [False, True])
async def test_the_current_and_the_next_run_send_the_whole_appended_message_to_the_model(
    long: bool, client: Client, events: Events, stub: StubModel
) -> None:
    text = "appended " * (EVENT_TEXT_BYTES_MAX if long else 1)
    gate = Gate()
    stub.script(text_reply("one ", gate, "two"))
    await client.request("prompt", text="go", wait=False)
    await events.until("message_update")
    await client.request("append_message", text=text)
    assert (await messages(client))[-1]["text"] == text
    await client.request("follow_up", text="next")
    gate.open()
    await events.run()
    assert sent_texts(stub) == ["go", "one two", text, "next"]
    await client.request("prompt", text="more")
    assert sent_texts(stub)[2] == text
    assert (await messages(client))[2]["text"] == text


@pytest.mark.behaviour("aborts_take_no_message_back")
@pytest.mark.parametrize("keep_queue", [False, True])
async def test_abort_and_clear_queue_keep_a_pending_appended_message(
    keep_queue: bool, client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(text_reply("half ", Gate(), "an answer"))
    await client.request("prompt", text="go", wait=False)
    await events.until("message_update")
    await client.request("append_message", text="stays")
    assert (await client.request("clear_queue"))["cleared"] == []
    assert (await client.request("abort", keep_queue=keep_queue))["cleared"] == []
    await events.run()
    assert texts(await messages(client)) == ["go", "half ", "stays"]


async def test_promote_refuses_an_appended_message(
    client: Client, events: Events, stub: StubModel
) -> None:
    stub.script(hanging_reply())
    await client.request("prompt", text="go", wait=False)
    await client.request("append_message", text="x")
    update = await events.until("queue_update", change="accepted")
    while update["payload"]["inputs"][0]["kind"] != "message":
        update = await events.until("queue_update", change="accepted")
    input_id = update["payload"]["inputs"][0]["input_id"]
    error = await client.refusal("promote", input_id=input_id)
    assert error["message"] == "input_not_promotable"


async def test_a_branch_appends_a_copy_of_a_pending_message_to_its_own_leaf(
    client: Client, events: Events, stub: StubModel
) -> None:
    gate = Gate()
    stub.script(text_reply("one ", gate, "two"))
    prompted = await client.request("prompt", text="go", wait=False)
    await events.until("message_update")
    appended = await client.request("append_message", text="both", client_message_id="m1")
    branch = await client.request("branch_session", session_id=prompted["session_id"])
    user, copy = await messages(client, session_id=branch["session_id"])
    assert (copy["text"], copy["parent_id"]) == ("both", user["id"])
    assert copy["id"] != appended["entry_id"]
    assert "pending" not in copy
    gate.open()
    await events.run()
    assert texts(await messages(client, session_id=branch["session_id"])) == ["go", "both"]
    parent = await messages(client, session_id=prompted["session_id"])
    assert texts(parent) == ["go", "one two", "both"]


async def test_paging_back_returns_pending_messages_first_and_then_the_path(
    client: Client, events: Events, stub: StubModel
) -> None:
    gate = Gate()
    stub.script(text_reply("one ", gate, "two"))
    await client.request("prompt", text="go", wait=False)
    await events.until("message_update")
    for text in ("first", "second"):
        await client.request("append_message", text=text)
    seen: list[str] = []
    before: Payload = {}
    while True:
        page = await client.request("get_messages", limit=1, **before)
        seen += texts(page["messages"])
        if not page["has_more"]:
            break
        before = {"before": page["before"]}
    assert seen == ["second", "first", "go"]
    assert texts(await messages(client, limit=2)) == ["first", "second"]
    assert texts(await messages(client, compacted=True)) == ["go", "first", "second"]
    gate.open()
    await events.run()
    seen = texts(
        (await client.request("get_messages", before=page["messages"][0]["id"]))["messages"]
    )
    assert seen == []


# --- over restarts ---------------------------------------------------------------------------


@pytest.mark.behaviour("appended_messages_survive_kills")
@pytest.mark.slow
async def test_a_message_appended_during_a_run_survives_a_kill_after_its_acknowledgement(
    short_folder: Path, stub: StubModel
) -> None:
    place = Place(short_folder, stub)
    stub.script(text_reply("half ", Gate(), "an answer"))
    async with running(place) as process:
        events, client = await place.watch(), await place.connect()
        await client.request("prompt", text="go", wait=False)
        await events.until("message_update")
        first = await client.request("append_message", text="kept", client_message_id="m1")
        await process.kill()
    async with running(place):
        replay, client = await place.watch(after="evt-0", types="all"), await place.connect()
        run = await replay.run()
        assert run[-1]["payload"]["status"] == "interrupted"
        user, answer, there = await messages(client)
        assert texts([user, answer, there]) == ["go", "half ", "kept"]
        assert (there["id"], there["parent_id"]) == (first["entry_id"], answer["id"])
        again = await client.request("append_message", text="kept", client_message_id="m1")
        assert again == {**first, "repeated": True}
        assert len(await messages(client)) == 3


@pytest.mark.slow
async def test_a_message_appended_without_a_run_survives_a_kill_after_its_acknowledgement(
    short_folder: Path, stub: StubModel
) -> None:
    place = Place(short_folder, stub)
    async with running(place) as process:
        client = await place.connect()
        first = await client.request("append_message", text="kept")
        await process.kill()
    async with running(place):
        client = await place.connect()
        assert [entry["id"] for entry in await messages(client)] == [first["entry_id"]]


# --- resending -------------------------------------------------------------------------------


@pytest.mark.behaviour("resending_is_idempotent")
async def test_a_resent_message_is_stored_once_even_after_a_restart(
    short_folder: Path, provider: Provider
) -> None:
    async with socket_daemon(short_folder, provider=provider) as daemon:
        client = await daemon.connect()
        first = await client.request("append_message", text="x", client_message_id="m1")
        again = await client.request("append_message", text="x", client_message_id="m1")
        assert again == {**first, "repeated": True}
    async with socket_daemon(short_folder, provider=provider) as daemon:
        client = await daemon.connect()
        again = await client.request("append_message", text="x", client_message_id="m1")
        assert again == {**first, "repeated": True}
        assert len(await messages(client)) == 1


@pytest.mark.parametrize(
    ("one", "other"), [("append_message", "prompt"), ("prompt", "append_message")]
)
async def test_append_message_and_prompt_cannot_share_a_message_id(
    one: str, other: str, client: Client
) -> None:
    await client.request(one, text="x", client_message_id="m1")
    error = await client.refusal(other, text="x", client_message_id="m1")
    assert error["message"] == "client_message_id_reused"


# --- a prompt of the same text ---------------------------------------------------------------


@pytest.mark.behaviour("appended_texts_are_not_repeated")
@pytest.mark.parametrize("text", ["hello", "hello " * EVENT_TEXT_BYTES_MAX])
async def test_reuse_appended_uses_the_appended_message_without_repeating_it(
    text: str, client: Client, events: Events, stub: StubModel
) -> None:
    appended = await client.request("append_message", text=text)
    accepted = await client.request("prompt", text=text, wait=False, reuse_appended=True)
    assert accepted["entry_id"] == appended["entry_id"]
    run = await events.run()
    start = of_type(run, "message_start")[0]
    assert (start["message_id"], start["role"]) == (appended["entry_id"], "user")
    assert (start["turn_kind"], start["input_ids"]) == ("prompt", [accepted["input_id"]])
    assert sent_texts(stub) == [text]
    assert [entry["role"] for entry in await messages(client)] == ["user", "assistant"]


async def test_reuse_appended_takes_the_last_match_and_sends_the_later_messages_too(
    client: Client, stub: StubModel
) -> None:
    for text in ("a", "b", "a", "c"):
        appended = await client.request("append_message", text=text)
        if text == "a":
            last_match = appended["entry_id"]
    accepted = await client.request("prompt", text="a", wait=False, reuse_appended=True)
    assert accepted["entry_id"] == last_match
    await stub.next_request()
    assert sent_texts(stub) == ["a", "b", "a", "c"]


@pytest.mark.parametrize("case", ["another_text", "answered", "not_asked", "a_prompt"])
async def test_a_prompt_that_cannot_reuse_a_message_adds_its_own_text(
    case: str, client: Client, stub: StubModel
) -> None:
    if case == "a_prompt":
        await client.request("prompt", text="hello")
    else:
        await client.request("append_message", text="hello")
    if case == "answered":
        await client.request("resume")
        await stub.next_request()
        with trio.fail_after(WAIT_SECONDS):
            while (await client.request("get_state"))["run_id"]:
                pass
    text = "hello!" if case == "another_text" else "hello"
    answer = await client.request("prompt", text=text, reuse_appended=case != "not_asked")
    assert answer["status"] == "completed"
    user_texts = [entry["text"] for entry in await messages(client) if entry["role"] == "user"]
    assert user_texts == ["hello", text]


@pytest.mark.behaviour("appended_texts_can_be_required")
async def test_a_prompt_that_requires_an_appended_message_starts_on_it_once(
    client: Client, stub: StubModel
) -> None:
    refused = await client.refusal("prompt", text="hello", require_appended=True)
    assert refused == {"code": "command_rejected", "message": "nothing_appended"}
    assert (await client.request("list_sessions"))["sessions"] == []
    appended = await client.request("append_message", text="hello")
    wanted = {"text": "hello", "require_appended": True, "client_message_id": "k"}
    started = await client.request("prompt", **wanted)
    assert started["status"] == "completed"
    assert (await client.request("prompt", **wanted))["run_id"] == started["run_id"]
    refused = await client.refusal("prompt", text="hello", require_appended=True)
    assert refused["message"] == "nothing_appended"
    (only,) = [entry for entry in await messages(client) if entry["role"] == "user"]
    assert only["id"] == appended["entry_id"]
    assert sent_texts(stub) == ["hello"]


async def test_reuse_appended_requires_the_same_attachments(client: Client) -> None:
    file = {"data": "aGk=", "media_type": "text/plain", "name": "a.txt"}
    other = {**file, "data": "aG8="}
    one = await client.request("append_message", text="see", attachments=[file])
    prompted = await client.request(
        "prompt", text="see", attachments=[other], reuse_appended=True, wait=False
    )
    assert "entry_id" not in prompted
    await client.request("abort")
    with trio.fail_after(WAIT_SECONDS):
        while (await client.request("get_state"))["run_state"] != "idle":
            await trio.lowlevel.checkpoint()
    two = await client.request("append_message", text="see", attachments=[file])
    again = await client.request(
        "prompt", text="see", attachments=[file], reuse_appended=True, wait=False
    )
    assert again["entry_id"] == two["entry_id"] != one["entry_id"]


@pytest.mark.slow
async def test_a_reused_message_is_not_repeated_by_resume_after_a_kill(
    short_folder: Path, stub: StubModel
) -> None:
    place = Place(short_folder, stub)
    gate = Gate()  # without it the run may be over before the kill
    stub.script(text_reply(gate, "an answer"))
    async with running(place) as process:
        client = await place.connect()
        appended = await client.request("append_message", text="hello")
        await client.request("prompt", text="hello", wait=False, reuse_appended=True)
        await process.kill()
    gate.open()
    async with running(place):
        events, client = await place.watch(), await place.connect()
        await client.request("resume")
        run = await events.run()
        assert run[-1]["payload"]["status"] == "completed"
        entries = await messages(client)
        assert [entry["id"] for entry in entries if entry["role"] == "user"] == [
            appended["entry_id"]
        ]


# --- beside a client that appends continuously -----------------------------------------------


async def append_after_each(
    method: str, daemon: Daemon, session_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Append another message after each call of that method of the store."""
    busy = await daemon.connect()
    original = getattr(daemon.services.store, method)

    async def call_and_append(*args: Any, **options: Any) -> Any:
        found = await original(*args, **options)
        await busy.request("append_message", text="more", session_id=session_id)
        return found

    monkeypatch.setattr(daemon.services.store, method, call_and_append)


async def test_a_prompt_starts_while_others_append_continuously(
    client: Client, events: Events, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = (await client.request("append_message", text="hello"))["session_id"]
    await append_after_each("path", daemon, session, monkeypatch)
    answer = await client.request("prompt", text="hello", reuse_appended=True, wait=False)
    # The daemon could not establish that the text is there already.
    assert "entry_id" not in answer
    monkeypatch.undo()
    await events.run()
    assert texts(await messages(client)).count("hello") == 2


async def test_a_resume_is_refused_while_others_append_continuously(
    client: Client, events: Events, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = (await client.request("append_message", text="hello"))["session_id"]
    await append_after_each("entry", daemon, session, monkeypatch)
    error = await client.refusal("resume", session_id=session)
    assert error["message"] == "session_changed"
    monkeypatch.undo()
    await client.request("resume", session_id=session)
    await events.run()
