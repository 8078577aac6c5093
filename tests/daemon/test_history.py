"""The context of a model call: the whole path, structured, and after a compaction."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from nousd.daemon.runs import model_inputs
from nousd.daemon.sessions import history
from nousd.daemon.sessions.history import KEPT_SESSIONS_MAX, KEPT_TOKENS_MAX, Context, Contexts
from nousd.daemon.sessions.live_session import LiveSession
from nousd.machine.context import compaction
from nousd.machine.context.compiler import InputCache
from nousd.machine.context.tokens import entry_tokens
from nousd.machine.session.state import SessionState
from nousd.providers.interface import Provider
from nousd.providers.setup.registry import make_provider
from nousd.runtimes.native import loop, summary
from nousd.runtimes.native.loop import NativeSettings
from nousd.store.interface import Store
from nousd.store.memory import store as memory
from nousd.store.rows import Path as StoredPath
from nousd.wire.objects.entries import Entry
from tests.harness.daemon import (
    WAIT_SECONDS,
    Client,
    Daemon,
    Events,
    Payload,
    memory_daemon,
    of_type,
    socket_daemon,
)
from tests.harness.stub_model import Gate, StubModel, text_reply, tool_reply
from tests.machine.builders import user


def messages_of(request: Any) -> list[tuple[str, Any]]:
    return [(message["role"], message["content"]) for message in request.json["messages"]]


async def texts(client: Client, **options: Any) -> list[str]:
    return [
        e.get("text", "") for e in (await client.request("get_messages", **options))["messages"]
    ]


async def test_the_model_receives_the_whole_path_as_messages(
    client: Client, stub: StubModel
) -> None:
    stub.script(text_reply("one"), text_reply("two"))
    await client.request("prompt", text="first")
    await client.request("prompt", text="second")
    await client.request("prompt", text="third")
    assert messages_of(stub.requests[2]) == [
        ("user", "first"),
        ("assistant", "one"),
        ("user", "second"),
        ("assistant", "two"),
        ("user", "third"),
    ]


@pytest.mark.slow
async def test_calls_and_results_stay_in_the_history(client: Client, stub: StubModel) -> None:
    stub.script(
        tool_reply(
            ("bash", {"command": "printf one"}), ("bash", {"command": "printf two"}), text="look"
        ),
        text_reply("done"),
    )
    await client.request("prompt", text="first")
    await client.request("prompt", text="second")
    assert messages_of(stub.requests[2]) == [
        ("user", "first"),
        ("assistant", "look"),
        ("tool", "one"),
        ("tool", "two"),
        ("assistant", "done"),
        ("user", "second"),
    ]
    _, asking_message, *results, _, _ = stub.requests[2].json["messages"]
    calls = asking_message["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["bash", "bash"]
    assert [call["function"]["arguments"] for call in calls] == [
        '{"command":"printf one"}',
        '{"command":"printf two"}',
    ]
    assert [call["id"] for call in calls] == [result["tool_call_id"] for result in results]
    assert stub.requests[1].json["messages"] == stub.requests[2].json["messages"][:4]


async def test_the_system_prompt_comes_first(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    settings = NativeSettings(system="Be kind.")
    async with socket_daemon(short_folder, provider=provider, native=settings) as daemon:
        client = await daemon.connect()
        await client.request("prompt", text="hello")
        assert messages_of(stub.requests[0]) == [("system", "Be kind."), ("user", "hello")]


@pytest.mark.behaviour("set_leaf_moves_where_work_goes_on")
@pytest.mark.behaviour("the_tree_shows_every_branch")
async def test_work_continues_from_the_leaf_and_siblings_are_not_mixed(
    client: Client, stub: StubModel
) -> None:
    stub.script(text_reply("one"), text_reply("two"), text_reply("three"))
    await client.request("prompt", text="first")
    leaf_id = (await client.request("get_state"))["leaf_id"]
    await client.request("prompt", text="second")
    await client.request("set_leaf", leaf_id=leaf_id)
    await client.request("prompt", text="sibling")
    assert messages_of(stub.requests[2]) == [
        ("user", "first"),
        ("assistant", "one"),
        ("user", "sibling"),
    ]
    assert await texts(client) == ["first", "one", "sibling", "three"]
    tree = await client.request("get_tree")
    children = [node["snippet"] for node in tree["nodes"] if node["parent_id"] == leaf_id]
    assert children == ["second", "sibling"]


async def test_a_prompt_can_name_the_leaf_it_continues_from(
    client: Client, stub: StubModel
) -> None:
    await client.request("prompt", text="first")
    leaf_id = (await client.request("get_state"))["leaf_id"]
    await client.request("prompt", text="second")
    result = await client.request("prompt", text="sibling", leaf_id=leaf_id)
    assert result["leaf_id"] == leaf_id
    assert await texts(client) == ["first", "stub-reply", "sibling", "stub-reply"]
    error = await client.refusal("prompt", text="x", leaf_id="msg-unknown")
    assert (error["code"], error["message"]) == ("command_rejected", "leaf_not_found")


LONG = "x" * 400
"""About a hundred tokens."""


async def talk(client: Client, events: Events, prompts: int) -> None:
    for number in range(prompts):
        await client.request("prompt", text=f"question {number} {LONG}")
        await events.run()


def compactions(messages: Payload) -> list[Payload]:
    return [entry for entry in messages["messages"] if entry["type"] == "compaction"]


async def test_the_older_part_is_compacted_automatically_past_the_threshold(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    settings = NativeSettings(context_window=1000, compact_at=0.5, keep_recent_tokens=200)
    async with socket_daemon(short_folder, provider=provider, native=settings) as daemon:
        events, client = await daemon.watch(), await daemon.connect()
        await client.request("set_active_tools", tools=[])
        await talk(client, events, 4)
        stub.script(text_reply("what they said"))
        result = await client.request("prompt", text=f"and now? {LONG}")
        assert result["output"] == "stub-reply"
        run = await events.run()
        assert of_type(run, "status")[0]["message"].startswith("compaction: trigger=auto ")
        summary, *kept = messages_of(stub.requests[-1])
        assert "what they said" in summary[1]
        assert kept[-1] == ("user", f"and now? {LONG}")
        assert len(kept) < 8
        messages = await client.request("get_messages")
        [compaction] = compactions(messages)
        assert (compaction["trigger"], compaction["summary"]) == ("auto", "what they said")
        assert compaction["first_kept_entry_id"] in [e["id"] for e in messages["messages"]]
        compacted = await client.request("get_messages", compacted=True)
        assert len(compacted["messages"]) < len(messages["messages"])


@pytest.mark.slow
async def test_repeated_compaction_does_not_make_summaries_grow(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    settings = NativeSettings(context_window=1000, compact_at=0.5, keep_recent_tokens=200)
    async with socket_daemon(short_folder, provider=provider, native=settings) as daemon:
        events, client = await daemon.watch(), await daemon.connect()
        await client.request("set_active_tools", tools=[])
        await talk(client, events, 30)
        found = compactions(await client.request("get_messages"))
        assert len(found) > 5
        assert max(len(entry["summary"]) for entry in found) < 1000
        longest = max(len(str(request.json["messages"])) for request in stub.requests)
        assert longest < 10_000


async def test_an_empty_summary_from_the_model_is_replaced_by_a_generated_one(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    settings = NativeSettings(context_window=1000, compact_at=0.5, keep_recent_tokens=200)
    async with socket_daemon(short_folder, provider=provider, native=settings) as daemon:
        events, client = await daemon.watch(), await daemon.connect()
        await client.request("set_active_tools", tools=[])
        await talk(client, events, 4)
        stub.script(text_reply(""))
        result = await client.request("prompt", text=f"and now? {LONG}")
        assert result["status"] == "completed"
        [compaction] = compactions(await client.request("get_messages"))
        assert "question 0" in compaction["summary"]


@pytest.mark.behaviour("compaction_deletes_nothing")
async def test_compact_session_summarizes_the_older_part_and_deletes_nothing(
    client: Client, stub: StubModel
) -> None:
    await client.request("prompt", text="first")
    await client.request("prompt", text="second")
    stub.script(text_reply("they greeted"))
    answer = await client.request("compact_session", instruction=" be brief ")
    assert (answer["summary"], answer["trigger"]) == ("they greeted", "manual")
    assert answer["instruction"] == "be brief"
    assert "be brief" in stub.requests[2].json["messages"][0]["content"]
    await client.request("prompt", text="third")
    summary, *rest = messages_of(stub.requests[3])
    assert "they greeted" in summary[1]
    assert [content for _, content in rest] == ["second", "stub-reply", "third"]
    assert (await texts(client))[:2] == ["first", "stub-reply"], "nothing was deleted"


async def test_a_long_context_is_cut_in_other_threads_with_the_same_result(
    client: Client, stub: StubModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "QUICK_ENTRIES_MAX", 1)
    monkeypatch.setattr(summary, "QUICK_ENTRIES_MAX", 1)
    monkeypatch.setattr(model_inputs, "QUICK_CHARS_MAX", 0)
    threads = set()
    for module, name in (
        (compaction, "plan_cut"),
        (compaction, "summary_input"),
        (compaction, "mechanical_summary"),
        (model_inputs, "store_input"),
    ):
        work = getattr(module, name)

        def watched(*args: Any, work: Any = work, **kwargs: Any) -> Any:
            threads.add(threading.get_ident())
            return work(*args, **kwargs)

        monkeypatch.setattr(module, name, watched)
    await client.request("prompt", text="first")
    await client.request("prompt", text="second")
    threads.clear()
    stub.script(text_reply("they greeted"))
    answer = await client.request("compact_session")
    assert answer["summary"] == "they greeted"
    assert threads
    assert "user: first" in stub.requests[2].json["messages"][0]["content"]
    await client.request("prompt", text="third")
    stub.script(text_reply(""))
    answer = await client.request("compact_session")
    assert "user: second" in answer["summary"]
    assert threading.get_ident() not in threads


async def test_entries_are_let_go_a_few_at_a_time_between_which_others_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "_FREED_AT_ONCE", 2)
    entries: list[Entry] = [user(f"u{number}") for number in range(20)]
    left = []

    async def look() -> None:
        while entries:
            left.append(len(entries))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await history.let_go(entries)
    assert entries == []
    assert len(set(left)) > 1


async def test_a_compaction_overtaken_by_a_prompt_is_discarded(
    daemon: Daemon, client: Client, stub: StubModel
) -> None:
    await client.request("prompt", text="first")
    await client.request("prompt", text="second")
    gate = Gate()
    stub.script(text_reply("they ", gate, "greeted"))
    request = await client.ask("compact_session")
    with trio.fail_after(WAIT_SECONDS):
        await gate.reached()
    other = await daemon.connect()
    assert (await other.request("prompt", text="third"))["status"] == "completed"
    gate.open()
    answer = await client.answer(request)
    assert answer["error"]["message"] == "session_changed"
    assert compactions(await client.request("get_messages")) == []


@pytest.mark.behaviour("compaction_needs_an_older_part")
async def test_compacting_without_an_older_part_is_refused(client: Client) -> None:
    await client.request("new_session")
    error = await client.refusal("compact_session")
    assert (error["code"], error["message"]) == ("command_rejected", "nothing_to_compact")
    await client.request("prompt", text="only one")
    assert (await client.refusal("compact_session"))["message"] == "nothing_to_compact"


@pytest.mark.behaviour("messages_come_in_pages")
async def test_a_long_history_is_read_in_pages(client: Client) -> None:
    for number in range(4):
        await client.request("prompt", text=f"question {number}")
    everything = [e["id"] for e in (await client.request("get_messages"))["messages"]]
    read: list[str] = []
    page = await client.request("get_messages", limit=3)
    while True:
        read = [entry["id"] for entry in page["messages"]] + read
        if not page["has_more"]:
            break
        page = await client.request("get_messages", limit=3, before=page["before"])
    assert read == everything
    assert len(everything) == 8


class _CountingStore:
    """A store that counts the entries of the paths it returns; everything else passes through."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.entries_read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def path(
        self, session_id: str, leaf_id: str, *, limit: int, bytes_max: int
    ) -> StoredPath:
        found = await self._inner.path(session_id, leaf_id, limit=limit, bytes_max=bytes_max)
        self.entries_read += len(found.entries)
        return found


@pytest.mark.slow
async def test_a_prompt_reads_a_bounded_number_of_entries_in_a_long_session(
    tmp_path: Path,
) -> None:
    native = NativeSettings(context_window=400, keep_recent_tokens=100)
    async with memory.open_store() as inner:
        store = _CountingStore(inner)
        async with memory_daemon(
            workdir=tmp_path, provider=make_provider("mock"), store=store, native=native
        ) as daemon:
            client = await daemon.connect()
            await client.request("set_active_tools", tools=[])
            reads = []
            for number in range(80):
                before = store.entries_read
                await client.request("prompt", text=f"[[text answer {number}]]")
                reads.append(store.entries_read - before)
            total = len((await client.request("get_tree"))["nodes"])
    assert total > 160
    assert max(reads) <= 96


# --- cached contexts ------------------------------------------------------------------------------


class CountedStore:
    """A store that counts the reads of paths; everything else passes through."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.pages = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def path(self, *args: Any, **options: Any) -> StoredPath:
        self.pages += 1
        return await self._store.path(*args, **options)


async def test_the_next_run_reuses_the_context_in_memory(
    tmp_path: Path, provider: Provider, stub: StubModel
) -> None:
    async with memory.open_store() as store:
        counted = CountedStore(store)
        async with memory_daemon(workdir=tmp_path, provider=provider, store=counted) as daemon:
            client = await daemon.connect()
            stub.script(*(text_reply(word) for word in ("one", "two", "three", "four")))
            await client.request("prompt", text="first")
            await client.request("prompt", text="second")
            assert counted.pages == 0
            root = (await client.request("get_messages"))["messages"][0]["id"]
            counted.pages = 0
            await client.request("set_leaf", leaf_id=root)
            await client.request("prompt", text="from the root")
            assert counted.pages == 1
            await client.request("prompt", text="and on")
            assert counted.pages == 1
    assert messages_of(stub.requests[1]) == [
        ("user", "first"),
        ("assistant", "one"),
        ("user", "second"),
    ]
    assert messages_of(stub.requests[3])[-3:] == [
        ("user", "from the root"),
        ("assistant", "three"),
        ("user", "and on"),
    ]


def in_memory(state: SessionState) -> LiveSession:
    nothing: Any = None
    return LiveSession(state, nothing)


def context_of(entry: Entry) -> Context:
    return Context((entry,), entry_tokens(entry), InputCache())


async def test_cached_contexts_are_bounded_in_sessions_and_tokens() -> None:
    async with memory.open_store() as store:
        contexts = Contexts(store, tokens_max=1)
        live = [in_memory(SessionState(session_id=f"s{number}")) for number in range(99)]
        small = context_of(user("e", "word"))
        for session in live:
            contexts.keep(session.session_id, None, small)
        kept = [s for s in live if await contexts.at_leaf(s) is small]
        assert kept == live[-KEPT_SESSIONS_MAX:]
        large = context_of(user("e", "x" * 4 * KEPT_TOKENS_MAX))
        contexts.keep("s98", None, large)
        assert (await contexts.at_leaf(live[98])).entries == []
        contexts.keep("s98", None, small)
        contexts.forget("s98")
        assert (await contexts.at_leaf(live[98])).entries == []


async def test_deleting_a_session_removes_its_cached_context(
    tmp_path: Path, provider: Provider
) -> None:
    async with memory_daemon(workdir=tmp_path, provider=provider) as daemon:
        client = await daemon.connect()
        await client.request("prompt", text="a secret")
        live = await daemon.services.sessions.active()
        assert live is not None
        before = in_memory(live.state)
        assert (await daemon.services.contexts.at_leaf(before)).entries != []
        await client.request("delete_session", session_id=live.session_id)
        assert (await daemon.services.contexts.at_leaf(before)).entries == []
