"""Model inputs are stored byte for byte, and no part twice."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from nousd.daemon.runs import model_inputs
from nousd.daemon.workspace.instructions import Places, reader
from nousd.errors import ContextOverflow, ProviderError
from nousd.machine.context.compiler import LEFT_OUT
from nousd.machine.context.input_chunks import Chain, store_input
from nousd.machine.context.model_input import ModelInput, UserMessage
from nousd.machine.context.prompt_sections import SourceText, of_file
from nousd.providers.interface import NO_BLOBS, Blobs, ReasoningKept, Receive
from nousd.runtimes.native.loop import NativeSettings
from nousd.store.interface import Store
from nousd.store.memory import store as memory
from nousd.wire.codec.canonical_json import digest
from nousd.wire.codec.input_chunks import Node, assemble_input, decode_node
from nousd.wire.objects.entries import ReasoningBlock
from tests.daemon.scripted import ScriptedProvider, ScriptedTool, asks_for_tools, fails, gives, says
from tests.daemon.test_store_failures import Disk
from tests.harness.daemon import (
    Client,
    Event,
    Events,
    FakeClock,
    RequestRefused,
    memory_daemon,
    of_type,
)
from tests.harness.model_inputs import canonical_of

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Bench:
    """A daemon with a scripted model and tool; ``store`` is the daemon's store."""

    def __init__(
        self,
        store: Store,
        client: Client,
        events: Events,
        model: ScriptedProvider,
        tool: ScriptedTool,
    ) -> None:
        self.store = store
        self.client = client
        self.events = events
        self.model = model
        self.tool = tool

    async def run(self, text: str = "go", **payload: Any) -> list[Event]:
        await self.client.request("prompt", text=text, wait=False, **payload)
        return await self.events.run()

    async def last_input(self, text: str = "go", **payload: Any) -> dict[str, Any]:
        """Return the ``model_input`` event of the last model call of a run."""
        return of_type(await self.run(text, **payload), "model_input")[-1]

    async def full_input(self, told: dict[str, Any]) -> bytes:
        """Return the stored input, checked against its hash."""
        return await load_input(self.store, told)


async def load_input(store: Store, told: dict[str, Any]) -> bytes:
    parts: dict[str, bytes] = {}
    ref: str | None = told["input_ref"]
    while ref is not None:
        parts[ref] = await data_of(store, ref)
        ref = decode_node(parts[ref]).previous
    parts[told["rest_ref"]] = await data_of(store, told["rest_ref"])
    whole = assemble_input(told["input_ref"], parts.__getitem__)
    assert told["input_hash"] == f"sha256:{hashlib.sha256(whole).hexdigest()}"
    return whole


async def data_of(store: Store, ref: str) -> bytes:
    artifact = await store.artifact(ref)
    assert artifact is not None, f"{ref} is gone"
    return artifact.data


@asynccontextmanager
async def open_bench(
    workdir: Path,
    store: Store | None = None,
    *,
    model: ScriptedProvider | None = None,
    **options: Any,
) -> AsyncIterator[Bench]:
    model, tool = model or ScriptedProvider(), ScriptedTool()
    async with memory.open_store() as own:
        used = store or own
        async with memory_daemon(
            workdir=workdir, provider=model, store=used, tools=[tool.tool], **options
        ) as daemon:
            events, client = await daemon.watch(types="all"), await daemon.connect()
            yield Bench(used, client, events, model, tool)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench(tmp_path) as bench:
        yield bench


# --- inputs, byte for byte ---------------------------------------------------------------------


@pytest.mark.behaviour("what_a_model_saw_can_be_put_together")
async def test_each_input_is_stored_byte_for_byte_as_the_model_received_it(bench: Bench) -> None:
    bench.model.answer(asks_for_tools(2), asks_for_tools(), says("done"))
    bench.tool.finish(*[gives("well")] * 3)
    run = await bench.run("hé")
    calls = of_type(run, "model_input")
    assert len(calls) == 3
    for told, request in zip(calls, bench.model.requests, strict=True):
        assert await bench.full_input(told) == canonical_of(request)
        assert (told["purpose"], told["provider"]) == ("answer", "scripted")
        assert told["context_window"] == 100_000


class Talkative(ScriptedProvider):
    """A model that calls two tools, then reasons and answers; it summarises on request."""

    async def generate(
        self, request: ModelInput, receive: Receive, blobs: Blobs = NO_BLOBS
    ) -> None:
        self.requests.append(request)
        if request.purpose == "summary":
            await says("the summary")(receive)
        elif isinstance(request.messages[-1], UserMessage):
            await asks_for_tools(2)(receive)
        else:
            block = ReasoningBlock(dialect="scripted", data={"signature": "s" * 50})
            await receive(ReasoningKept(block))
            await says("I thought about it")(receive)


@pytest.mark.slow
async def test_two_equal_long_sessions_store_equal_inputs(tmp_path: Path) -> None:
    """The sessions have tools, reasoning, images, previews and compactions."""

    async def session(folder: Path) -> list[bytes]:
        native = NativeSettings(context_window=12_000, keep_recent_tokens=1_500)
        async with open_bench(folder, model=Talkative(), native=native) as bench:
            await bench.client.request("set_active_tools", tools=[])
            told: list[dict[str, Any]] = []
            for number in range(16):
                bench.tool.finish(gives("o" * 6_000), gives("short"))
                files = [{"data": PNG, "media_type": "image/png"}] if number % 4 == 0 else []
                run = await bench.run(f"question {number} {LONG}", attachments=files)
                assert run[-1]["payload"]["status"] == "completed"
                told += of_type(run, "model_input")
            strategies = {saving for each in told for saving in each["strategy"]}
            assert {"full", "previews", "compacted"} <= strategies
            assert {each["purpose"] for each in told} == {"answer", "summary"}
            inputs = [await bench.full_input(each) for each in told]
            for whole, request in zip(inputs, bench.model.requests, strict=True):
                assert whole == canonical_of(request)
            everything = b"".join(inputs)
            assert all(piece in everything for piece in (b"signature", b"image/png", b"artifact"))
            return inputs

    assert await session(tmp_path) == await session(tmp_path)


@pytest.mark.parametrize("large", [1, 1 << 20], ids=["in steps", "with its event"])
async def test_the_model_input_of_a_manual_summary_has_no_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    monkeypatch.setattr(model_inputs, "PUT_STEP_BYTES", large)
    bench.model.answer(says("one"), says("two"), says("they talked"))
    await bench.run("first")
    await bench.run("second")
    await bench.client.request("compact_session")
    told = (await bench.events.until("model_input"))["payload"]
    assert told["purpose"] == "summary"
    assert "run_id" not in told
    assert await bench.full_input(told) == canonical_of(bench.model.requests[-1])


# --- stored once ---------------------------------------------------------------------------------


async def node_of(bench: Bench, told: dict[str, Any]) -> Node:
    return decode_node(await data_of(bench.store, told["input_ref"]))


async def test_each_call_stores_only_new_messages_and_links_to_the_previous_input(
    bench: Bench,
) -> None:
    await bench.client.request("new_session")
    before: dict[str, Any] | None = None
    for number in range(6):
        bench.model.answer(says(f"answer {number}"))
        told = await bench.last_input(f"question {number} {LONG}")
        node = await node_of(bench, told)
        assert node.previous == (None if before is None else before["input_ref"])
        assert len(node.messages) == (1 if before is None else 2)
        assert before is None or told["rest_ref"] == before["rest_ref"]
        before = told


async def test_the_chain_of_inputs_continues_after_a_restart(tmp_path: Path) -> None:
    async with memory.open_store() as store:
        clock = FakeClock()
        async with open_bench(tmp_path, store, clock=clock) as bench:
            bench.model.answer(says("one"), says("two"))
            await bench.last_input("first")
            last = await bench.last_input("second")
        async with open_bench(tmp_path, store, clock=clock) as bench:
            bench.model.answer(says("three"))
            told = await bench.last_input("third")
            node = await node_of(bench, told)
            assert (node.previous, len(node.messages)) == (last["input_ref"], 2)
            await bench.full_input(told)


async def test_a_chain_evicted_from_memory_continues_from_the_log(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_inputs, "KEPT_CHARS_MAX", 0)
    bench.model.answer(says("one"), says("two"), fails(ProviderError("no")), says("three"))
    last = [await bench.last_input(text) for text in ("first", "second", "third")][-1]
    told = await bench.last_input("fourth")
    node = await node_of(bench, told)
    assert node.previous == last["input_ref"]
    await bench.full_input(told)


@pytest.mark.parametrize("good_commits", range(10))
async def test_inputs_after_a_failed_commit_are_stored_completely(
    tmp_path: Path, good_commits: int
) -> None:
    """Whichever commit of a run fails, the next inputs can be read completely."""
    disk = Disk()
    async with (
        memory.open_store(before_commit=disk.before_commit) as store,
        open_bench(tmp_path, store) as bench,
    ):
        bench.model.answer(says("one"))
        await bench.last_input("first")
        bench.model.answer(asks_for_tools(), says("two"))
        bench.tool.finish(gives(LONG))
        disk.fail_once(after=good_commits)
        with suppress(RequestRefused):
            await bench.client.request("prompt", text="second")
        disk.stay_whole()
        await bench.client.request("clear_queue")
        for text in ("third", "fourth"):
            bench.model.calls.forget()
            bench.model.answer(says(text))
            run_id = (await bench.client.request("prompt", text=text))["run_id"]
            page = await bench.client.request(
                "get_events", after="evt-0", run_id=run_id, types=["model_input"]
            )
            (told,) = page["events"]
            whole = await bench.full_input(told["payload"])
            assert whole == canonical_of(bench.model.requests[-1])


async def test_another_leaf_starts_a_new_chain(bench: Bench) -> None:
    bench.model.answer(says("one"), says("two"), says("three"))
    first = await bench.run("first")
    leaf_id = of_type(first, "entry_appended")[0]["entry"]["id"]
    await bench.last_input("second")
    told = await bench.last_input("sibling", leaf_id=leaf_id)
    node = await node_of(bench, told)
    assert node.previous is None
    await bench.full_input(told)


async def test_a_branch_keeps_its_inputs_when_its_parent_is_deleted(bench: Bench) -> None:
    bench.model.answer(says("one"), says("two"), says("three"))
    parent = await bench.last_input("first")
    branch = await bench.client.request("branch_session", session_id=parent["session_id"])
    told = await bench.last_input("second")
    assert told["session_id"] == branch["session_id"]
    again = await bench.last_input("third")
    await bench.client.request("delete_session", session_id=parent["session_id"])
    for each in (told, again):
        await bench.full_input(each)


async def test_chains_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory.open_store() as store:
        inputs = model_inputs.ModelInputs(store)
        for number in range(model_inputs.KEPT_SESSIONS_MAX + 5):
            inputs.keep(f"s{number}", chain_of("x" * 10))
        kept = [
            number
            for number in range(model_inputs.KEPT_SESSIONS_MAX + 5)
            if inputs.forget(f"s{number}") is not None
        ]
        assert kept == list(range(5, model_inputs.KEPT_SESSIONS_MAX + 5))
        monkeypatch.setattr(model_inputs, "KEPT_CHARS_MAX", 100)
        for number in range(5):
            inputs.keep(f"s{number}", chain_of("x" * 40))
        assert [inputs.forget(f"s{number}") is not None for number in range(5)] == [
            *(False, False, False, True, True)
        ]


def chain_of(text: str) -> Chain:
    request = ModelInput(messages=(UserMessage(text),), model="m")
    return store_input(None, request).chain


# --- context window --------------------------------------------------------------------------------

LONG = "x" * 2_000


@pytest.mark.behaviour("room_is_saved_in_order")
async def test_long_inputs_are_shortened_by_previews_then_compaction_then_dropping_the_oldest(
    tmp_path: Path,
) -> None:
    native = NativeSettings(context_window=6_000, keep_recent_tokens=500)
    async with open_bench(tmp_path, native=native) as bench:
        await bench.client.request("set_active_tools", tools=[])
        strategies: list[list[str]] = []
        for number in range(6):
            bench.model.answer(asks_for_tools(), says("seen"))
            bench.tool.finish(gives("o" * 9_000))
            strategies += [
                told["strategy"]
                for told in of_type(await bench.run(f"look {number}"), "model_input")
            ]
        assert strategies[:2] == [["full"], ["full"]]
        assert ["previews"] in strategies
        told = await bench.client.request("get_messages")
        assert [entry for entry in told["messages"] if entry["type"] == "compaction"] == []
        bench.model.answer(says("a summary"), says("well"))
        run = await bench.run("y" * 12_000)
        summary, answer = of_type(run, "model_input")
        assert (summary["purpose"], answer["strategy"]) == ("summary", ["compacted"])
        bench.model.answer(says("another summary " + "z" * 2_500), says("well"))
        *_, answer = of_type(await bench.run("y" * 20_500), "model_input")
        assert answer["strategy"] == ["oldest_dropped"]
        assert {omitted["reason"] for omitted in answer["omitted"]} == {"oldest"}
        assert answer["tokens_estimated"] <= 6_000 * 15 // 16


@pytest.mark.behaviour("what_cannot_fit_says_what_is_largest")
async def test_an_input_that_cannot_fit_is_not_sent_and_the_error_names_its_largest_part(
    tmp_path: Path,
) -> None:
    async with open_bench(tmp_path, native=NativeSettings(context_window=2_000)) as bench:
        await bench.client.request("set_active_tools", tools=[])
        run = await bench.run("y" * 10_000)
        (error,) = of_type(run, "error")
        assert (error["code"], error["message"]) == (
            *("context_too_large", "the input is too long for the model"),
        )
        asked = of_type(run, "entry_appended")[0]["entry"]["id"]
        assert error["hint"].startswith(f"entry {asked} (user) takes about 2,508 of 2,000 tokens; ")
        assert bench.model.requests == []
        assert of_type(run, "model_input") == []
        assert run[-1]["payload"]["status"] == "error"


async def test_an_input_the_server_finds_too_long_is_resent_once_without_the_oldest(
    bench: Bench,
) -> None:
    """A short turn is not compacted, but its older messages can be left out."""
    bench.model.answer(asks_for_tools(), asks_for_tools(), fails(ContextOverflow("too long")))
    bench.model.answer(says("well"))
    bench.tool.finish(gives("o" * 3_000), gives("p" * 3_000))
    run = await bench.run("look")
    assert run[-1]["payload"]["status"] == "completed"
    *_, refused, again = of_type(run, "model_input")
    assert (refused["strategy"], again["strategy"]) == (["full"], ["oldest_dropped"])
    texts = [message.text for message in bench.model.requests[-1].messages]
    assert texts == [LEFT_OUT, "look", "", "p" * 3_000]
    assert again["omitted_count"] == 2


async def test_an_input_that_cannot_be_shortened_is_not_sent_again(
    bench: Bench,
) -> None:
    bench.model.answer(fails(ContextOverflow("too long")))
    run = await bench.run("only one question")
    (error,) = of_type(run, "error")
    assert (error["code"], error["cause"]) == ("context_too_large", "context_length: too long")
    assert error["hint"].startswith("the tools take about ")
    assert len(bench.model.requests) == 1


# --- the system prompt ---------------------------------------------------------------------------


@pytest.mark.behaviour("sources_of_the_prompt_are_told")
async def test_the_model_input_event_lists_the_sources_of_the_system_prompt(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("use tabs")
    places = Places(tmp_path, None, project=True)
    native = NativeSettings(system="Be kind.")
    async with open_bench(tmp_path, native=native, read_instructions=reader(places)) as bench:
        bench.model.answer(says("one"))
        told = await bench.last_input()
        path = tmp_path / "AGENTS.md"
        assert told["sources"] == [
            {
                "kind": "system_prompt",
                "enabled": True,
                "hash": digest(b"Be kind."),
                "bytes": 8,
            },
            {"kind": "user_instructions", "enabled": False, "reason": "off"},
            {
                "kind": "project_instructions",
                "enabled": True,
                "path": str(path),
                "hash": digest(b"use tabs"),
                "bytes": 8,
            },
        ]
        (request,) = bench.model.requests
        assert request.system == f"Be kind.\n\n# Instructions of the project ({path})\n\nuse tabs"


@pytest.mark.behaviour("a_project_is_read_once")
async def test_instructions_are_read_once_per_session(tmp_path: Path) -> None:
    reads = 0

    async def read() -> Sequence[SourceText]:
        nonlocal reads
        reads += 1
        return (of_file("project_instructions", "/AGENTS.md", f"version {reads}"),)

    async with open_bench(tmp_path, read_instructions=read) as bench:
        bench.model.answer(asks_for_tools(), says("one"), says("two"), says("three"))
        bench.tool.finish(gives())
        await bench.run()
        await bench.run()
        await bench.client.request("new_session")
        await bench.run()
        assert [request.system[-9:] for request in bench.model.requests] == [
            *("version 1", "version 1", "version 1", "version 2"),
        ]


async def test_absent_sources_of_the_system_prompt_are_reported_as_off(bench: Bench) -> None:
    bench.model.answer(says("one"))
    told = await bench.last_input()
    assert [(each["kind"], each["enabled"], each["reason"]) for each in told["sources"]] == [
        ("system_prompt", False, "off"),
        ("user_instructions", False, "off"),
        ("project_instructions", False, "off"),
    ]
    assert bench.model.requests[0].system == ""
