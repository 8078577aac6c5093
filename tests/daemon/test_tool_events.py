"""The events of tool calls and model calls, for subscribers of more than the frozen types.

The tests follow the table of protocol/semantics/tools.md case by case. The order of these events in all
other tests is checked on the log that each of them leaves (``tests.harness.lifecycle``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from nousd.errors import ContextOverflow, ProviderError, ToolError
from nousd.providers.interface import Finished, Receive, ToolCallPiece
from nousd.redaction.redactor import Redactor
from nousd.runtimes.native.loop import NativeSettings
from nousd.store.memory import store as memory
from nousd.store.records import Batch
from nousd.tools.interface import ToolContext, ToolResult
from tests.daemon.process_harness import Place, running
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
from tests.harness.daemon import Client, Event, Events, memory_daemon, of_type, types
from tests.harness.stub_model import StubModel, tool_reply
from tests.tools.bench import lifeline


class Bench:
    """A daemon with a scripted model and tool, and a subscriber of all events."""

    def __init__(
        self, client: Client, events: Events, provider: ScriptedProvider, tool: ScriptedTool
    ) -> None:
        self.client = client
        self.events = events
        self.provider = provider
        self.tool = tool

    async def run(self, text: str = "go") -> list[Event]:
        await self.client.request("prompt", text=text, wait=False)
        return await self.events.run()


@pytest.fixture
def provider() -> ScriptedProvider:
    return ScriptedProvider()


@pytest.fixture
def tool() -> ScriptedTool:
    return ScriptedTool()


@asynccontextmanager
async def open_bench(
    workdir: Path, provider: ScriptedProvider, tool: ScriptedTool, **options: Any
) -> AsyncIterator[Bench]:
    async with memory_daemon(
        workdir=workdir, provider=provider, tools=[tool.tool], **options
    ) as daemon:
        events, client = await daemon.watch(types="all"), await daemon.connect()
        yield Bench(client, events, provider, tool)


@pytest.fixture
async def bench(
    tmp_path: Path, provider: ScriptedProvider, tool: ScriptedTool
) -> AsyncIterator[Bench]:
    async with open_bench(tmp_path, provider, tool) as bench:
        yield bench


def asks_for(*calls: tuple[str, str]) -> Outcome:
    """Return a model call that requests tool calls with these names and raw arguments."""

    async def play(receive: Receive) -> None:
        for number, (name, args) in enumerate(calls):
            await receive(ToolCallPiece(f"own-{number}", name, args))
        await receive(Finished("tool_use"))

    return play


STEPS = ("tool_call_", "tool_execution_", "permission_")


def steps(run: list[Event]) -> list[str]:
    """Return the shortened types of the events of a run's tool calls."""
    told = [event for event in run if event["type"].startswith(STEPS)]
    return [name.removeprefix("tool_call_").removeprefix("tool_") for name in types(told)]


RAN = [
    *("execution_start", "requested"),
    *["policy_evaluated" for _ in range(6)],
    *("approved", "started", "execution_update", "completed", "execution_end"),
]


@pytest.mark.behaviour("tool_calls_are_told_step_by_step")
async def test_a_completed_call_has_an_event_for_each_step(
    bench: Bench, provider: ScriptedProvider, tool: ScriptedTool
) -> None:
    provider.answer(asks_for_tools(), says("done"))
    tool.finish(gives("well"))
    run = await bench.run()
    assert steps(run) == RAN
    told = [e["payload"] for e in run if e["type"].startswith("tool_call_")]
    assert {(call["attempt"], call["tool_name"]) for call in told} == {(1, "work")}
    [start] = of_type(run, "tool_execution_start")
    assert {call["tool_call_id"] for call in told} == {start["tool_call_id"]}
    [requested] = of_type(run, "tool_call_requested")
    assert (requested["args"], requested["runtime_tool_call_id"]) == ({}, "own-0")
    assert [
        (evaluated["source"], evaluated["decision"])
        for evaluated in of_type(run, "tool_call_policy_evaluated")
    ] == [
        *(("registry", "allow"), ("session", "allow"), ("arguments", "allow")),
        *(("rules", "abstain"), ("mode", "allow"), ("runtime", "abstain")),
    ]
    [approved] = of_type(run, "tool_call_approved")
    assert (approved["by"], approved["reason"]) == ("policy", "the mode yolo asks nobody")
    [started], [completed] = of_type(run, "tool_call_started"), of_type(run, "tool_call_completed")
    assert (started["executed_by"], started["permission_mode"]) == ("nousd", "yolo")
    assert completed["is_error"] is False
    assert completed["duration_ms"] >= 0
    assert (completed["executed_by"], completed["execution_env"]) == ("nousd", "host")
    snapshot = completed["policy_snapshot"]
    assert snapshot["permission_mode"] == "yolo"
    assert [each["source"] for each in snapshot["sources"]] == [
        *("registry", "session", "arguments", "rules", "mode", "runtime")
    ]
    everything = [e["payload"] for e in run if e["type"].startswith(STEPS)]
    assert len({call["input_hash"] for call in everything}) == 1
    assert {call["attempt"] for call in everything} == {1}


async def test_a_completed_call_has_its_duration_in_milliseconds(
    bench: Bench,
    provider: ScriptedProvider,
    tool: ScriptedTool,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def take_a_while(_: ToolContext) -> ToolResult:
        await trio.sleep(1.5)
        return ToolResult(text="at last")

    provider.answer(asks_for_tools(), says("done"))
    tool.finish(take_a_while)
    [completed] = of_type(await bench.run(), "tool_call_completed")
    assert completed["duration_ms"] == 1500


@pytest.mark.parametrize(
    ("outcome", "is_error"),
    [
        (gives("well"), False),
        (gives("badly", is_error=True), True),
        (breaks(ToolError("badly")), True),
        (breaks(OSError(28, "No space left on device")), True),
    ],
    ids=["well", "failed", "tool error", "system error"],
)
async def test_a_failed_call_is_completed_like_a_successful_one(
    bench: Bench, provider: ScriptedProvider, tool: ScriptedTool, outcome: Any, is_error: bool
) -> None:
    provider.answer(asks_for_tools(), says("done"))
    tool.finish(outcome)
    run = await bench.run()
    assert steps(run)[-2:] == ["completed", "execution_end"]
    [completed], [end] = of_type(run, "tool_call_completed"), of_type(run, "tool_execution_end")
    assert completed["is_error"] == end["is_error"] == is_error
    assert "duration_ms" in completed


@pytest.mark.behaviour("refused_calls_are_denied_and_never_started")
@pytest.mark.parametrize(
    ("name", "args", "consulted", "reason"),
    [
        ("nope", "{}", ["registry"], "tool_not_found: nope"),
        ("ls", "{}", ["registry", "session"], "tool_not_active: ls"),
        (
            "read",
            "[1",
            ["registry", "session", "arguments"],
            "validation_failed: arguments are not a JSON object",
        ),
        (
            "read",
            "{}",
            ["registry", "session", "arguments"],
            "validation_failed: read.path is required",
        ),
    ],
    ids=["unknown", "inactive", "unreadable", "invalid"],
)
async def test_a_refused_call_is_denied_by_the_last_consulted_source(
    bench: Bench, name: str, args: str, consulted: list[str], reason: str
) -> None:
    await bench.client.request("new_session")
    await bench.client.request("set_active_tools", tools=["read"])
    bench.provider.answer(asks_for((name, args)), says("done"))
    run = await bench.run()
    assert steps(run) == [
        *("execution_start", "requested"),
        *["policy_evaluated" for _ in consulted],
        *("denied", "execution_end"),
    ]
    evaluated = of_type(run, "tool_call_policy_evaluated")
    assert [source["source"] for source in evaluated] == consulted
    assert [source["decision"] for source in evaluated] == [
        *["allow"] * (len(consulted) - 1),
        "deny",
    ]
    [denied], [warning] = of_type(run, "tool_call_denied"), of_type(run, "warning")
    assert denied["by"] == "policy"
    assert denied["reason"] == evaluated[-1]["reason"] == warning["message"] == reason


@pytest.mark.parametrize("tool", ["bash", "git"])
async def test_commands_that_are_not_allowed_do_not_exist_and_a_warning_says_how_to_allow_them(
    tool: str, place: Place, stub: StubModel
) -> None:
    place.options = ("--no-allow-exec",)
    stub.script(tool_reply((tool, {"command": "true"})))
    async with running(place):
        events, client = await place.watch(types="all"), await place.connect()
        await client.request("prompt", text="go", wait=False)
        run = await events.run()
        [evaluated] = of_type(run, "tool_call_policy_evaluated")
        assert (evaluated["source"], evaluated["decision"]) == ("registry", "deny")
        [warning] = of_type(run, "warning")
        assert evaluated["reason"] == warning["message"] == f"tool_not_found: {tool}"
        assert "nousd serve --allow-exec" in warning["hint"]


async def test_a_call_skipped_by_a_steer_is_denied_without_a_policy_evaluation(
    bench: Bench, provider: ScriptedProvider, tool: ScriptedTool
) -> None:
    provider.answer(asks_for_tools(2), says("steered"))
    await bench.client.request("prompt", text="go", wait=False)
    await bench.events.until("tool_call_started")
    await bench.client.request("steer", text="stop")
    tool.finish(gives("well"))
    run = await bench.events.run()
    assert steps(run) == [
        *RAN,
        *("execution_start", "requested", "denied", "execution_update", "execution_end"),
    ]
    [denied] = of_type(run, "tool_call_denied")
    assert denied["by"] == "steer"
    assert denied["reason"] == "Skipped due to queued user message."


def assert_facts_are_reported(run: list[Event]) -> None:
    """Assert that the completion of the run's interrupted call has all its known facts."""
    [started], [completed] = of_type(run, "tool_call_started"), of_type(run, "tool_call_completed")
    assert (completed["executed_by"], completed["execution_env"]) == ("nousd", "unknown")
    snapshot = completed["policy_snapshot"]
    assert snapshot["permission_mode"] == started["permission_mode"]
    assert [each["source"] for each in snapshot["sources"]] == [
        *("registry", "session", "arguments", "rules", "mode", "runtime")
    ]


@pytest.mark.behaviour("started_calls_are_completed")
async def test_an_aborted_call_is_completed_and_the_calls_after_it_have_no_events(
    bench: Bench, provider: ScriptedProvider
) -> None:
    provider.answer(asks_for_tools(3))
    await bench.client.request("prompt", text="go", wait=False)
    await bench.events.until("tool_call_started")
    await bench.client.request("abort")
    run = await bench.events.run()
    assert steps(run) == [step for step in RAN if step != "execution_update"]
    [completed], [end] = of_type(run, "tool_call_completed"), of_type(run, "tool_execution_end")
    assert (completed["is_error"], completed["stop_reason"]) == (True, "aborted")
    assert "duration_ms" not in completed
    assert_facts_are_reported(run)
    assert (end["executed"], end["result"]) == (True, "tool_error: aborted")


@pytest.fixture
def place(short_folder: Path, stub: StubModel) -> Place:
    return Place(short_folder, stub)


@pytest.mark.slow
@pytest.mark.behaviour("started_calls_are_completed")
async def test_a_call_interrupted_by_a_kill_is_completed_at_the_next_start(
    place: Place, stub: StubModel, short_folder: Path
) -> None:
    with lifeline(short_folder / "lifeline") as line:
        script = f'exec 9>"{line.path}"; echo ready >&9; sleep 1000'
        stub.script(tool_reply(("bash", {"command": script})))
        async with running(place) as process:
            client = await place.connect()
            await client.request("prompt", text="go", wait=False)
            await line.wait_ready(1)
            await process.kill()
            await line.wait_gone()
    async with running(place):
        replay = await place.watch(after="evt-0", types="all")
        run = await replay.run()
        [completed] = of_type(run, "tool_call_completed")
        assert (completed["is_error"], completed["stop_reason"]) == (True, "interrupted")
        assert (completed["tool_name"], completed["attempt"]) == ("bash", 1)
        assert_facts_are_reported(run)
        assert types(run)[-5:] == [
            *("tool_call_completed", "tool_execution_end", "entry_appended"),
            *("turn_end", "agent_end"),
        ]


async def test_a_client_that_never_subscribes_receives_only_the_frozen_types(
    tmp_path: Path, provider: ScriptedProvider, tool: ScriptedTool
) -> None:
    async with memory_daemon(workdir=tmp_path, provider=provider, tools=[tool.tool]) as daemon:
        events, client = await daemon.listen(), await daemon.connect()
        provider.answer(asks_for(("nope", "{}"), ("work", "{}")), says("done"))
        tool.finish(gives("well"))
        await client.request("prompt", text="go", wait=False)
        assert types(await events.run()) == [
            *("agent_start", "turn_start", "message_start", "message_end"),
            *("message_start", "status", "message_end"),
            *("tool_execution_start", "warning", "tool_execution_end"),
            *("tool_execution_start", "tool_execution_update", "tool_execution_end"),
            *("status", "message_start", "message_update", "message_end"),
            *("turn_end", "agent_end"),
        ]


# --- model inputs ----------------------------------------------------------------------------


@pytest.mark.behaviour("model_inputs_are_told")
async def test_each_model_call_has_a_model_input_event_that_matches_its_request(
    bench: Bench, provider: ScriptedProvider, tool: ScriptedTool
) -> None:
    await bench.client.request("new_session")
    await bench.client.request("set_active_tools", tools=["read"])
    provider.answer(asks_for_tools(), says("done"))
    tool.finish(gives("well"))
    run = await bench.run()
    first, second = of_type(run, "model_input")
    entries = [appended["entry"] for appended in of_type(run, "entry_appended")]
    assert (first["leaf_id"], second["leaf_id"]) == (entries[0]["id"], entries[2]["id"])
    for told, request in zip((first, second), provider.requests, strict=True):
        assert told["model"] == request.model == "scripted-model"
        assert told["messages"] == len(request.messages)
        assert told["tools"] == [tool.name for tool in request.tools] == ["read", "work"]
        assert told["omitted_count"] == 0
        assert "omitted" not in told
    assert (first["entries"], second["entries"]) == (1, 3)
    assert first["tokens_estimated"] < second["tokens_estimated"]


async def test_the_model_input_event_precedes_the_models_message(
    bench: Bench, provider: ScriptedProvider
) -> None:
    await bench.client.request("prompt", text="go", wait=False)
    await bench.events.until("model_input")
    provider.answer(says("done"))
    run = await bench.events.run()
    assert types(run)[types(run).index("model_input") + 1] == "message_start"


async def test_an_omitted_entry_is_named_with_its_reason(
    bench: Bench, provider: ScriptedProvider
) -> None:
    provider.answer(says(), says("done"))
    empty = of_type(await bench.run(), "entry_appended")[-1]["entry"]["id"]
    [told] = of_type(await bench.run("again"), "model_input")
    assert (told["entries"], told["messages"]) == (3, 2)
    assert told["omitted"] == [{"entry_id": empty, "reason": "empty"}]
    assert told["omitted_count"] == 1


async def test_of_many_omitted_entries_the_oldest_are_named_and_all_are_counted(
    bench: Bench, provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nousd.machine.context.model_input_event.OMITTED_MAX", 2)
    empty = []
    for _ in range(3):
        provider.answer(says())
        empty.append(of_type(await bench.run(), "entry_appended")[-1]["entry"]["id"])
    provider.answer(says("done"))
    [told] = of_type(await bench.run(), "model_input")
    assert [omitted["entry_id"] for omitted in told["omitted"]] == empty[:2]
    assert told["omitted_count"] == 3


async def test_a_model_call_retried_after_compaction_has_its_own_model_input_event(
    tmp_path: Path, provider: ScriptedProvider, tool: ScriptedTool
) -> None:
    native = NativeSettings(keep_recent_tokens=1)
    async with open_bench(tmp_path, provider, tool, native=native) as bench:
        provider.answer(says("one"))
        await bench.run("first")
        provider.answer(fails(ContextOverflow("too long")), says("a summary"), says("two"))
        run = await bench.run("second")
        before, summary, after = of_type(run, "model_input")
        assert (before["entries"], summary["entries"], after["entries"]) == (3, 2, 2)
        assert [told["purpose"] for told in (before, summary, after)] == [
            *("answer", "summary", "answer")
        ]
        assert after["strategy"] == ["compacted"]
        [compaction] = [
            appended["entry"]
            for appended in of_type(run, "entry_appended")
            if appended["entry"]["type"] == "compaction"
        ]
        assert after["leaf_id"] == compaction["id"]


async def test_a_failed_model_call_also_has_a_model_input_event(
    bench: Bench, provider: ScriptedProvider
) -> None:
    provider.answer(fails(ProviderError("no")))
    run = await bench.run()
    told = types(run)
    assert told.index("model_input") < told.index("error")
    assert told[-1] == "agent_end"


# --- commits ---------------------------------------------------------------------------------


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The event types of each batch submitted to the store so far."""
    seen: list[list[str]] = []
    submit = memory.MemoryStore.submit

    def note(store: memory.MemoryStore, batch: Batch) -> None:
        seen.append([record.type for record in batch.records])
        submit(store, batch)

    monkeypatch.setattr(memory.MemoryStore, "submit", note)
    return seen


@pytest.mark.parametrize(("name", "commits"), [("work", 2), ("nope", 1)], ids=["run", "refused"])
async def test_a_tool_call_takes_two_commits_and_a_refused_one_takes_one(
    bench: Bench, batches: list[list[str]], name: str, commits: int
) -> None:
    bench.provider.answer(asks_for(*[(name, "{}")] * 3), says("done"))
    bench.tool.finish(*[gives("well")] * 3)
    await bench.run()
    of_calls = [batch for batch in batches if any(type_.startswith(STEPS) for type_ in batch)]
    assert len(of_calls) == 3 * commits


async def test_a_model_input_event_shares_the_commit_of_the_status_before_it(
    bench: Bench, batches: list[list[str]], provider: ScriptedProvider
) -> None:
    provider.answer(asks_for(("nope", "{}")), says("done"))
    await bench.run()
    of_models = [batch for batch in batches if "model_input" in batch]
    assert of_models == [["model_input"], ["status", "model_input"]]


async def test_output_has_the_stream_that_the_tool_tells_and_no_secret_in_either(
    tmp_path: Path, provider: ScriptedProvider, tool: ScriptedTool
) -> None:
    async def play(context: ToolContext) -> ToolResult:
        await context.emit("plain ")
        for piece in ("the sk-sec", "ret-01", "23456789"):
            await context.emit(piece, "stdout")
            await context.emit(f"{piece}!", "stderr")
        return ToolResult("done")

    redactor = Redactor(["sk-secret-0123456789"])
    async with open_bench(tmp_path, provider, tool, secrets=redactor) as bench:
        provider.answer(asks_for_tools(), says("done"))
        tool.finish(play)
        updates = of_type(await bench.run(), "tool_execution_update")
    told = {
        stream: "".join(each["delta"] for each in updates if each.get("stream") == stream)
        for stream in (None, "stdout", "stderr")
    }
    assert told == {
        None: "plain ",
        "stdout": "the [redacted]",
        "stderr": "the sk-sec!ret-01!23456789!",
    }


@pytest.mark.parametrize("breaks_off", [False, True])
async def test_a_lone_surrogate_from_a_tool_becomes_a_replacement_character(
    bench: Bench, provider: ScriptedProvider, tool: ScriptedTool, *, breaks_off: bool
) -> None:
    async def play(context: ToolContext) -> ToolResult:
        await context.emit("so\ud800far")
        if breaks_off:
            raise ToolError("bro\ud800ken")
        return ToolResult("do\udfffne")

    provider.answer(asks_for_tools(), says("done"))
    tool.finish(play)
    run = await bench.run()
    [update] = of_type(run, "tool_execution_update")
    assert update["delta"] == "so\ufffdfar"
    [end] = of_type(run, "tool_execution_end")
    assert end["result"] == ("tool_error: bro\ufffdken" if breaks_off else "do\ufffdne")
    messages = await bench.client.request("get_messages")
    assert [m["text"] for m in messages["messages"]][2] == end["result"]
