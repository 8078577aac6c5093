"""Editing, moving and removing pending inputs: turns, revisions, restarts, extensions and tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from nousd.extensions.hooks import ChangeInput, HandleInput, InputGiven
from nousd.wire.limits import EVENT_TEXT_BYTES_MAX
from tests.daemon.hooks_bench import open_bench
from tests.daemon.scripted import ScriptedProvider, says
from tests.daemon.task_bench import hangs, task_daemon, tasks
from tests.extensions.registering import on
from tests.harness.daemon import (
    Client,
    Daemon,
    Events,
    Payload,
    socket_daemon,
    users,
)
from tests.harness.stub_model import Gate, StubModel, text_reply

NEW = "a new text"


@pytest.fixture
async def events(daemon: Daemon) -> Events:
    """A subscriber of all event types, from the start on."""
    return await daemon.watch(types="all")


class Waiting:
    """A session whose run waits for the model, and inputs that wait behind it."""

    def __init__(self, client: Client, events: Events, stub: StubModel) -> None:
        self.client, self.events, self.stub = client, events, stub
        self.gate = Gate()

    async def begin(self, *inputs: str) -> list[str]:
        """Start a run and send inputs such as ``f one``; return their ids."""
        self.stub.script(text_reply("one ", self.gate, "two"))
        await self.client.request("prompt", text="go", wait=False)
        await self.events.until("message_update")
        return [await self.send(each) for each in inputs]

    async def send(self, what: str) -> str:
        kind, _, text = what.partition(" ")
        command = {"s": "steer", "f": "follow_up"}[kind]
        input_id: str = (await self.client.request(command, text=text))["input_id"]
        return input_id

    async def texts(self) -> list[str]:
        return [each["text"] for each in (await self.client.request("get_queue"))["inputs"]]

    async def finish(self) -> list[tuple[str, str]]:
        """Let the run go on to its end; return kind and text of its turns."""
        self.gate.open()
        return users(await self.events.run())


@pytest.fixture
def waiting(client: Client, events: Events, stub: StubModel) -> Waiting:
    return Waiting(client, events, stub)


# --- what turns get --------------------------------------------------------------------------


async def test_turns_take_inputs_as_the_last_change_left_them(waiting: Waiting) -> None:
    one, two, three, _ = await waiting.begin("f one", "f two", "s three", "s four")
    client = waiting.client
    await client.request("edit_queued", input_id=two, text=NEW)
    await client.request("move_queued", input_id=two, before_input_id=one)
    await client.request("move_queued", input_id=three)
    await client.request("remove_queued", input_id=one)
    assert await waiting.texts() == ["four", "three", NEW]
    assert await waiting.finish() == [
        ("prompt", "go"),
        ("steer", "four"),
        ("steer", "three"),
        ("follow_up", NEW),
    ]


async def test_a_turn_of_the_mode_all_joins_texts_in_their_new_order(waiting: Waiting) -> None:
    one, two, three = await waiting.begin("f one", "f two", "f three")
    client = waiting.client
    await client.request("set_follow_up_mode", mode="all")
    await client.request("move_queued", input_id=three, before_input_id=one)
    await client.request("edit_queued", input_id=two, text=NEW)
    assert (await waiting.finish())[-1] == ("follow_up", f"three\none\n{NEW}")


async def test_a_promoted_input_goes_behind_all_steers_and_keeps_its_edit(waiting: Waiting) -> None:
    one, two, three = await waiting.begin("f one", "s two", "s three")
    client = waiting.client
    await client.request("edit_queued", input_id=one, text=NEW)
    await client.request("move_queued", input_id=three, before_input_id=two)
    await client.request("promote", input_id=one)
    assert await waiting.texts() == ["three", "two", NEW]


async def test_a_removed_steer_steers_no_more(waiting: Waiting) -> None:
    (one,) = await waiting.begin("s one")
    removed = await waiting.client.request("remove_queued", input_id=one)
    assert [each["text"] for each in removed["cleared"]] == ["one"]
    assert await waiting.finish() == [("prompt", "go")]


async def test_an_abort_gives_back_what_the_last_edit_left(waiting: Waiting) -> None:
    one, two = await waiting.begin("f one", "f two")
    await waiting.client.request("edit_queued", input_id=one, text=NEW)
    await waiting.client.request("move_queued", input_id=one)
    cleared = (await waiting.client.request("abort"))["cleared"]
    assert [(each["input_id"], each["text"]) for each in cleared] == [(two, "two"), (one, NEW)]


async def test_an_edited_input_keeps_its_first_acknowledgement(waiting: Waiting) -> None:
    await waiting.begin()
    sent = {"text": "one", "client_message_id": "c-1"}
    first = await waiting.client.request("follow_up", **sent)
    await waiting.client.request("edit_queued", input_id=first["input_id"], text=NEW)
    again = await waiting.client.request("follow_up", **sent)
    assert again == {**first, "repeated": True}
    assert await waiting.texts() == [NEW]


@pytest.mark.behaviour("delivered_inputs_are_not_changed")
@pytest.mark.parametrize("command", ["edit_queued", "move_queued", "remove_queued"])
async def test_a_delivered_input_is_not_changed_even_long_after(
    waiting: Waiting, command: str
) -> None:
    (one,) = await waiting.begin("f one")
    await waiting.finish()
    more = {"text": NEW} if command == "edit_queued" else {}
    error = await waiting.client.refusal(command, input_id=one, queue_revision=0, **more)
    assert (error["code"], error["message"]) == ("command_rejected", "input_delivered")
    assert "steer" in error["cause"]


# --- events and revisions --------------------------------------------------------------------


@pytest.mark.behaviour("the_queue_revision_rises_with_each_change")
async def test_every_change_is_told_with_the_next_revision(waiting: Waiting) -> None:
    one, two = await waiting.begin("f one", "f two")
    client, by = waiting.client, {"client_id": "phone"}
    edited = await client.request("edit_queued", input_id=one, text=NEW, **by)
    moved = await client.request("move_queued", input_id=two, before_input_id=one, **by)
    removed = await client.request("remove_queued", input_id=two, **by)
    answered = [each["queue_revision"] for each in (edited, moved, removed)]
    changes = [
        (await waiting.events.until("queue_update", change=change))["payload"]
        for change in ("edited", "moved", "cleared")
    ]
    assert [each["queue_revision"] for each in changes] == answered == [5, 6, 7]
    assert [each["client_id"] for each in changes] == ["phone"] * 3
    assert [each["pending_counts"]["follow_up"] for each in changes] == [2, 2, 1]
    assert changes[0]["inputs"][0]["text"] == NEW
    assert changes[1]["before_input_id"] == one
    state, queue = [await client.request(type) for type in ("get_state", "get_queue")]
    assert state["queue_revision"] == queue["queue_revision"] == 7
    await waiting.finish()
    assert (await client.request("get_state"))["queue_revision"] == 8


@pytest.mark.behaviour("a_change_of_an_older_queue_is_refused")
async def test_of_two_clients_with_one_view_only_the_first_changes_the_queue(
    daemon: Daemon, waiting: Waiting
) -> None:
    one, _ = await waiting.begin("f one", "f two")
    seen = (await waiting.client.request("get_queue"))["queue_revision"]
    other = await daemon.connect()
    await waiting.client.request("edit_queued", input_id=one, text=NEW, queue_revision=seen)
    error = await other.refusal("edit_queued", input_id=one, text="old", queue_revision=seen)
    assert (error["message"], error["details"]) == ("queue_changed", {"queue_revision": seen + 1})
    again = await other.request("edit_queued", input_id=one, text="x", queue_revision=seen + 1)
    assert again["queue_revision"] == seen + 2


async def test_an_appended_message_is_no_change_of_the_queue(waiting: Waiting) -> None:
    (one,) = await waiting.begin("f one")
    seen = (await waiting.client.request("get_queue"))["queue_revision"]
    await waiting.client.request("append_message", text="aside")
    update = (await waiting.events.until("queue_update", change="accepted"))["payload"]
    while update["inputs"][0]["kind"] != "message":
        update = (await waiting.events.until("queue_update", change="accepted"))["payload"]
    assert update["queue_revision"] == seen
    error = await waiting.client.refusal("remove_queued", input_id=update["inputs"][0]["input_id"])
    assert error["message"] == "input_not_found"
    await waiting.client.request("remove_queued", input_id=one, queue_revision=seen)


@pytest.mark.behaviour("the_queue_revision_rises_with_each_change")
async def test_changes_and_the_revision_survive_a_restart(short_folder: Path) -> None:
    async with socket_daemon(short_folder, provider=ScriptedProvider()) as daemon:
        client = await daemon.connect()
        await client.request("prompt", text="go", wait=False)
        ids = [
            (await client.request("follow_up", text=text))["input_id"] for text in ("1", "2", "3")
        ]
        await client.request("move_queued", input_id=ids[2], before_input_id=ids[0])
        await client.request("edit_queued", input_id=ids[0], text=NEW)
        before = await client.request("get_queue")
    async with socket_daemon(short_folder, provider=ScriptedProvider()) as daemon:
        client = await daemon.connect()
        after = await client.request("get_queue")
        assert [each["text"] for each in after["inputs"]] == ["3", NEW, "2"]
        assert after["inputs"] == before["inputs"]
        assert after["queue_revision"] == before["queue_revision"]
        # Without a run, too.
        seen = after["queue_revision"]
        await client.request("move_queued", input_id=ids[2], queue_revision=seen)
        removed = await client.request("remove_queued", input_id=ids[0], queue_revision=seen + 1)
        assert removed["queue_revision"] == seen + 2
        left = (await client.request("get_queue"))["inputs"]
        assert [each["text"] for each in left] == ["2", "3"]


# --- long texts and files --------------------------------------------------------------------


async def test_a_long_text_takes_the_place_of_a_short_one_and_back(waiting: Waiting) -> None:
    one, two = await waiting.begin("f one", "f two")
    long = "word " * EVENT_TEXT_BYTES_MAX
    await waiting.client.request("edit_queued", input_id=one, text=long)
    update = (await waiting.events.until("queue_update", change="edited"))["payload"]
    assert len(update["inputs"][0]["text"]) <= EVENT_TEXT_BYTES_MAX
    assert update["inputs"][0]["text_bytes"] == len(long)
    await waiting.client.request("edit_queued", input_id=two, text=long)
    await waiting.client.request("edit_queued", input_id=two, text=NEW)
    update = (await waiting.events.until("queue_update", change="edited"))["payload"]
    update = (await waiting.events.until("queue_update", change="edited"))["payload"]
    assert "text_ref" not in update["inputs"][0]
    assert await waiting.texts() == [long, NEW]
    await waiting.finish()
    said = [request.json["messages"][-1]["content"] for request in waiting.stub.requests]
    assert said[-2:] == [long, NEW]


async def test_an_edit_replaces_files_only_if_it_names_some(waiting: Waiting) -> None:
    await waiting.begin()
    file = {"media_type": "text/plain", "data": "aGk=", "name": "a.txt"}
    sent = await waiting.client.request("follow_up", text="one", attachments=[file])
    naming: Payload = {"input_id": sent["input_id"], "text": NEW}

    async def names() -> list[str]:
        (item,) = (await waiting.client.request("get_queue"))["inputs"]
        return [each["name"] for each in item.get("attachments", ())]

    await waiting.client.request("edit_queued", **naming)
    assert await names() == ["a.txt"]
    await waiting.client.request("edit_queued", **naming, attachments=[{**file, "name": "b.txt"}])
    assert await names() == ["b.txt"]
    await waiting.client.request("edit_queued", **naming, attachments=[])
    assert await names() == []


# --- extensions and tasks --------------------------------------------------------------------


async def test_extensions_are_asked_about_a_new_text(tmp_path: Path) -> None:
    seen: list[InputGiven] = []

    def hook(given: InputGiven) -> ChangeInput | HandleInput | None:
        seen.append(given)
        if given.text == "/count":
            return HandleInput("42 lines")
        return ChangeInput(given.text.upper()) if given.text == NEW else None

    async with open_bench(tmp_path, on("input", hook)) as bench:
        client = bench.client
        await client.request("prompt", text="go", wait=False)
        one = (await client.request("steer", text="one"))["input_id"]
        edited = await client.request("edit_queued", input_id=one, text=NEW)
        assert edited["command"] == "edit_queued"
        assert (seen[-1].kind, seen[-1].text) == ("steer", NEW)
        (item,) = (await client.request("get_queue"))["inputs"]
        assert (item["text"], item["changed_by"]) == (NEW.upper(), ["one"])
        handled = await client.request("edit_queued", input_id=one, text="/count")
        assert (handled["command"], handled["reply"]) == ("edit_queued", "42 lines")
        assert (await client.request("get_queue"))["inputs"] == [item]


async def test_an_input_delivered_while_an_extension_is_asked_is_not_edited(tmp_path: Path) -> None:
    asked, goes_on = trio.Event(), trio.Event()

    async def hook(given: InputGiven) -> None:
        if given.text == NEW:
            asked.set()
            await goes_on.wait()

    async with open_bench(tmp_path, on("input", hook)) as bench:
        client = bench.client
        await client.request("prompt", text="go", wait=False)
        one = (await client.request("follow_up", text="one"))["input_id"]
        edit = await client.ask("edit_queued", input_id=one, text=NEW)
        await asked.wait()
        bench.provider.answer(says("done"))
        await bench.events.until("message_start", text="one")
        goes_on.set()
        assert (await client.answer(edit))["error"]["message"] == "input_delivered"


async def test_what_waits_in_the_session_of_a_task_is_changed_too(tmp_path: Path) -> None:
    async with task_daemon(tmp_path) as bench:
        bench.on("go", tasks({"prompt": "look", "description": "d"}), says("done"))
        bench.on("look", hangs)
        await bench.start()
        session_id = (await bench.child())["session_id"]
        await bench.events.until("message_start", session_id=session_id)
        of_task = {"session_id": session_id}
        one, two = [
            (await bench.client.request("follow_up", text=text, **of_task))["input_id"]
            for text in ("one", "two")
        ]
        error = await bench.client.refusal("edit_queued", input_id=one, text=NEW)
        assert error["message"] == "input_not_found"
        await bench.client.request("edit_queued", input_id=one, text=NEW, **of_task)
        await bench.client.request("move_queued", input_id=two, before_input_id=one, **of_task)
        queue = await bench.client.request("get_queue", **of_task)
        assert [each["text"] for each in queue["inputs"]] == ["two", NEW]
        assert queue["queue_revision"] == 6
