"""Texts of a megabyte: events stay small, and models and clients receive the whole text."""

from __future__ import annotations

import hashlib
import itertools
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from nousd.daemon.runs import model_inputs
from nousd.errors import ProviderError, ToolError
from nousd.machine.context.model_input import (
    AssistantMessage,
    ModelInput,
    ToolResultMessage,
    UserMessage,
)
from nousd.providers.interface import Finished, Receive, ToolCallPiece
from nousd.store.interface import Store
from nousd.store.memory import store as memory
from nousd.store.records import EventFilter
from nousd.wire.codec.envelope import encode_json
from nousd.wire.limits import DELTA_BYTES_MAX, EVENT_TEXT_BYTES_MAX, PAGE_BYTES_MAX, TEXT_CHARS_MAX
from tests.daemon.scripted import (
    Outcome,
    ScriptedProvider,
    ScriptedTool,
    asks_for_tools,
    breaks,
    fails,
    gives,
    says,
)
from tests.harness.daemon import (
    Client,
    Daemon,
    Events,
    FakeClock,
    Payload,
    memory_daemon,
    of_type,
    socket_daemon,
)

MEGABYTE = 2**20
LINE_MAX = 4 * EVENT_TEXT_BYTES_MAX
"""Room for a few beginnings of texts and the rest of the line."""


def long_text(name: str, size: int = MEGABYTE) -> str:
    words = (f"{name}-{number} " for number in itertools.count())
    text = "".join(itertools.islice(words, size // (len(name) + 2)))
    return text[:size] + "."


def pieces(text: str) -> list[str]:
    return [text[start : start + 5000] for start in range(0, len(text), 5000)]


def ref_of(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


class RoomyProvider(ScriptedProvider):
    """A model whose context window has room for megabytes."""

    def context_window(self, model: str) -> int:
        return 100_000_000


class Kit:
    """A daemon with a model and a tool that wait for the test."""

    def __init__(self, daemon: Daemon, model: ScriptedProvider, tool: ScriptedTool) -> None:
        self.daemon, self.model, self.tool = daemon, model, tool

    async def open(self) -> None:
        self.client: Client = await self.daemon.connect()
        self.events: Events = await self.daemon.watch(types="all")

    async def begin(self, text: str) -> None:
        await self.client.request("prompt", text=text, wait=False)
        await self.model.calls.wait_waiting()

    async def messages(self, **options: Any) -> list[Payload]:
        found: list[Payload] = (await self.client.request("get_messages", **options))["messages"]
        return found

    def user_texts(self) -> list[str]:
        """Return the user texts of the newest model call."""
        request = self.model.requests[-1]
        return [one.text for one in request.messages if isinstance(one, UserMessage)]

    async def lines(self) -> list[bytes]:
        store = self.daemon.services.store
        found = await store.events_after(0, EventFilter(), limit=10_000, bytes_max=2**40)
        return [event.line for event in found]

    async def assert_lines_are_small(self) -> None:
        for line in await self.lines():
            is_answer = b'"message_end"' in line and b'"stop_reason"' in line
            assert len(line) <= LINE_MAX or is_answer, line[:200]


@asynccontextmanager
async def open_kit(folder: Path, store: Store, clock: FakeClock) -> AsyncIterator[Kit]:
    model, tool = RoomyProvider(), ScriptedTool()
    daemon = memory_daemon(
        workdir=folder, provider=model, tools=[tool.tool], store=store, clock=clock
    )
    async with daemon as running:
        kit = Kit(running, model, tool)
        await kit.open()
        yield kit


@pytest.fixture(autouse=True)
def hashed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A jumping clock does not wait for the thread that hashes a long input."""
    monkeypatch.setattr(model_inputs, "QUICK_CHARS_MAX", 2**30)


@pytest.fixture
async def kit(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> AsyncIterator[Kit]:
    async with memory.open_store() as store, open_kit(tmp_path, store, FakeClock()) as kit:
        yield kit


@pytest.fixture
async def real_time(tmp_path: Path) -> AsyncIterator[Kit]:
    """A kit on the real clock: a jumping one does not wait for the threads that write artifacts."""
    async with memory.open_store() as store, open_kit(tmp_path, store, FakeClock()) as kit:
        yield kit


# --- inputs ----------------------------------------------------------------------------------


@pytest.mark.behaviour("long_texts_are_artifacts")
async def test_a_long_prompt_makes_small_events_and_reaches_the_model_whole(
    kit: Kit, autojump_clock: trio.testing.MockClock
) -> None:
    text = long_text("prompt")
    await kit.begin(text)
    kit.model.answer(says("done"))
    events = await kit.events.run()
    assert kit.user_texts() == [text]
    await kit.assert_lines_are_small()
    beginning = text[:EVENT_TEXT_BYTES_MAX]
    inputs = [update["inputs"][0] for update in of_type(events, "queue_update")]
    start, end = of_type(events, "message_start")[0], of_type(events, "message_end")[0]
    entry = of_type(events, "entry_appended")[0]["entry"]
    for shown in (*inputs, start, end, entry):
        assert shown["text"] == beginning
        assert (shown["text_ref"], shown["text_bytes"]) == (ref_of(text), len(text))
    stored = await kit.daemon.services.store.artifact(ref_of(text))
    assert stored is not None
    assert stored.data == text.encode()


async def put(client: Client, text: str) -> str:
    """Put a text in two pieces, and return the id of its artifact."""
    data = text.encode()
    upload: Payload = {}
    middle = len(data) // 2
    for piece, final in ((data[:middle], False), (data[middle:], True)):
        sent = {"media_type": "text/plain", "data": b64encode(piece).decode(), "final": final}
        answer = await client.request("put_artifact", **sent, **upload)
        upload = {"upload_id": answer.get("upload_id", "")}
    artifact_id: str = answer["artifact_id"]
    return artifact_id


@pytest.mark.behaviour("long_texts_can_be_handed_in_as_artifacts")
@pytest.mark.slow
async def test_every_kind_of_input_can_name_its_text_as_an_artifact(real_time: Kit) -> None:
    kit = real_time
    texts = {
        kind: "\n" * 9 + kind + "ü" * TEXT_CHARS_MAX
        for kind in ("append_message", "prompt", "steer", "follow_up")
    }
    for kind, text in texts.items():
        given: Payload = {"text": text.strip()[:20], "text_ref": await put(kit.client, text)}
        assert given["text_ref"] == ref_of(text)
        await kit.client.request(kind, **given, **({"wait": False} if kind == "prompt" else {}))
        if kind == "prompt":
            await kit.model.calls.wait_waiting()
    kit.model.answer(says("one"), says("two"), says("three"))
    await kit.events.run()
    assert kit.user_texts() == list(texts.values())
    await kit.assert_lines_are_small()


async def test_a_text_resent_as_an_artifact_is_recognized_as_the_same(real_time: Kit) -> None:
    kit = real_time
    text = long_text("prompt")
    given: Payload = {"client_message_id": "m-1", "strict_resend": True, "wait": False}
    first = await kit.client.request("prompt", text=text, **given)
    ref = await put(kit.client, text)
    again = await kit.client.request("prompt", text=text[:9], text_ref=ref, **given)
    assert again == {**first, "repeated": True}
    other = await put(kit.client, text + "!")
    refused = await kit.client.refusal("prompt", text=text[:9], text_ref=other, **given)
    assert refused["message"] == "client_message_id_reused"
    kit.model.answer(says("done"))
    await kit.events.run()


@pytest.mark.behaviour("answers_have_whole_texts")
async def test_a_client_reads_long_texts_whole(
    kit: Kit, autojump_clock: trio.testing.MockClock
) -> None:
    prompt, answer = long_text("prompt"), long_text("answer")
    await kit.begin(prompt)
    kit.model.answer(says(*pieces(answer)))
    events = await kit.events.run()
    assert [entry["text"] for entry in await kit.messages()] == [prompt, answer]
    assert of_type(events, "message_end")[1]["text"] == answer
    (cut,) = [
        event["entry"]
        for event in of_type(events, "entry_appended")
        if event["entry"]["role"] == "assistant"
    ]
    assert (cut["text"], cut["text_ref"]) == (answer[:EVENT_TEXT_BYTES_MAX], ref_of(answer))
    await kit.assert_lines_are_small()


async def test_the_result_of_a_waiting_prompt_has_the_whole_answer(
    kit: Kit, autojump_clock: trio.testing.MockClock
) -> None:
    answer = long_text("answer")
    kit.model.answer(says(answer))
    assert (await kit.client.request("prompt", text="go"))["output"] == answer


@pytest.mark.parametrize("kind", ["steer", "follow_up"])
async def test_a_long_queued_text_is_shown_and_consumed_whole(
    kit: Kit, kind: str, autojump_clock: trio.testing.MockClock
) -> None:
    text = long_text(kind)
    await kit.begin("go")
    await kit.client.request(kind, text=text)
    (waiting,) = (await kit.client.request("get_queue"))["inputs"]
    assert waiting["text"] == text
    kit.model.answer(says("one"), says("two"))
    await kit.events.run()
    assert kit.user_texts() == ["go", text]
    await kit.assert_lines_are_small()


async def test_long_follow_ups_are_joined_whole(
    kit: Kit, autojump_clock: trio.testing.MockClock
) -> None:
    await kit.client.request("set_follow_up_mode", mode="all")
    # Two short texts together make a long one, too.
    texts = [long_text("first"), "second", long_text("third", 6000), long_text("fourth", 6000)]
    await kit.begin("go")
    for text in texts:
        await kit.client.request("follow_up", text=text)
    kit.model.answer(says("one"), says("two"))
    events = await kit.events.run()
    joined = "\n".join(texts)
    assert kit.user_texts() == ["go", joined]
    assert of_type(events, "message_start")[2]["text_ref"] == ref_of(joined)
    assert (await kit.messages())[2]["text"] == joined
    await kit.assert_lines_are_small()


@pytest.mark.parametrize("command", ["abort", "clear_queue"])
async def test_cleared_inputs_are_returned_whole(
    kit: Kit, command: str, autojump_clock: trio.testing.MockClock
) -> None:
    texts = [long_text("first"), "second", long_text("third")]
    await kit.begin("go")
    for text in texts:
        await kit.client.request("follow_up", text=text)
    cleared = (await kit.client.request(command))["cleared"]
    assert [queued["text"] for queued in cleared] == texts
    assert (await kit.client.request("get_queue"))["inputs"] == []
    kit.model.answer(says("done"))
    await kit.events.run()
    await kit.assert_lines_are_small()


async def test_a_long_follow_up_can_be_promoted(
    kit: Kit, autojump_clock: trio.testing.MockClock
) -> None:
    text = long_text("follow")
    await kit.begin("go")
    input_id = (await kit.client.request("follow_up", text=text))["input_id"]
    await kit.client.request("promote", input_id=input_id)
    kit.model.answer(says("one"), says("two"))
    events = await kit.events.run()
    assert kit.user_texts() == ["go", text]
    assert of_type(events, "message_start")[2]["turn_kind"] == "steer"


async def test_a_long_input_cleared_while_its_text_is_read_is_in_no_turn(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    await kit.begin("go")
    await kit.client.request("follow_up", text=long_text("gone"))
    read, let_go = trio.Event(), trio.Event()
    store = kit.daemon.services.store
    artifact = store.artifact

    async def artifact_slowly(artifact_id: str) -> Any:
        read.set()
        await let_go.wait()
        return await artifact(artifact_id)

    monkeypatch.setattr(store, "artifact", artifact_slowly)
    kit.model.answer(says("one"))
    await read.wait()  # the run has read the queue and now reads the text
    cleared = await kit.client.ask("clear_queue")
    await kit.events.until("queue_update", change="cleared")
    let_go.set()
    assert len((await kit.client.answer(cleared))["payload"]["cleared"]) == 1
    await kit.events.run()
    assert [entry["text"] for entry in await kit.messages()] == ["go", "one"]


async def test_a_resent_long_input_is_accepted_once(tmp_path: Path) -> None:
    """Without the jumping clock, which does not wait for the thread that hashes a long text."""
    text = long_text("prompt")
    async with memory.open_store() as store, open_kit(tmp_path, store, FakeClock()) as kit:
        await kit.begin("go")
        first = await kit.client.request("follow_up", text=text, client_message_id="mine")
        again = await kit.client.request("follow_up", text=text, client_message_id="mine")
        assert again == {**first, "repeated": True}
        assert len((await kit.client.request("get_queue"))["inputs"]) == 1
        kit.model.answer(says("one"), says("two"))
        await kit.events.run()


async def test_queued_long_texts_survive_a_restart(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    prompt, follow_up = long_text("prompt"), long_text("follow")
    clock = FakeClock()
    async with memory.open_store() as store:
        async with open_kit(tmp_path, store, clock) as kit:
            await kit.begin(prompt)
            await kit.client.request("follow_up", text=follow_up)
        async with open_kit(tmp_path, store, clock) as kit:
            (waiting,) = (await kit.client.request("get_queue"))["inputs"]
            assert waiting["text"] == follow_up
            kit.model.answer(says("done"))
            await kit.client.request("resume")
            await kit.events.run()
            assert kit.user_texts() == [prompt, follow_up]
            await kit.assert_lines_are_small()


async def test_a_branch_keeps_the_long_texts_of_its_deleted_parent(
    kit: Kit, autojump_clock: trio.testing.MockClock
) -> None:
    text = long_text("prompt")
    await kit.begin(text)
    kit.model.answer(says("done"))
    await kit.events.run()
    parent = (await kit.client.request("get_state"))["session_id"]
    await kit.client.request("branch_session", session_id=parent)
    await kit.client.request("delete_session", session_id=parent)
    assert [entry["text"] for entry in await kit.messages()] == [text, "done"]


@pytest.mark.slow
async def test_pages_are_bounded_by_the_size_of_their_texts(
    kit: Kit, autojump_clock: trio.testing.MockClock
) -> None:
    texts = [long_text(f"prompt{number}", 1_500_000) for number in range(4)]
    for text in texts:
        await kit.begin(text)
        kit.model.answer(says("done"))
        await kit.events.run()
    read: list[str] = []
    options: Payload = {}
    while True:
        page = await kit.client.request("get_messages", **options)
        page_texts = [entry["text"] for entry in page["messages"]]
        assert sum(map(len, page_texts)) <= PAGE_BYTES_MAX
        read = page_texts + read
        if not page["has_more"]:
            break
        options = {"before": page["before"]}
    assert [text for text in read if text != "done"] == texts


async def test_a_page_counts_the_encoded_size_of_its_texts(
    kit: Kit, autojump_clock: trio.testing.MockClock
) -> None:
    text = "x" + "\n" * 1_350_000  # twice as long in JSON
    for _ in range(2):
        await kit.begin(text)
        kit.model.answer(says("done"))
        await kit.events.run()
    page = await kit.client.request("get_messages")
    assert [entry["text"] for entry in page["messages"]] == ["done", text, "done"]
    assert page["has_more"]


async def test_a_session_in_memory_holds_only_the_beginnings_of_queued_texts(
    kit: Kit, autojump_clock: trio.testing.MockClock
) -> None:
    await kit.begin("go")
    await kit.client.request("follow_up", text=long_text("follow"))
    live = await kit.daemon.services.sessions.active()
    assert live is not None
    for state in (live.state, live.committed):
        assert [len(queued.text) for queued in state.queue] == [EVENT_TEXT_BYTES_MAX]
    kit.model.answer(says("one"), says("two"))
    await kit.events.run()


# --- tools -----------------------------------------------------------------------------------


def asks_to_work(arguments: str) -> Outcome:
    async def play(receive: Receive) -> None:
        await receive(ToolCallPiece("own", "work", arguments))
        await receive(Finished("tool_use"))

    return play


def arguments_in(request: ModelInput) -> list[Any]:
    answers = [one for one in request.messages if isinstance(one, AssistantMessage)]
    return [call.args for answer in answers for call in answer.tool_calls]


async def test_a_long_tool_result_reaches_the_model_whole(
    kit: Kit, autojump_clock: trio.testing.MockClock
) -> None:
    text = long_text("result", 100_000)
    await kit.begin("go")
    kit.tool.finish(gives(text))
    kit.model.answer(asks_for_tools(), says("done"))
    events = await kit.events.run()
    results = [m.text for m in kit.model.requests[-1].messages if isinstance(m, ToolResultMessage)]
    assert results == [text]
    (end,) = of_type(events, "tool_execution_end")
    assert (end["result"], end["text_ref"]) == (text[: len(end["result"])], ref_of(text))
    updates = of_type(events, "tool_execution_update")
    assert "".join(update["delta"] for update in updates) == text
    assert (await kit.messages())[2]["text"] == text
    await kit.assert_lines_are_small()


@pytest.mark.parametrize("character", ["x", "\0", '"', "\u20ac", "\U0001f30d"])
async def test_deltas_of_outputs_and_answers_stay_small_for_every_character(
    kit: Kit, autojump_clock: trio.testing.MockClock, character: str
) -> None:
    text = character * 20_000
    await kit.begin("go")
    kit.tool.finish(gives(text))
    kit.model.answer(asks_for_tools(), says(text))
    events = await kit.events.run()
    for name in ("tool_execution_update", "message_update"):
        deltas = [update["delta"] for update in of_type(events, name)]
        assert "".join(deltas) == text
        assert max(len(encode_json(delta)) for delta in deltas) <= DELTA_BYTES_MAX + len('""')


async def test_a_long_tool_error_is_truncated_in_its_warning(
    kit: Kit, autojump_clock: trio.testing.MockClock
) -> None:
    text = long_text("failure", 100_000)
    await kit.begin("go")
    kit.tool.finish(breaks(ToolError(text)))
    kit.model.answer(asks_for_tools(), says("done"))
    events = await kit.events.run()
    (warning,) = of_type(events, "warning")
    assert warning["message"] == text[:EVENT_TEXT_BYTES_MAX]
    assert (await kit.messages())[2]["text"] == f"tool_error: {text}"
    await kit.assert_lines_are_small()


@pytest.mark.behaviour("long_arguments_are_artifacts")
async def test_long_arguments_are_truncated_in_events_and_reach_the_model_whole(
    kit: Kit, autojump_clock: trio.testing.MockClock
) -> None:
    args = {"path": "a.txt", "content": long_text("content")}
    await kit.begin("go")
    kit.tool.finish(gives())
    kit.model.answer(asks_to_work(json.dumps(args)), says("done"))
    events = await kit.events.run()
    shown = {"path": "a.txt", "content": args["content"][:1024]}
    for payload in of_type(events, "tool_execution_start", "tool_call_requested"):
        assert payload["args"] == shown
        assert payload["args_ref"].startswith("sha256:")
    entry = of_type(events, "entry_appended")[1]["entry"]
    assert entry["tool_calls"][0]["args"] == shown
    await kit.assert_lines_are_small()
    assert arguments_in(kit.model.requests[-1]) == [args]
    # The next run reads its context from the log.
    kit.daemon.services.contexts.forget((await kit.client.request("get_state"))["session_id"])
    await kit.begin("and now")
    kit.model.answer(says("done"))
    await kit.events.run()
    assert arguments_in(kit.model.requests[-1]) == [args]
    assert (await kit.messages())[1]["tool_calls"][0]["args"] == args


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.behaviour("raw_errors_are_kept")
async def test_a_raw_server_error_is_stored_if_the_cause_does_not_contain_it(
    kit: Kit, autojump_clock: trio.testing.MockClock
) -> None:
    raw = json.dumps({"error": {"message": "overloaded", "more": "x" * 20_000}}).encode()
    await kit.begin("go")
    kit.model.answer(fails(ProviderError("overloaded", raw=raw)))
    (error,) = of_type(await kit.events.run(), "error")
    assert error["cause"] == "server_error: overloaded"
    kept = await kit.daemon.services.store.artifact(error["raw_ref"])
    assert kept is not None
    assert (kept.media_type, kept.data) == ("application/json", raw)
    await kit.assert_lines_are_small()


async def test_a_raw_server_error_is_not_stored_if_the_cause_contains_it(
    kit: Kit, autojump_clock: trio.testing.MockClock
) -> None:
    for raw in (b"", b" overloaded\n"):
        await kit.begin("go")
        kit.model.answer(fails(ProviderError("http 503: overloaded", raw=raw)))
        (error,) = of_type(await kit.events.run(), "error")
        assert "raw_ref" not in error


async def test_a_long_cause_is_stored_whole(
    kit: Kit, autojump_clock: trio.testing.MockClock
) -> None:
    cause = long_text("cause", 50_000)
    await kit.begin("go")
    kit.model.answer(fails(ProviderError(cause)))
    events = await kit.events.run()
    (error,) = of_type(events, "error")
    assert error["cause"] == f"server_error: {cause}"[:EVENT_TEXT_BYTES_MAX]
    kept = await kit.daemon.services.store.artifact(error["raw_ref"])
    assert kept is not None
    assert kept.data == cause.encode()
    await kit.assert_lines_are_small()


async def test_a_long_interrupted_answer_is_stored_whole(
    kit: Kit, autojump_clock: trio.testing.MockClock
) -> None:
    text = long_text("half", 50_000)
    await kit.begin("go")
    kit.model.answer(fails(ProviderError("gone"), text))
    events = await kit.events.run()
    assert of_type(events, "message_end")[1]["text"] == text
    assert of_type(events, "entry_appended")[1]["entry"]["text_ref"] == ref_of(text)
    assert (await kit.messages())[1]["text"] == text


# --- on disk ---------------------------------------------------------------------------------


async def test_a_long_prompt_on_disk_survives_a_restart(short_folder: Path) -> None:
    text = long_text("prompt")
    model = RoomyProvider()
    async with socket_daemon(short_folder, provider=model) as daemon:
        client, events = await daemon.connect(), await daemon.watch()
        await client.request("prompt", text=text, wait=False)
        model.answer(says("done"))
        await events.run()
    async with socket_daemon(short_folder, provider=model) as daemon:
        client = await daemon.connect()
        messages = (await client.request("get_messages"))["messages"]
        assert [entry["text"] for entry in messages] == [text, "done"]
        model.answer(says("done"))
        await client.request("prompt", text="go on")
    user_texts = [one.text for one in model.requests[-1].messages if isinstance(one, UserMessage)]
    assert user_texts == [text, "go on"]
