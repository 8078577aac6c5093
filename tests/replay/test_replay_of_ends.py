"""However a run ends, its replay ends in the same way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import trio
from msgspec import UNSET
from trio.testing import wait_all_tasks_blocked

from nousd.errors import ConfigError, ContextOverflow, ProviderError, without_category
from nousd.machine.context.model_input import ModelChoice
from nousd.providers.interface import Receive, TextDelta, ToolCallPiece
from nousd.providers.models.catalog import Models
from nousd.replay.compare import compare_run
from nousd.replay.play import Tuning
from nousd.replay.recorded import read_run
from nousd.replay.replay import replay_run
from nousd.runtimes.native.loop import NativeSettings
from nousd.store.memory import store as memory
from nousd.store.memory.rows import Rows
from nousd.wire import events
from nousd.wire.events import Event
from nousd.wire.objects.entries import MessageEntry
from tests.daemon.scripted import (
    Outcome,
    ScriptedProvider,
    ScriptedTool,
    asks_for_tools,
    fails,
    gives,
    says,
    streams,
)
from tests.daemon.task_bench import hangs, task_daemon, tasks
from tests.daemon.test_queue_properties import KillableStore
from tests.harness.daemon import Client, Events, FakeClock, memory_daemon
from tests.replay.memory_log import MemoryLog, replays
from tests.replay.test_replay import daemon_with_log, recorded

PROMPT_GONE: Final = "not compared: what follows from the system prompt, which is gone"
TOO_LONG: Final = fails(ContextOverflow("too long"))
SUMMARY: Final = says("a summary")


# --- a model server that refuses -----------------------------------------------------------------


@pytest.mark.slow(keep=5)
@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize(
    "text",
    [
        *(f"[[error {code}]]" for code in (400, 401, 403, 404, 408, 409, 413, 422, 429, 500, 529)),
        *(f"[[text half]] [[error {code}]]" for code in (401, 413, 503)),
        *(f"[[think 3]] [[error {code}]]" for code in (401, 413, 503)),
        "[[error 413 x1]] [[say 2]]",
        "[[error 413 x1]] [[error 503]]",
        "[[error 413 x1]] [[error 400]]",
        "[[error 503 x1]] [[error 413 x1]] [[error 503 x1]] [[say 2]]",
        '[[tool read {"path":"a.txt"}]] [[then]] [[error 413]]',
        '[[tool read {"path":"a.txt"}]] [[then]] [[error 413 x1]] [[say 3]]',
        '[[tool read {"path":"a.txt"}]] [[then]] [[error 401]]',
    ],
)
async def test_a_run_that_a_model_server_refuses_replays_identically(
    text: str, before: int, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("alpha\n" * 3000)
    async with daemon_with_log(tmp_path) as (client, _, rows):
        for number in range(before):
            await client.request("prompt", text=f"{'question ' * 3000} {number} [[say 2]]")
        await client.answer(await client.ask("prompt", text=text))
        await check_all_end_the_same(rows)


def as_logged_without_categories(event: Event) -> Event:
    """Return the event as a version wrote it that knew no categories."""
    match event:
        case events.Error(category=str(category), cause=cause):
            words = without_category(category, cause)
            return msgspec.structs.replace(event, cause=words, category=UNSET)
        case events.AgentEnd(category=str(category), error=str(error)):
            words = without_category(category, error)
            return msgspec.structs.replace(event, error=words, category=UNSET)
        case events.EntryAppended(entry=MessageEntry(error=str(error)) as entry):
            entry = msgspec.structs.replace(entry, error=error.partition(": ")[2])
            return msgspec.structs.replace(event, entry=entry)
    return event


@pytest.mark.parametrize(
    "text", ["[[error 401]]", "[[text half]] [[error 503]]", "[[error 413]]", "y" * 100_000]
)
async def test_a_run_of_a_log_without_categories_replays_identically(
    text: str, tmp_path: Path
) -> None:
    native = NativeSettings(context_window=8_000)
    async with daemon_with_log(tmp_path, native=native) as (client, _, rows):
        await client.answer(await client.ask("prompt", text=text))
        (run_id,) = rows.runs
        run = read_run(MemoryLog(rows), run_id)
    old = tuple(as_logged_without_categories(event) for event in run.events)
    assert old != run.events
    for logged in (run.events, old):
        report = await replay_run(msgspec.structs.replace(run, events=logged), Tuning())
        assert report.is_same, "\n".join(report.lines)


async def test_a_replay_without_the_category_of_its_run_is_a_difference(tmp_path: Path) -> None:
    run = await recorded(tmp_path, "[[error 401]]")
    played = tuple(as_logged_without_categories(event) for event in run.events)
    assert compare_run(run, run.events, inputs_known=True).is_same
    assert not compare_run(run, played, inputs_known=True).is_same


# --- an input that is too long -------------------------------------------------------------------


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize("window", [1_000, 2_000, 3_000])
@pytest.mark.parametrize("before", [0, 1, 4])
@pytest.mark.parametrize(
    "text",
    [
        "y" * 10_000,
        "y" * 7_000,
        '[[tool read {"path":"a.txt"}]] [[then]] [[say 3]]',
        '[[tool read {"path":"a.txt"}]] [[tool read {"path":"a.txt"}]] [[then]] [[say 3]]',
    ],
)
async def test_a_context_too_large_run_replays_identically(
    text: str, before: int, window: int, tmp_path: Path
) -> None:
    """Before a model is asked, after a compaction, and after the results of tools."""
    (tmp_path / "a.txt").write_text("alpha\n" * 1500)
    native = NativeSettings(context_window=window)
    async with daemon_with_log(tmp_path, native=native) as (client, _, rows):
        await client.request("set_active_tools", tools=["read"])
        for number in range(before):
            text_before = f"{'question ' * 300} {number} [[say 2]]"
            await client.answer(await client.ask("prompt", text=text_before))
        await client.answer(await client.ask("prompt", text=text))
        await check_all_end_the_same(rows)


async def check_all_end_the_same(rows: Rows) -> None:
    """Replay every run; of one that asked no model its prompt and tools are unknown."""
    for report in (await replays(rows)).values():
        assert report.is_same, "\n".join(report.lines)
        assert set(report.notes) <= {PROMPT_GONE}


# --- everything else -----------------------------------------------------------------------------


class TwoWindows(ScriptedProvider):
    """A provider with a model that is too small for the system prompt."""

    def context_window(self, model: str) -> int:
        return 1_000 if model == "small" else 6_000


class Stage:
    """A daemon whose model and tool do what a story says."""

    def __init__(
        self, client: Client, events: Events, model: ScriptedProvider, tool: ScriptedTool
    ) -> None:
        self.client = client
        self.events = events
        self.model = model
        self.tool = tool

    async def run(self, text: str, *outcomes: Outcome, **options: Any) -> None:
        await self.begin(text, *outcomes, **options)
        await self.events.run()
        self.model.calls.forget()

    async def begin(self, text: str, *outcomes: Outcome, **options: Any) -> None:
        self.model.answer(*outcomes)
        await self.client.request("prompt", text=text, wait=False, **options)

    async def fill(self) -> None:
        """Make the transcript so long that the next prompt causes a compaction."""
        for number in range(2):
            await self.run(f"{'question ' * 500} {number}", says("answer " * 20))

    async def abort(self, calls: int) -> None:
        """Abort the run once the model waits in that call."""
        await wait_all_tasks_blocked()
        assert len(self.model.requests) == calls
        await self.client.request("abort")
        await self.events.run()


Story = Callable[[Stage], Awaitable[None]]


@asynccontextmanager
async def stage(folder: Path, **options: Any) -> AsyncIterator[tuple[Stage, Rows]]:
    model, tool = TwoWindows(), ScriptedTool()
    options = {"native": BOUNDS, "tools": [tool.tool], **options}
    async with daemon_with_log(folder, model, **options) as (client, events, rows):
        await client.request("set_active_tools", tools=[])
        yield Stage(client, events, model, tool), rows


async def summary_fails(stage: Stage) -> None:
    await stage.fill()
    await stage.run("q" * 4_000, fails(ProviderError("no"), "half"), says("done"))


async def summary_overflows(stage: Stage) -> None:
    await stage.fill()
    await stage.run("q" * 4_000, TOO_LONG, says("done"))


async def answer_fails_behind_a_compaction(stage: Stage) -> None:
    await stage.fill()
    await stage.run("q" * 4_000, SUMMARY, fails(ProviderError("no"), "half"))


async def overflow_behind_a_compaction(stage: Stage) -> None:
    await stage.fill()
    await stage.run("q" * 4_000, SUMMARY, *[TOO_LONG] * 3)


async def overflow_is_compacted_and_tried_again(stage: Stage) -> None:
    await stage.run("q" * 2_000, says("answer"))
    await stage.run("and", TOO_LONG, SUMMARY, says("done"))


async def overflow_twice(stage: Stage) -> None:
    await stage.run("q" * 2_000, says("answer"))
    await stage.run("and", TOO_LONG, SUMMARY, TOO_LONG)


async def overflow_whose_compaction_fails(stage: Stage) -> None:
    await stage.run("q" * 2_000, says("answer"))
    await stage.run("and", TOO_LONG, fails(ProviderError("no")), TOO_LONG)


async def aborted_in_the_first_summary(stage: Stage) -> None:
    await stage.fill()
    await stage.begin("q" * 4_000)
    await stage.abort(3)


async def aborted_in_a_later_summary(stage: Stage) -> None:
    await stage.fill()
    await stage.begin("q", asks_for_tools())
    stage.tool.finish(gives("words " * 600))
    await stage.abort(4)


async def aborted_behind_a_compaction(stage: Stage) -> None:
    await stage.fill()
    await stage.begin("q" * 4_000, SUMMARY)
    await stage.abort(4)


async def aborted_in_an_overflow(stage: Stage) -> None:
    await stage.run("q" * 2_000, says("answer"))
    await stage.begin("and", TOO_LONG)
    await stage.abort(3)


async def another_model_is_too_small(stage: Stage) -> None:
    await stage.begin("go", asks_for_tools())
    await stage.tool.calls.wait_waiting()
    await stage.client.request("set_model", model="small")
    stage.tool.finish(gives())
    stage.model.answer(SUMMARY)
    await stage.events.run()


async def answer_is_too_long(stage: Stage) -> None:
    for piece in (TextDelta("x" * 900), ToolCallPiece("a", "work", f'{{"a":"{"x" * 900}"}}')):
        await stage.run("go", streams(TextDelta("so "), piece))


async def first_summary_is_too_long(stage: Stage) -> None:
    await stage.fill()
    await stage.run("q" * 4_000, says("x" * 900))


async def answers_of_a_run_are_too_long(stage: Stage) -> None:
    wants = streams(TextDelta("x" * 300), ToolCallPiece("a", "work", "{}"))
    for _ in range(9):
        stage.tool.finish(gives())
    await stage.run("go", *[wants] * 9)


async def too_many_model_calls(stage: Stage) -> None:
    for _ in range(9):
        stage.tool.finish(gives())
    await stage.run("go", *[asks_for_tools()] * 9)


async def nothing_happens(stage: Stage) -> None:
    await stage.run("go", hangs)
    await stage.run("go", half_and_hangs)


async def nothing_happens_in_the_first_summary(stage: Stage) -> None:
    await stage.fill()
    await stage.run("q" * 4_000, hangs)


async def half_and_hangs(receive: Receive) -> None:
    await receive(TextDelta("half"))
    await trio.sleep_forever()


async def nothing_to_resume(stage: Stage) -> None:
    await stage.run("go", says("done"))
    refused = await stage.client.answer(await stage.client.ask("resume"))
    assert refused["error"]["message"] == "nothing_to_resume"
    await stage.run("go", fails(ProviderError("no")))
    stage.model.answer(says("done"))
    await stage.client.request("resume")
    await stage.events.run()


BOUNDS: Final = NativeSettings(
    system="s" * 8_000,
    answer_bytes_max=800,
    run_answer_bytes_max=1_500,
    model_calls_max=7,
)
"""The prompt takes a third of the window, so that what is compacted depends on it."""


@pytest.mark.parametrize(
    ("story", "ends"),
    [
        (summary_fails, "completed"),
        (summary_overflows, "completed"),
        (answer_fails_behind_a_compaction, "provider_error"),
        (overflow_behind_a_compaction, "context_too_large"),
        (overflow_is_compacted_and_tried_again, "completed"),
        (overflow_twice, "context_too_large"),
        (overflow_whose_compaction_fails, "context_too_large"),
        (aborted_in_the_first_summary, "cancelled"),
        (aborted_in_a_later_summary, "cancelled"),
        (aborted_behind_a_compaction, "cancelled"),
        (aborted_in_an_overflow, "cancelled"),
        (another_model_is_too_small, "context_too_large"),
        (answer_is_too_long, "answer_too_long"),
        (first_summary_is_too_long, "answer_too_long"),
        (answers_of_a_run_are_too_long, "answer_too_long"),
        (too_many_model_calls, "tool_loop_limit_exceeded"),
        (nothing_happens, "timeout"),
        (nothing_happens_in_the_first_summary, "timeout"),
        (nothing_to_resume, "completed"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
@pytest.mark.slow(keep=3)
async def test_however_a_run_ends_it_replays_identically(
    story: Story, ends: str, tmp_path: Path
) -> None:
    async with stage(tmp_path, stale_seconds=2.0) as (on_stage, rows):
        await story(on_stage)
        codes = [event.line for event in rows.events if event.type in ("error", "agent_end")]
        assert any(f'"{ends}"'.encode() in line for line in codes[-2:]), codes
        await check_all_end_the_same(rows)


async def test_a_run_whose_provider_cannot_be_used_replays_identically(tmp_path: Path) -> None:
    def unusable() -> Any:
        raise ConfigError("provider scripted needs SCRIPTED_API_KEY")

    model, tool = ScriptedProvider(), ScriptedTool()
    default = ModelChoice("other", "any")
    lives = [
        Models({"other": lambda: model, "scripted": first}, default)
        for first in (lambda: model, unusable)
    ]
    given: dict[str, Any] = {"workdir": tmp_path, "clock": FakeClock()}
    async with memory.open_store() as log:
        for models in lives:
            async with memory_daemon(store=log, provider=model, models=models, **given) as daemon:
                client, events = await daemon.connect(), await daemon.watch(types="all")
                if models is lives[0]:
                    await client.request("set_model", model="scripted/scripted-model")
                await Stage(client, events, model, tool).run("go", says("done"))
        rows: Rows = log._rows  # type: ignore[attr-defined]
        assert b'"message":"the provider cannot be used"' in rows.events[-3].line
        await check_all_end_the_same(rows)


@pytest.mark.parametrize(
    "outcomes",
    [
        (hangs,),
        (TOO_LONG, hangs),
        (TOO_LONG, SUMMARY, hangs),
        (asks_for_tools(), hangs),
        (half_and_hangs,),
    ],
)
async def test_a_killed_run_replays_identically_once_the_next_start_has_ended_it(
    outcomes: tuple[Outcome, ...], tmp_path: Path
) -> None:
    async with memory.open_store() as log:
        mortal, model, tool = KillableStore(log), ScriptedProvider(), ScriptedTool()
        clock = FakeClock()
        given: dict[str, Any] = {"workdir": tmp_path, "clock": clock}
        async with memory_daemon(
            store=mortal, provider=model, tools=[tool.tool], **given
        ) as daemon:
            client, events = await daemon.connect(), await daemon.watch(types="all")
            on_stage = Stage(client, events, model, tool)
            await on_stage.run("q" * 2_000, says("answer"))
            tool.finish(gives())
            await on_stage.begin("go", *outcomes)
            await wait_all_tasks_blocked()
            assert len(model.requests) == 1 + len(outcomes)
            mortal.kill()
        async with memory_daemon(store=log, provider=model, **given):
            await wait_all_tasks_blocked()
        rows: Rows = log._rows  # type: ignore[attr-defined]
        assert b'"status":"interrupted"' in rows.events[-1].line
        await check_all_end_the_same(rows)


async def test_a_run_whose_task_fails_replays_identically_and_so_does_the_task(
    tmp_path: Path,
) -> None:
    async with memory.open_store() as log:
        async with task_daemon(tmp_path, store=log) as bench:
            bench.on("go", tasks({"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}), says("done"))
            bench.on("a", fails(ProviderError("no"), "half"))
            bench.on("b", TOO_LONG)
            bench.on("c", tasks({"prompt": "d"}), says("of c"))
            bench.on("d", fails(ProviderError("no")))
            await bench.run("go")
        rows: Rows = log._rows  # type: ignore[attr-defined]
        assert sum(b'"type":"error"' in event.line for event in rows.events) >= 3
        await check_all_end_the_same(rows)
