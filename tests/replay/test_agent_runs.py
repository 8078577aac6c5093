"""Runs of agent programs replay without the program."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from nousd.replay.play import Tuning
from nousd.replay.recorded import read_run
from nousd.replay.replay import replay_run
from nousd.store.memory import store as memory
from nousd.store.memory.rows import Rows
from nousd.wire import events
from tests.harness.daemon import of_type
from tests.replay.memory_log import MemoryLog, replays
from tests.runtimes.bench import WAIT_SECONDS, RuntimeBench, runtime_bench
from tests.runtimes.scripted_adapter import ScriptedAgent

READ = ["workspace.read", {"path": "notes.txt"}]


def write(name: str) -> list[Any]:
    return ["workspace.write", {"path": name, "content": name}]


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "notes.txt").write_text("what is noted")
    return folder


@asynccontextmanager
async def logged_bench(workdir: Path, **options: Any) -> AsyncIterator[tuple[RuntimeBench, Rows]]:
    agent = ScriptedAgent(workdir.parent / "memory")
    async with (
        memory.open_store() as store,
        runtime_bench(workdir, agent, store=store, **options) as bench,
    ):
        yield bench, store._rows  # type: ignore[attr-defined]


async def check_all_same(rows: Rows) -> None:
    reports = await replays(rows)
    assert reports
    for report in reports.values():
        assert report.is_same, "\n".join(report.lines)
        assert not report.notes


@pytest.mark.parametrize(
    "acts",
    [
        [{"say": "hello"}],
        [{"think": "hm"}, {"say": "hello"}, {"call": READ}, {"say_results": True}],
        [{"calls": [write("a"), write("b"), READ]}, {"say_results": True}],
        [{"again": write("once")}, {"say": "done"}],
        [{"own": ["Bash", {"command": "ls"}]}, {"say": "done"}],
        [{"flood": 300}],
        [{"unknown": 3}, {"garbage": 2}, {"say": "x" * 20_000}],
        [{"call": write("a")}, {"fail": "no such model"}],
        [{"say": "first"}, {"die": 3}],
        [{"early": True}, {"say": "hello"}],
    ],
    ids=lambda acts: "+".join(next(iter(act)) for act in acts),
)
@pytest.mark.slow(keep=1)
async def test_a_run_of_an_agent_replays_identically(workdir: Path, acts: list[Any]) -> None:
    async with logged_bench(workdir) as (bench, rows):
        await bench.run(*acts)
        await bench.run({"say": "next"})
        await check_all_same(rows)


@pytest.mark.slow
async def test_follow_ups_and_steers_replay_where_they_came(workdir: Path) -> None:
    async with logged_bench(workdir) as (bench, rows):
        with trio.fail_after(WAIT_SECONDS):
            await bench.start({"say": "first"}, {"hold": True})
            await bench.events.until("message_end", text="first")
            await bench.client.request("follow_up", text='[{"say": "third"}]')
            await bench.client.request("steer", text='[{"say": "second"}]')
            await bench.events.run()
        await check_all_same(rows)


@pytest.mark.parametrize("decision", ["once", "deny"])
async def test_an_approval_replays_with_its_decision(workdir: Path, decision: str) -> None:
    async with logged_bench(workdir, mode="ask") as (bench, rows):
        with trio.fail_after(WAIT_SECONDS):
            await bench.start({"call": write("asked")}, {"say_results": True})
            asked = (await bench.events.until("permission_requested"))["payload"]
            named = {key: asked[key] for key in ("tool_call_id", "attempt", "input_hash")}
            await bench.client.request("confirm_tool", decision=decision, **named)
            await bench.events.run()
        await check_all_same(rows)


@pytest.mark.slow
async def test_an_abort_replays_where_it_came(workdir: Path) -> None:
    async with logged_bench(workdir) as (bench, rows):
        with trio.fail_after(WAIT_SECONDS):
            await bench.start({"say": "first"}, {"deaf": True})
            await bench.events.until("message_end", text="first")
            await bench.client.request("abort")
            await bench.events.run()
        await check_all_same(rows)


async def test_a_changed_event_is_a_difference(workdir: Path) -> None:
    async with logged_bench(workdir) as (bench, rows):
        run = await bench.run({"call": READ}, {"say": "done"})
        recorded = read_run(MemoryLog(rows), of_type(run, "agent_start")[0]["run_id"])
    turned = tuple(
        msgspec.structs.replace(event, text="another")
        if isinstance(event, events.MessageEnd)
        else event
        for event in recorded.events
    )
    changed = msgspec.structs.replace(recorded, events=turned)
    assert not (await replay_run(changed, Tuning())).is_same


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("_try", range(20), ids=str)
async def test_an_abort_while_calls_overlap_replays(workdir: Path, _try: int) -> None:
    # What waits for the bracket of the first call comes in an order of its own each time.
    async with logged_bench(workdir, mode="ask") as (bench, rows):
        with trio.fail_after(WAIT_SECONDS):
            await bench.start({"calls": [write("a"), write("b"), write("c")]}, {"say": "done"})
            for _ in range(3):
                await bench.events.until("permission_requested")
            await bench.client.request("abort")
            await bench.events.run()
        await check_all_same(rows)


@pytest.mark.slow
async def test_another_attempt_at_a_call_replays(workdir: Path) -> None:
    async with logged_bench(workdir) as (bench, rows):
        await bench.run({"again": READ}, {"die": 3})
        await bench.run({"again": READ}, {"say_results": True})
        await check_all_same(rows)


async def test_calls_that_their_agent_gives_up_replay(workdir: Path) -> None:
    async with logged_bench(workdir, mode="ask") as (bench, rows):
        await bench.run({"leave": write("a")}, {"leave": write("b")}, {"say": "done"})
        await check_all_same(rows)
