"""Answers of models that do not end: where they are cut, what is kept, and what a client sees."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from nousd.errors import ContextOverflow
from nousd.providers.interface import (
    Alive,
    Finished,
    Piece,
    Provider,
    ReasoningDelta,
    ReasoningKept,
    Receive,
    Retrying,
    TextDelta,
    ToolCallPiece,
)
from nousd.replay.play import Tuning
from nousd.runtimes.native.loop import NativeSettings
from nousd.store.memory import store as memory
from nousd.wire.limits import ANSWER_BYTES_MAX, RUN_ANSWER_BYTES_MAX
from nousd.wire.objects.entries import ReasoningBlock
from tests.daemon.process_harness import Place, running
from tests.daemon.scripted import (
    Outcome,
    ScriptedProvider,
    ScriptedTool,
    asks_for_tools,
    fails,
    gives,
    says,
)
from tests.daemon.task_bench import children_of, result_of, task_daemon, tasks
from tests.harness.daemon import (
    Client,
    Daemon,
    Event,
    Events,
    memory_daemon,
    of_type,
    socket_daemon,
    types,
)
from tests.harness.process_figures import MIB, figures_of
from tests.harness.stub_model import Reply, StubModel, burst, call_delta, delta, finish, tool_reply
from tests.replay.memory_log import replays

BOUND = 1024

CALL_WORDS = f"the model's answer has more than {BOUND} bytes; raise answer_bytes_max"


def bounded(of_run: int = 4 * BOUND, **more: Any) -> NativeSettings:
    return NativeSettings(answer_bytes_max=BOUND, run_answer_bytes_max=of_run, **more)


def pushes(*pieces: Piece) -> Outcome:
    """A model call that passes these pieces on, and then says how it ended."""

    async def play(receive: Receive) -> None:
        for piece in [*pieces, Finished("stop")]:
            await receive(piece)

    return play


def arguments_delta(text: str) -> dict[str, Any]:
    return call_delta(index=0, id="a", function={"name": "read", "arguments": text})


class Endless:
    """A model call that repeats its pieces until it is cancelled or refused; ``count`` of them came."""

    def __init__(self, *pieces: Piece) -> None:
        self._pieces = pieces
        self.count = 0
        self.ended = False

    async def __call__(self, receive: Receive) -> None:
        try:
            while True:
                for piece in self._pieces:
                    await receive(piece)
                    self.count += 1
        finally:
            self.ended = True


@asynccontextmanager
async def opened(
    folder: Path, provider: Provider, **options: Any
) -> AsyncIterator[tuple[Daemon, Client, Events]]:
    options.setdefault("native", bounded())
    async with memory_daemon(workdir=folder, provider=provider, **options) as daemon:
        yield daemon, await daemon.connect(), await daemon.watch(types="all")


async def run_of(client: Client, events: Events) -> list[Event]:
    accepted = await client.request("prompt", text="go", wait=False)
    return await events.run(accepted["run_id"])


def assert_too_long(run: Sequence[Event], words: str = CALL_WORDS) -> None:
    """Assert that a run has ended early for that reason, with everything balanced."""
    shown = [type for type in types(run) if type not in ("entry_appended", "usage_reported")]
    assert shown[-4:] == ["error", "message_end", "turn_end", "agent_end"]
    (error,) = of_type(run, "error")
    assert (error["code"], error["message"]) == ("answer_too_long", words)
    end = run[-1]["payload"]
    assert (end["status"], end["error"]) == ("error", words)
    assert of_type(run, "message_end")[-1]["stop_reason"] == "error"


@pytest.mark.behaviour("an_answer_that_does_not_end_ends_its_run")
@pytest.mark.parametrize(
    "pieces",
    [
        (TextDelta("word "),),
        (TextDelta("ä"), ReasoningDelta("hm")),
        (TextDelta("x" * 10 * BOUND),),
    ],
    ids=["text", "text and reasoning", "one piece"],
)
async def test_an_endless_answer_is_cut_at_its_bound_and_ends_the_run(
    pieces: tuple[Piece, ...], tmp_path: Path
) -> None:
    provider, endless = ScriptedProvider(), Endless(*pieces)
    async with opened(tmp_path, provider) as (_, client, events):
        provider.answer(endless)
        run = await run_of(client, events)
        assert_too_long(run)
        assert endless.ended
        end = of_type(run, "message_end")[-1]
        deltas = "".join(update["delta"] for update in of_type(run, "message_update"))
        thought = "".join(update["delta"] for update in of_type(run, "reasoning_update"))
        assert end["text"] == deltas
        assert BOUND - 1 <= len((deltas + thought).encode()) <= BOUND
        answer = (await client.request("get_messages"))["messages"][-1]
        assert (answer["text"], answer.get("reasoning", "")) == (deltas, thought)
        assert (answer["id"], answer["stop_reason"]) == (end["message_id"], "error")
        assert answer["error"] == CALL_WORDS
        provider.answer(says("fine"))
        assert (await client.request("prompt", text="again"))["output"] == "fine"


@pytest.mark.behaviour("an_answer_that_does_not_end_ends_its_run")
async def test_an_answer_as_long_as_the_bound_is_whole(tmp_path: Path) -> None:
    provider = ScriptedProvider()
    async with opened(tmp_path, provider) as (_, client, events):
        half = "ä" * (BOUND // 4)
        provider.answer(pushes(ReasoningDelta(half), TextDelta(half)))
        run = await run_of(client, events)
        assert run[-1]["payload"]["status"] == "completed"
        assert of_type(run, "message_end")[-1]["text"] == half
        provider.answer(pushes(ReasoningDelta(half), TextDelta(half + "!")))
        run = await run_of(client, events)
        assert_too_long(run)
        assert of_type(run, "message_end")[-1]["text"] == half


async def test_a_character_that_does_not_fit_whole_is_left_out(tmp_path: Path) -> None:
    provider = ScriptedProvider()
    async with opened(tmp_path, provider) as (_, client, events):
        provider.answer(says("x" * (BOUND - 3) + "\N{SLIGHTLY SMILING FACE}"))
        run = await run_of(client, events)
        assert of_type(run, "message_end")[-1]["text"] == "x" * (BOUND - 3)
        assert_too_long(run)


@pytest.mark.behaviour("an_answer_that_does_not_end_ends_its_run")
async def test_a_waited_for_prompt_says_why_its_run_failed(tmp_path: Path) -> None:
    provider = ScriptedProvider()
    async with opened(tmp_path, provider) as (_, client, _):
        provider.answer(Endless(TextDelta("on and on ")))
        error = await client.refusal("prompt", text="go")
        assert (error["code"], error["cause"]) == ("provider_error", CALL_WORDS)


@pytest.mark.behaviour("calls_of_a_cut_answer_are_not_run")
@pytest.mark.parametrize(
    "pieces",
    [
        (
            ToolCallPiece("a", "work", "{}"),
            ToolCallPiece("b", "work", '{"a": "%s"}' % ("x" * BOUND)),
        ),
        (ToolCallPiece("a", "work", "{}"), TextDelta("x" * (BOUND + 1))),
        (Alive(BOUND), Alive(BOUND + 1)),
        (TextDelta("x"), Alive(BOUND)),
        (
            ToolCallPiece("a", "work", "{}"),
            ReasoningKept(ReasoningBlock(dialect="d", data={"a": "x" * BOUND})),
        ),
    ],
    ids=["long arguments", "long text", "arguments on their way", "both", "kept reasoning"],
)
async def test_no_tool_call_of_an_answer_that_is_cut_is_run(
    pieces: tuple[Piece, ...], tmp_path: Path
) -> None:
    provider, tool = ScriptedProvider(), ScriptedTool()
    async with opened(tmp_path, provider, tools=[tool.tool]) as (_, client, events):
        provider.answer(pushes(*pieces))
        run = await run_of(client, events)
        assert_too_long(run)
        assert of_type(run, "tool_execution_start") == []
        assert not tool.waiting
        answer = (await client.request("get_messages"))["messages"][-1]
        assert "tool_calls" not in answer


async def test_arguments_that_were_counted_on_their_way_are_not_counted_again(
    tmp_path: Path,
) -> None:
    provider, tool = ScriptedProvider(), ScriptedTool()
    arguments = json.dumps({"a": "x" * (BOUND - 9)})
    assert len(arguments) == BOUND
    async with opened(tmp_path, provider, tools=[tool.tool]) as (_, client, events):
        provider.answer(
            pushes(
                Alive(BOUND),
                Retrying(1, 3, "http 503", 0.0),
                Alive(BOUND // 2),
                Alive(BOUND),
                ToolCallPiece("a", "work", arguments),
            ),
            says("done"),
        )
        tool.finish(gives())
        run = await run_of(client, events)
        assert run[-1]["payload"]["status"] == "completed"
        assert len(of_type(run, "tool_execution_start")) == 1


@pytest.mark.behaviour("answers_of_a_run_are_bounded_together")
async def test_all_answers_of_a_run_have_a_bound_together(tmp_path: Path) -> None:
    provider, tool = ScriptedProvider(), ScriptedTool()
    settings = bounded(of_run=2 * BOUND + 10)
    async with opened(tmp_path, provider, tools=[tool.tool], native=settings) as bench:
        _, client, events = bench

        async def play(receive: Receive) -> None:
            await receive(TextDelta("x" * (BOUND - 2)))
            await receive(ToolCallPiece("a", "work", "{}"))
            await receive(Finished("tool_use"))

        provider.answer(play, play, Endless(TextDelta("y")))
        tool.finish(gives(), gives())
        run = await run_of(client, events)
        words = (
            f"the model's answers in this run have more than {2 * BOUND + 10} bytes;"
            " raise run_answer_bytes_max"
        )
        assert_too_long(run, words)
        assert of_type(run, "message_end")[-1]["text"] == "y" * 10
        provider.answer(says("the next run has room of its own"))
        assert (await client.request("prompt", text="again"))["status"] == "completed"


async def test_a_run_that_has_no_room_left_ends_with_an_empty_answer(tmp_path: Path) -> None:
    provider, tool = ScriptedProvider(), ScriptedTool()
    settings = bounded(of_run=BOUND)
    async with opened(tmp_path, provider, tools=[tool.tool], native=settings) as bench:
        _, client, events = bench

        async def play(receive: Receive) -> None:
            await receive(TextDelta("x" * (BOUND - 2)))
            await receive(ToolCallPiece("a", "work", "{}"))
            await receive(Finished("tool_use"))

        provider.answer(play, says("one more"))
        tool.finish(gives())
        run = await run_of(client, events)
        assert of_type(run, "message_end")[-1]["text"] == ""
        assert of_type(run, "error")[0]["code"] == "answer_too_long"


# --- calls that are not a turn's own -------------------------------------------------------------


@pytest.mark.behaviour("summaries_and_tasks_are_bounded_too")
async def test_an_endless_summary_on_request_is_refused_and_changes_nothing(
    tmp_path: Path,
) -> None:
    provider, endless = ScriptedProvider(), Endless(TextDelta("and so on "))
    settings = bounded(keep_recent_tokens=1)
    async with opened(tmp_path, provider, native=settings) as (_, client, _):
        for _ in range(2):
            provider.answer(says("hello"))
            await client.request("prompt", text="go")
        before = (await client.request("get_messages"))["messages"]
        provider.answer(endless)
        error = await client.refusal("compact_session")
        assert (error["code"], error["message"]) == ("command_rejected", "answer_too_long")
        assert error["cause"] == CALL_WORDS
        assert endless.ended
        assert (await client.request("get_messages"))["messages"] == before


@pytest.mark.behaviour("summaries_and_tasks_are_bounded_too")
@pytest.mark.parametrize("piece", [TextDelta("on "), ReasoningDelta("hm"), Alive(BOUND + 1)])
async def test_an_endless_summary_in_a_run_ends_the_run(piece: Piece, tmp_path: Path) -> None:
    provider, tool, endless = ScriptedProvider(), ScriptedTool(), Endless(piece)
    settings = bounded(context_window=2000)
    async with opened(tmp_path, provider, tools=[tool.tool], native=settings) as bench:
        daemon, client, events = bench
        await client.request("set_active_tools", tools=["read"])
        await client.request("prompt", text="go", wait=False)
        while daemon.services.runs.active():
            await provider.calls.wait_waiting()
            if provider.requests[-1].purpose == "summary":
                provider.answer(endless)
                break
            provider.answer(asks_for_tools(1))
            tool.finish(gives("x" * 1200))
        run = await events.run()
    (error,) = of_type(run, "error")
    assert (error["code"], error["message"]) == ("answer_too_long", CALL_WORDS)
    assert run[-1]["payload"]["status"] == "error"
    assert endless.ended


@pytest.mark.behaviour("summaries_and_tasks_are_bounded_too")
async def test_a_task_whose_answer_does_not_end_fails_and_its_parent_goes_on(
    tmp_path: Path,
) -> None:
    async with task_daemon(tmp_path, native=bounded()) as bench:
        bench.on("go", tasks({"prompt": "look"}), says("done"))
        bench.on("look", Endless(TextDelta("on and on ")))
        run = await bench.run()
        [child] = children_of(run)
        (error,) = of_type(run, "error")
        assert (error["session_id"], error["code"]) == (child["session_id"], "answer_too_long")
        assert CALL_WORDS in result_of(run)["result"]
        assert run[-1]["payload"]["status"] == "completed"


# --- what a server streams -----------------------------------------------------------------------


@pytest.mark.behaviour("an_answer_that_does_not_end_ends_its_run")
@pytest.mark.parametrize(
    "part",
    [
        burst(*[delta(content="word ")] * 100),
        burst(*[delta(reasoning_content="hm ")] * 100),
        burst(*[arguments_delta("xxxx")] * 100),
    ],
    ids=["text", "reasoning", "arguments"],
)
async def test_the_connection_to_a_server_that_does_not_stop_is_closed(
    part: Any, short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    stub.script(Reply([part] * 10_000))
    async with socket_daemon(short_folder, provider=provider, native=bounded()) as daemon:
        client, events = await daemon.connect(), await daemon.watch()
        run = await run_of(client, events)
        assert of_type(run, "error")[0]["code"] == "answer_too_long"
        await stub.wait_closed()


async def test_a_tool_call_below_the_bound_is_run(
    short_folder: Path, provider: Provider, stub: StubModel
) -> None:
    stub.script(tool_reply(("read", {"path": "x" * 500})), Reply(finish()))
    async with socket_daemon(short_folder, provider=provider, native=bounded()) as daemon:
        client, events = await daemon.connect(), await daemon.watch()
        run = await run_of(client, events)
        assert len(of_type(run, "tool_execution_start")) == 1
        assert run[-1]["payload"]["status"] == "completed"


# --- what is told of it --------------------------------------------------------------------------


async def test_the_bounds_in_force_are_told(tmp_path: Path) -> None:
    async with opened(tmp_path, ScriptedProvider()) as (_, client, _):
        limits = (await client.request("get_capabilities"))["limits"]
        assert (limits["answer_bytes_max"], limits["run_answer_bytes_max"]) == (BOUND, 4 * BOUND)
    async with opened(tmp_path, ScriptedProvider(), native=None) as (_, client, _):
        limits = (await client.request("get_capabilities"))["limits"]
        assert limits["answer_bytes_max"] == ANSWER_BYTES_MAX == 2 * 1024 * 1024
        assert limits["run_answer_bytes_max"] == RUN_ANSWER_BYTES_MAX == 16 * 1024 * 1024


@pytest.mark.parametrize(
    "pieces",
    [
        (TextDelta("x" * 2 * BOUND),),
        (ReasoningDelta("x"), TextDelta("y" * 2 * BOUND)),
        (Alive(2 * BOUND),),
        (ToolCallPiece("a", "work", "x" * 2 * BOUND),),
    ],
    ids=["text", "both", "arguments on their way", "arguments"],
)
async def test_a_run_with_too_long_an_answer_is_replayed(
    pieces: tuple[Piece, ...], tmp_path: Path
) -> None:
    provider = ScriptedProvider()
    async with memory.open_store() as store:
        async with opened(tmp_path, provider, store=store) as (_, client, events):
            provider.answer(pushes(*pieces))
            assert_too_long(await run_of(client, events))
            rows = store._rows  # type: ignore[attr-defined]
        (report,) = (await replays(rows)).values()
        assert report.is_same, "\n".join(report.lines)


async def test_a_run_with_too_long_a_summary_is_replayed(tmp_path: Path) -> None:
    provider, tool = ScriptedProvider(), ScriptedTool()
    async with memory.open_store() as store:
        async with opened(
            tmp_path,
            provider,
            store=store,
            tools=[tool.tool],
            native=bounded(keep_recent_tokens=1, context_window=100_000),
        ) as (_, client, events):
            provider.answer(says("one"))
            await client.request("prompt", text="first")
            provider.answer(fails(ContextOverflow("too long")), Endless(TextDelta("on ")))
            await events.run()
            run = await run_of(client, events)
            assert of_type(run, "error")[0]["code"] == "answer_too_long"
            rows = store._rows  # type: ignore[attr-defined]
        reports = (await replays(rows, Tuning(keep_recent_tokens=1))).values()
        for report in reports:
            assert report.is_same, "\n".join(report.lines)
        assert len(reports) == 2


# --- memory --------------------------------------------------------------------------------------

STREAMS = 10
GROWTH_BYTES_MAX = 100 * MIB
LOG_BYTES_MAX = 12 * STREAMS * ANSWER_BYTES_MAX
MINUTES_MAX = 5
"""A bound for a machine that is busy; alone it takes seconds."""


@pytest.mark.slow
@pytest.mark.behaviour("an_answer_that_does_not_end_ends_its_run")
@pytest.mark.parametrize(
    "chunk",
    [delta(content="x" * 200), delta(content="x" * 60_000), arguments_delta("x" * 200)],
    ids=["short deltas", "long deltas", "arguments"],
)
async def test_ten_answers_at_once_that_do_not_end_leave_memory_as_it_was(
    chunk: dict[str, Any], short_folder: Path, stub: StubModel
) -> None:
    stretch = burst(*[chunk] * (120_000 // len(json.dumps(chunk))))
    stub.script(*[Reply([stretch] * 100_000)] * STREAMS)
    place = Place(short_folder, stub)
    async with running(place) as process:
        client, events = await place.connect(), await place.watch(types=["agent_end", "error"])
        await client.request("ping")
        before = process.resident_bytes()
        for _ in range(STREAMS):
            session = (await client.request("new_session"))["session_id"]
            await client.request("prompt", text="go", wait=False, session_id=session)
        with trio.fail_after(60 * MINUTES_MAX):
            for _ in range(STREAMS):
                error = (await events.next(seconds=60 * MINUTES_MAX))["payload"]
                end = (await events.next(seconds=60 * MINUTES_MAX))["payload"]
                assert (error["code"], end["status"]) == ("answer_too_long", "error")
        assert figures_of(process.pid).peak - before <= GROWTH_BYTES_MAX
        page = await client.request("get_messages")
        assert page["messages"][-1]["text"] in ("x" * ANSWER_BYTES_MAX, "")
        await stub.wait_closed()
        assert figures_of(process.pid).peak - before <= GROWTH_BYTES_MAX
        logged = sum(file.stat().st_size for file in place.state.glob("nousd.db*"))
        assert logged <= LOG_BYTES_MAX
        assert await process.stop() == 0
