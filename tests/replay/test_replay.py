"""A replay reproduces every kind of run and detects every kind of difference."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from nousd.daemon.workspace.instructions import no_instructions
from nousd.errors import ContextOverflow, NotReplayable, ProviderError, ToolError
from nousd.machine.context.prompt_sections import SourceText
from nousd.providers.interface import ReasoningDelta, Receive, TextDelta, ToolCallPiece
from nousd.providers.mock.provider import MockProvider
from nousd.redaction.redactor import Redactor
from nousd.replay.compare import compare_run, normalise_events
from nousd.replay.play import Tuning, play
from nousd.replay.recorded import RecordedRun, read_run
from nousd.replay.recorded_context import context_of
from nousd.replay.replay import replay_run
from nousd.runtimes.native.loop import NativeSettings
from nousd.store.memory import pruning as _pruning_memory
from nousd.store.memory import store as memory
from nousd.store.memory.rows import Rows
from nousd.store.records import OldDeltas
from nousd.wire import events
from tests.daemon.scripted import (
    ScriptedProvider,
    ScriptedTool,
    asks_for_tools,
    breaks,
    emits,
    fails,
    gives,
    says,
    streams,
)
from tests.harness.daemon import Client, Events, memory_daemon
from tests.replay.memory_log import MemoryLog, replays

ALL_OF_IT = OldDeltas("9999", until=2**60)


@asynccontextmanager
async def daemon_with_log(
    workdir: Path, provider: Any = None, **options: Any
) -> AsyncIterator[tuple[Client, Events, Rows]]:
    async with memory.open_store() as store:
        provider = provider or MockProvider()
        async with memory_daemon(
            workdir=workdir, provider=provider, store=store, **options
        ) as daemon:
            rows: Rows = store._rows  # type: ignore[attr-defined]
            yield await daemon.connect(), await daemon.watch(types="all"), rows


async def check_all_same(rows: Rows, tuning: Tuning | None = None) -> None:
    reports = await replays(rows, tuning)
    assert reports
    for report in reports.values():
        assert report.is_same, "\n".join(report.lines)
        assert not report.notes


async def recorded(workdir: Path, text: str, **options: Any) -> RecordedRun:
    """Record a run of the built-in model with this prompt and these options."""
    (workdir / "a.txt").write_text("alpha\n")
    async with daemon_with_log(workdir) as (client, watch, rows):
        if options.get("reuse_appended"):
            await client.request("append_message", text=text)
            await client.request("append_message", text="and that")
        accepted = await client.request("prompt", text=text, wait=False, **options)
        await watch.run(accepted["run_id"])
        return read_run(MemoryLog(rows), accepted["run_id"])


LOOK = (
    '[[think 3]] [[text Looking.]] [[tool read {"path":"a.txt"}]] [[tool nosuch {}]] '
    '[[tool read {"path":1}]] [[tool bash {"command":"echo out; exit 3"}]] [[then]] [[say 3]]'
)


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize(
    "text",
    [
        LOOK,
        "[[error 503 x2]] [[say 2]]",
        "[[error 400]]",
        "[[error 503]]",
        "[[text half]] [[error 500]]",
        f'[[tool write {{"path":"b.txt","content":"{"long " * 4000}"}}]] [[then]] [[say 1]]',
        f"{'a long text ' * 2000} [[say 1]]",
        '[[tool bash {"command":"seq 1 20000"}]] [[then]] [[say 1]]',
        '[[tool bash {"command":"echo out; echo err >&2; seq 1 200"}]] [[then]] [[say 1]]',
        '[[tool read {"path":"../outside"}]] [[then]] [[say 1]]',
        "[[text   ]]",
        '[[tool todo {"todos":[{"content":"look"}]}]] [[then]] [[tool todo {"todos":[]}]] [[say 1]]',
    ],
)
async def test_a_run_replays_identically(text: str, tmp_path: Path) -> None:
    run = await recorded(tmp_path, text)
    report = await replay_run(run, Tuning())
    assert report.is_same, "\n".join(report.lines)
    assert report.events == len(normalise_events(run.events))
    # The model inputs are compared down to their hash.
    assert context_of(run).is_known


@pytest.mark.parametrize(
    "options",
    [
        {"tools": ["read"], "client_id": "desktop", "agent_profile": "reviewer"},
        {"tools": [], "sampling": {"temperature": 0.5}, "tool_choice": "none"},
        {"tool_choice": "required"},
        {"reuse_appended": True},
    ],
)
async def test_a_run_with_prompt_options_replays_identically(options: Any, tmp_path: Path) -> None:
    run = await recorded(tmp_path, LOOK, **options)
    report = await replay_run(run, Tuning())
    assert report.is_same, "\n".join(report.lines)
    assert context_of(run).is_known


@pytest.mark.slow
async def test_a_run_with_joined_deltas_replays_identically(tmp_path: Path) -> None:
    async with daemon_with_log(tmp_path) as (client, _, rows):
        for text in (LOOK, "[[think 5]] [[say 20]]"):
            await client.request("prompt", text=text)
        before = len(rows.events)
        while _pruning_memory.prune(rows, ALL_OF_IT).more:
            pass
        assert len(rows.events) < before
        await check_all_same(rows)


async def test_compactions_replay_identically(tmp_path: Path) -> None:
    native = NativeSettings(compact_at=0.6, keep_recent_tokens=300)
    provider = MockProvider(context_window_tokens=6000)
    async with daemon_with_log(tmp_path, provider, native=native) as (client, _, rows):
        for _ in range(6):
            await client.request("prompt", text=f"{'words ' * 1000} [[say 50]]")
        types = [event.type for event in rows.events]
        lines = b"".join(event.line for event in rows.events)
        assert b'"trigger":"auto"' in lines, types
        await check_all_same(rows, Tuning(compact_at=0.6, keep_recent_tokens=300))


async def test_settings_changed_during_a_run_replay_at_the_same_point(tmp_path: Path) -> None:
    provider, tool = ScriptedProvider(), ScriptedTool()
    options: dict[str, Any] = {"tools": [tool.tool]}
    async with daemon_with_log(tmp_path, provider, **options) as (client, _, rows):
        await client.request("prompt", text="go", wait=False)
        provider.answer(asks_for_tools(2))
        await tool.calls.wait_waiting()
        await client.request("set_active_tools", tools=["read"])
        await client.request("set_model", model="another")
        await client.request("follow_up", text="later")
        await client.request("set_follow_up_mode", mode="all")
        tool.finish(gives("one"), breaks(ToolError("two")))
        await provider.calls.wait_waiting()
        await client.request("rename_session", name="new")
        provider.answer(says("done"), fails(ProviderError("no"), "half"))
        await trio.testing.wait_all_tasks_blocked()
        await check_all_same(rows)


@pytest.mark.parametrize("outcomes", [1, 2, 3])
async def test_calls_with_a_context_overflow_replay_identically(
    tmp_path: Path, outcomes: int
) -> None:
    """The input is shortened by omissions, by a compaction, or not at all."""
    provider, tool = ScriptedProvider(), ScriptedTool()
    async with daemon_with_log(tmp_path, provider, tools=[tool.tool]) as (client, watch, rows):
        too_long = fails(ContextOverflow("too long"))
        for turn in range(outcomes - 1):
            provider.answer(asks_for_tools(), says(f"answer {turn}"))
            tool.finish(gives("words " * 500))
            await client.request("prompt", text=f"{'question ' * 300} {turn}")
        provider.answer(asks_for_tools(), too_long, *[says("short")] * 3)
        tool.finish(gives("words " * 500))
        await client.request("prompt", text="go", wait=False)
        await watch.run()
        await trio.testing.wait_all_tasks_blocked()
        provider.calls.forget()
        provider.answer(too_long, too_long, too_long)
        await client.request("prompt", text="again", wait=False)
        await trio.testing.wait_all_tasks_blocked()
        lines = b"".join(event.line for event in rows.events)
        assert b'"code":"context_too_large"' in lines
        await check_all_same(rows)


@pytest.mark.parametrize(
    ("command", "payload"),
    [
        ("set_model", {"model": "another"}),
        ("set_active_tools", {"tools": ["read"]}),
        ("set_active_tools", {"tools": []}),
        ("steer", {"text": "and now"}),
    ],
)
async def test_commands_that_came_too_late_for_a_model_call_replay_identically(
    tmp_path: Path, command: str, payload: dict[str, Any]
) -> None:
    provider, tool = ScriptedProvider(), ScriptedTool()
    asked, may_read = trio.Event(), trio.Event()

    async def slow_instructions() -> Sequence[SourceText]:
        asked.set()
        await may_read.wait()
        return await no_instructions()

    options: dict[str, Any] = {"tools": [tool.tool], "read_instructions": slow_instructions}
    async with daemon_with_log(tmp_path, provider, **options) as (client, watch, rows):
        await client.request("prompt", text="go", wait=False)
        await asked.wait()
        await client.request(command, **payload)
        may_read.set()
        provider.answer(asks_for_tools(), says("done"), says("and more"))
        tool.finish(gives("one"))
        await watch.run()
        await check_all_same(rows)


async def test_a_run_in_a_branch_of_a_deleted_session_replays_identically(tmp_path: Path) -> None:
    async with daemon_with_log(tmp_path) as (client, _, rows):
        await client.request("prompt", text="one [[say 2]]")
        parent = (await client.request("get_state"))["session_id"]
        await client.request("branch_session", session_id=parent)
        await client.request("prompt", text="two")
        await client.request("delete_session", session_id=parent)
        await check_all_same(rows)


async def test_a_run_that_cannot_be_replayed_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with daemon_with_log(tmp_path) as (client, _, rows):
        log = MemoryLog(rows)
        with pytest.raises(NotReplayable, match="the log has no run nosuch"):
            read_run(log, "nosuch")
        long = f"{'a long text ' * 2000} [[say 1]]"
        run_id = (await client.request("prompt", text=long))["run_id"]
        going = await client.request("prompt", text="[[hang]]", wait=False)
        with pytest.raises(NotReplayable, match="has no end: it is going on"):
            read_run(log, going["run_id"])
        await client.request("abort")
        artifact = next(id for id, kept in rows.artifacts.items() if b"a long text" in kept.data)
        del rows.artifacts[artifact]
        with pytest.raises(NotReplayable, match=f"the artifact {artifact}, .* is gone"):
            read_run(log, run_id)


async def test_model_inputs_whose_artifacts_are_gone_are_not_compared(tmp_path: Path) -> None:
    run = await recorded(tmp_path, "[[say 2]]")
    report = await replay_run(msgspec.structs.replace(run, artifacts={}), Tuning())
    assert report.is_same, "\n".join(report.lines)
    assert report.lines[1:] == ("not compared: what follows from the system prompt, which is gone",)


# --- differences -------------------------------------------------------------------------------

Change = Callable[[events.Event], events.Event]


def changed(kind: type[events.Event], **fields: Any) -> Change:
    """Return a function that changes the events of this type."""
    return lambda event: msgspec.structs.replace(event, **fields) if type(event) is kind else event


def entry_changed(event: events.Event) -> events.Event:
    if not isinstance(event, events.EntryAppended):
        return event
    entry = msgspec.structs.replace(event.entry, parent_id="msg-elsewhere")
    return msgspec.structs.replace(event, entry=entry)


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize(
    "change",
    [
        changed(events.MessageEnd, text="other"),
        changed(events.ToolExecutionEnd, result="other"),
        changed(events.ToolCallPolicyEvaluated, reason="other"),
        changed(events.ModelInput, input_hash="sha256:0"),
        changed(events.ModelInput, tools=("read",)),
        changed(events.UsageReported, model="other"),
        changed(events.ToolCallCompleted, is_error=False),
        changed(events.Status, message="other"),
        changed(events.TurnEnd, turn_id="2"),
        entry_changed,
    ],
)
async def test_a_changed_event_is_a_difference(change: Change, tmp_path: Path) -> None:
    run = await recorded(tmp_path, LOOK)
    played = await play(run, Tuning())
    assert compare_run(run, played, inputs_known=True).is_same
    other = msgspec.structs.replace(run, events=tuple(map(change, run.events)))
    difference = compare_run(other, played, inputs_known=True).difference
    assert difference[0].startswith("the first difference is in event ")
    assert difference[1:3] == ("--- recorded", "+++ played")


@pytest.mark.slow
async def test_a_missing_or_an_additional_event_is_a_difference(tmp_path: Path) -> None:
    run = await recorded(tmp_path, LOOK)
    for gone in range(len(run.events)):
        fewer = (*run.events[:gone], *run.events[gone + 1 :])
        if normalise_events(fewer) != normalise_events(run.events):
            assert not compare_run(run, fewer, inputs_known=True).is_same
            other = msgspec.structs.replace(run, events=fewer)
            assert not compare_run(other, run.events, inputs_known=True).is_same


async def test_other_ids_times_and_delta_boundaries_are_not_a_difference(tmp_path: Path) -> None:
    one = await recorded(tmp_path, LOOK)
    lines = json.dumps([msgspec.to_builtins(event) for event in one.events])
    for id in ("msg-", "in-", "run-"):
        lines = lines.replace(id, f"{id}f")
    later = lines.replace("2026-01-01T", "2027-02-02T")
    kinds = [type(event) for event in one.events]
    other = [
        msgspec.convert(value, kind) for value, kind in zip(json.loads(later), kinds, strict=True)
    ]
    cut: list[events.Event] = []
    for event in other:
        if isinstance(event, events.MessageUpdate):
            halves = (event.delta[:2], event.delta[2:])
            cut += [msgspec.structs.replace(event, delta=half) for half in halves if half]
        else:
            cut.append(event)
    assert len(cut) > len(other)
    comparison = compare_run(one, cut, inputs_known=True)
    # The hash covers the ids too, since an id pairs a call with its result.
    assert comparison.is_same or "input_hash" in "".join(comparison.difference)
    without = [
        {key: value for key, value in line.items() if key not in ("input_hash", "rest_ref")}
        for line in normalise_events(cut)
    ]
    assert without == [
        {key: value for key, value in line.items() if key not in ("input_hash", "rest_ref")}
        for line in normalise_events(one.events)
    ]


# --- keys that were removed ------------------------------------------------------------------


KEY = "sk-repeated-0123456789"


async def test_a_run_from_which_keys_were_removed_is_replayed(tmp_path: Path) -> None:
    provider, tool = ScriptedProvider(), ScriptedTool()
    options: dict[str, Any] = {"tools": (tool.tool,), "secrets": Redactor([KEY])}
    async with daemon_with_log(tmp_path, provider, **options) as (client, _, rows):
        tool.finish(emits("a ", KEY[:4], KEY[4:], " s"))
        provider.answer(
            streams(
                *(TextDelta(part) for part in ("a ", KEY[:9], KEY[9:])),
                *(ReasoningDelta(part) for part in (KEY, " s")),
                ToolCallPiece("own-1", "work", json.dumps({"note": KEY})),
            ),
            says("done s"),
        )
        await client.request("prompt", text="go")
        provider.answer(fails(ProviderError("gone"), "s"))
        await client.answer(await client.ask("prompt", text="go"))
        await check_all_same(rows)


@pytest.mark.parametrize("deltas", [["s"], ["a ", "s"]])
async def test_an_answer_that_was_aborted_while_its_end_waited_is_replayed(
    tmp_path: Path, deltas: list[str]
) -> None:
    provider, begun = ScriptedProvider(), trio.Event()

    async def play(receive: Receive) -> None:
        for delta in deltas:
            await receive(TextDelta(delta))
        begun.set()
        await trio.sleep_forever()

    secrets = Redactor([KEY])
    async with daemon_with_log(tmp_path, provider, secrets=secrets) as (client, watch, rows):
        provider.answer(play)
        await client.request("prompt", text="go", wait=False)
        await begun.wait()
        await client.request("abort")
        await watch.run()
        await check_all_same(rows)
