"""A run without activity for too long ends; one with a reason to be quiet does not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio
from trio.testing import MockClock

from nousd.errors import ProviderError
from nousd.providers.interface import Alive, Finished, Receive, TextDelta
from nousd.providers.retry import RetryingProvider
from nousd.runtimes.native.loop import NativeSettings
from nousd.tools.interface import ToolContext, ToolResult
from tests.daemon.scripted import Outcome, ScriptedProvider, ScriptedTool, asks_for_tools, says
from tests.harness.daemon import Client, Event, Events, memory_daemon, of_type, types

STALE = 1.5
"""Seconds without activity that make a run stale in these tests; the harness waits longer."""

QUIET = 0.9 * STALE
LONG = 2.5 * STALE


class Bench(NamedTuple):
    client: Client
    events: Events
    model: ScriptedProvider
    tool: ScriptedTool

    async def prompt(self, *outcomes: Outcome, text: str = "go") -> list[Event]:
        """Start a run with these model calls and return its events."""
        self.model.answer(*outcomes)
        await self.client.request("prompt", text=text, wait=False)
        return await self.events.run()


@asynccontextmanager
async def open_bench(workdir: Path, **options: Any) -> AsyncIterator[Bench]:
    model, tool = ScriptedProvider(), ScriptedTool()
    provider = RetryingProvider(model, lambda: 0.0)
    async with memory_daemon(
        workdir=workdir, provider=provider, tools=[tool.tool], stale_seconds=STALE, **options
    ) as daemon:
        yield Bench(await daemon.connect(), await daemon.watch(), model, tool)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench(tmp_path) as bench:
        yield bench


def status(run: list[Event]) -> str:
    (end,) = of_type(run, "agent_end")
    text: str = end["status"]
    return text


async def silent(_: Receive) -> None:
    await trio.sleep_forever()


async def streams_slowly(receive: Receive) -> None:
    for _ in range(8):
        await trio.sleep(QUIET)
        await receive(TextDelta("word "))
    await receive(Finished("stop"))


@pytest.mark.behaviour("a_stale_run_is_ended_as_timeout")
async def test_a_run_without_activity_ends_as_timeout(
    bench: Bench, autojump_clock: MockClock
) -> None:
    started = trio.current_time()
    run = await bench.prompt(silent)
    assert trio.current_time() - started == pytest.approx(STALE, abs=0.1)
    (end,) = of_type(run, "agent_end")
    assert (end["status"], end["error"]) == ("timeout", "nothing happened for 1500 ms")
    (warning,) = of_type(run, "warning")
    assert warning["code"] == "run_stale"
    assert types(run)[-3:] == ["warning", "turn_end", "agent_end"]
    record = await bench.client.request("get_run", run_id=end["run_id"])
    assert record["run"]["status"] == "timeout"


async def test_the_text_before_a_timeout_is_stored(bench: Bench, autojump_clock: MockClock) -> None:
    async def falls_silent(receive: Receive) -> None:
        await receive(TextDelta("so far"))
        await trio.sleep_forever()

    run = await bench.prompt(falls_silent)
    (_, end) = of_type(run, "message_end")
    assert (end["text"], end["stop_reason"]) == ("so far", "timeout")
    messages = (await bench.client.request("get_messages"))["messages"]
    assert (messages[-1]["text"], messages[-1]["stop_reason"]) == ("so far", "timeout")


@pytest.mark.behaviour("a_stale_run_leaves_inputs_pending")
async def test_a_timeout_leaves_inputs_pending_and_the_session_idle(
    bench: Bench, autojump_clock: MockClock
) -> None:
    bench.model.answer(silent)
    await bench.client.request("prompt", text="go", wait=False)
    await bench.events.until("turn_start")
    await bench.client.request("follow_up", text="later")
    assert status(await bench.events.run()) == "timeout"
    queue = await bench.client.request("get_queue")
    assert [queued["text"] for queued in queue["inputs"]] == ["later"]
    bench.model.answer(says("done"))
    await bench.client.request("resume")
    run = await bench.events.run()
    assert status(run) == "completed"
    assert of_type(run, "message_start")[0]["text"] == "later"


async def test_a_timeout_ends_only_the_stale_run(bench: Bench, autojump_clock: MockClock) -> None:
    bench.model.answer(silent, streams_slowly)
    first = await bench.client.request("prompt", text="one", wait=False)
    await bench.client.request("new_session")
    second = await bench.client.request("prompt", text="two", wait=False)
    ends = [await bench.events.until("agent_end") for _ in range(2)]
    assert {end["payload"]["run_id"]: end["payload"]["status"] for end in ends} == {
        first["run_id"]: "timeout",
        second["run_id"]: "completed",
    }


# --- activity ------------------------------------------------------------------------------------


@pytest.mark.behaviour("what_is_at_work_is_not_stale")
async def test_a_streaming_model_keeps_its_run_alive(
    bench: Bench, autojump_clock: MockClock
) -> None:
    assert status(await bench.prompt(streams_slowly)) == "completed"


async def test_stream_activity_without_text_keeps_a_run_alive(
    bench: Bench, autojump_clock: MockClock
) -> None:
    async def writes_a_long_call(receive: Receive) -> None:
        for _ in range(8):
            await trio.sleep(QUIET)
            await receive(Alive())
        await receive(TextDelta("done"))
        await receive(Finished("stop"))

    assert status(await bench.prompt(writes_a_long_call)) == "completed"


async def test_a_waiting_retry_keeps_its_run_alive(bench: Bench, autojump_clock: MockClock) -> None:
    async def overloaded(_: Receive) -> None:
        raise ProviderError("busy", status=429, retryable=True, retry_after_seconds=LONG)

    run = await bench.prompt(overloaded, overloaded, says("at last"))
    assert status(run) == "completed"
    assert [warning["code"] for warning in of_type(run, "warning")] == ["provider_retry"] * 2


async def test_a_retry_that_hangs_after_its_wait_makes_its_run_stale(
    bench: Bench, autojump_clock: MockClock
) -> None:
    async def overloaded(_: Receive) -> None:
        raise ProviderError("busy", status=429, retryable=True, retry_after_seconds=QUIET)

    started = trio.current_time()
    assert status(await bench.prompt(overloaded, silent)) == "timeout"
    assert trio.current_time() - started == pytest.approx(QUIET + STALE, abs=0.1)


async def quiet_within_its_limit(context: ToolContext) -> ToolResult:
    context.extend_idle_deadline(LONG)
    await trio.sleep(LONG)
    return ToolResult("done")


async def test_a_tool_within_its_own_time_limit_keeps_its_run_alive(
    bench: Bench, autojump_clock: MockClock
) -> None:
    bench.tool.finish(quiet_within_its_limit)
    assert status(await bench.prompt(asks_for_tools(), says("done"))) == "completed"


async def test_output_does_not_shorten_a_tools_time_limit(
    bench: Bench, autojump_clock: MockClock
) -> None:
    async def speaks_once(context: ToolContext) -> ToolResult:
        context.extend_idle_deadline(LONG)
        await trio.sleep(1)
        await context.emit("still here")
        await trio.sleep(LONG - 1)
        return ToolResult("done")

    bench.tool.finish(speaks_once)
    assert status(await bench.prompt(asks_for_tools(), says("done"))) == "completed"


async def test_a_tool_that_exceeds_its_time_limit_makes_its_run_stale(
    bench: Bench, autojump_clock: MockClock
) -> None:
    async def hangs(context: ToolContext) -> ToolResult:
        context.extend_idle_deadline(1.0)
        await trio.sleep_forever()
        raise AssertionError

    bench.tool.finish(hangs)
    started = trio.current_time()
    run = await bench.prompt(asks_for_tools())
    assert trio.current_time() - started == pytest.approx(1.0 + STALE, abs=0.1)
    (end,) = of_type(run, "tool_execution_end")
    assert (end["is_error"], end["executed"], status(run)) == (True, True, "timeout")


async def test_a_silent_tool_without_a_time_limit_makes_its_run_stale(
    bench: Bench, autojump_clock: MockClock
) -> None:
    async def hangs(_: ToolContext) -> ToolResult:
        await trio.sleep_forever()
        raise AssertionError

    bench.tool.finish(hangs)
    started = trio.current_time()
    assert status(await bench.prompt(asks_for_tools())) == "timeout"
    assert trio.current_time() - started == pytest.approx(STALE, abs=0.1)


async def test_a_tools_time_limit_ends_with_the_tool(
    bench: Bench, autojump_clock: MockClock
) -> None:
    async def is_done_early(context: ToolContext) -> ToolResult:
        context.extend_idle_deadline(1000 * STALE)
        return ToolResult("done")

    bench.tool.finish(is_done_early)
    started = trio.current_time()
    assert status(await bench.prompt(asks_for_tools(), silent)) == "timeout"
    assert trio.current_time() - started == pytest.approx(STALE, abs=0.1)


async def test_a_streaming_summary_keeps_its_run_alive(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    native = NativeSettings(context_window=600, keep_recent_tokens=0, compact_at=0.5)
    async with open_bench(tmp_path, native=native) as bench:
        await bench.client.request("set_active_tools", tools=[])
        assert status(await bench.prompt(says("long " * 300), text="first")) == "completed"
        run = await bench.prompt(streams_slowly, says("done"), text="second")
        assert status(run) == "completed"
        assert any("compaction" in each["message"] for each in of_type(run, "status"))


async def test_a_slow_abort_ends_as_cancelled(bench: Bench, autojump_clock: MockClock) -> None:
    async def is_slow_to_stop(_: Receive) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(LONG)

    bench.model.answer(is_slow_to_stop)
    await bench.client.request("prompt", text="go", wait=False)
    await bench.events.until("turn_start")
    await bench.client.request("abort")
    assert status(await bench.events.run()) == "cancelled"
