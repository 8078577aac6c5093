"""A run with a tool on a disk that fails at any of its steps, or loses power.

Every accepted input is stored, no refused input takes effect, and an input whose outcome is unknown is
stored whole or not at all. Every run ends once, no tool runs twice, ids are unique, reads keep working.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import trio

from nousd.providers.interface import Receive, TextDelta
from nousd.store.sqlite import commits as _commits
from nousd.store.sqlite import store as sqlite
from nousd.tools.interface import ToolContext, ToolResult
from tests.daemon.scripted import Outcome, ScriptedProvider, ScriptedTool, asks_for_tools, says
from tests.harness.daemon import (
    WAIT_SECONDS,
    Client,
    Daemon,
    Events,
    FakeClock,
    memory_daemon,
    of_type,
)
from tests.store.faulty_disk import Fault, FaultyDisk, faulty_disk

PROMPT = {"text": "the prompt", "client_message_id": "m1", "wait": False}
DELTAS = [f"piece {number} " for number in range(30)]

SAYS_ALL = says(*DELTAS)
REASONS = {"disk_full", "disk_error", "outcome_unknown"}


async def stays_open(receive: Receive) -> None:
    """An answer that is streamed and never ends."""
    for text in DELTAS:
        await receive(TextDelta(text))
    await trio.sleep_forever()


class Rig:
    """A daemon on a faulty disk, with a client and a subscriber."""

    def __init__(self, daemon: Daemon, client: Client, events: Events, bench: Bench) -> None:
        self.daemon = daemon
        self.client = client
        self.events = events
        self.bench = bench

    async def prompt(self) -> None:
        """Send the prompt, and wait for the end of its run if it was accepted."""
        answer = await self.client.answer(await self.client.ask("prompt", **PROMPT))
        self.bench.note(answer)
        if answer["ok"]:
            driver = self.daemon.services.runs.find(answer["payload"]["run_id"])
            with trio.fail_after(WAIT_SECONDS):
                if driver is not None:
                    await driver.ended.wait()

    async def read_everything(self) -> None:
        """Assert that reads succeed, and note the newest event."""
        for type in ("get_state", "get_queue", "list_sessions", "list_runs", "get_messages"):
            answer = await self.client.answer(await self.client.ask(type))
            # Before there is a session there are no messages to read.
            assert answer["ok"] or answer["error"]["code"] == "invalid_payload", answer
        page = await self.client.request("get_events", types="all")
        self.bench.see(page["events"])

    async def assert_works_again(self) -> None:
        """Resend the prompt: it has exactly one run, whatever its answer was. Then send another one."""
        again = await self.client.request("prompt", **PROMPT)
        await (await self.daemon.watch(after="evt-0", types="all")).run(again["run_id"])
        if self.bench.run_id is not None:
            assert again["run_id"] == self.bench.run_id
        # A prompt whose run was stopped before it began still waits.
        waiting = (await self.client.request("clear_queue"))["cleared"]
        self.bench.script()
        result = await self.client.request("prompt", text="another")
        assert (result["output"], result["status"]) == ("".join(DELTAS), "completed")
        messages = (await self.client.request("get_messages"))["messages"]
        texts = [message["text"] for message in messages if message["role"] == "user"]
        assert texts.count("another") == 1
        assert (texts + [item["text"] for item in waiting]).count(PROMPT["text"]) == 1
        ids = [event["id"] for event in result["events"]]
        assert min(map(_number, ids)) > self.bench.newest_seen


class Bench:
    """Everything that outlives the daemon: workspace, clock, model, tool and the answers."""

    def __init__(self, workdir: Path) -> None:
        self.workdir = workdir
        self.run_id: str | None = None
        self.reason: str | None = None
        self.newest_seen = 0
        self.executed = 0
        self.clock = FakeClock()
        self.provider = ScriptedProvider()
        self.tool = ScriptedTool()

    def script(self, answer: Outcome = SAYS_ALL) -> None:
        """Script the next run: one tool call, one streamed answer."""
        self.provider.calls.forget()
        self.tool.calls.forget()
        self.provider.answer(asks_for_tools(1), answer)
        self.tool.finish(self._work)

    async def _work(self, _: ToolContext) -> ToolResult:
        self.executed += 1
        return ToolResult("done")

    def note(self, answer: dict[str, Any]) -> None:
        if answer["ok"]:
            self.run_id = answer["payload"]["run_id"]
        else:
            assert answer["error"]["code"] == "session_error"
            self.reason = answer["error"]["details"]["reason"]
            assert self.reason in REASONS

    def see(self, seen: list[dict[str, Any]]) -> None:
        self.newest_seen = max([self.newest_seen, *(_number(event["id"]) for event in seen)])


def _number(event_id: str) -> int:
    return int(event_id.removeprefix("evt-"))


@asynccontextmanager
async def rig(path: Path, disk: FaultyDisk, bench: Bench) -> AsyncIterator[Rig]:
    async with (
        sqlite.open_store(path, connect=disk.connect) as store,
        memory_daemon(
            workdir=bench.workdir,
            provider=bench.provider,
            store=store,
            clock=bench.clock,
            tools=[bench.tool.tool],
        ) as daemon,
    ):
        events = await daemon.watch(after="evt-0", types="all")
        yield Rig(daemon, await daemon.connect(), events, bench)
        disk.mend()


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make one short run use several number blocks, checkpoints, and the reserve."""
    monkeypatch.setattr(_commits, "NUMBERS_PER_BLOCK", 5)
    monkeypatch.setattr(_commits, "WAL_PAGES", 40)
    monkeypatch.setattr(sqlite, "RESERVE_BYTES", 64 * 1024)


async def steps_of_a_run(folder: Path) -> int:
    bench = Bench(folder)
    with faulty_disk() as disk:
        async with rig(folder / "counted.db", disk, bench) as counted:
            bench.script()
            disk.count()
            await counted.prompt()
            return disk.operations


STEPS_SKIPPED = 41
"""A prime, so that all kinds of steps are met; every step at once would take minutes."""


@pytest.mark.slow(keep=1)
@pytest.mark.behaviour("disk_trouble_ends_by_itself")
@pytest.mark.parametrize("once", [True, False], ids=["once", "until mended"])
@pytest.mark.parametrize("fault", Fault, ids=[fault.name for fault in Fault])
async def test_a_disk_fault_during_a_run_breaks_no_promise(
    tmp_path: Path, fault: Fault, once: bool
) -> None:
    steps = await steps_of_a_run(tmp_path)
    assert steps > 2 * STEPS_SKIPPED
    first = list(Fault).index(fault)
    for at in (*range(0, 4, 2), *range(4 + 3 * first, steps, STEPS_SKIPPED)):
        bench = Bench(tmp_path)
        with faulty_disk(seed=at) as disk, TemporaryDirectory(dir=tmp_path) as name:
            path = Path(name) / "log.db"
            async with rig(path, disk, bench) as failing:
                bench.script()
                disk.fail(fault, at=at, once=once)
                await failing.prompt()
                await failing.read_everything()
                killed = disk.survive_kill(path, path.with_name("killed"))
                executed = bench.executed
                assert executed <= 1
                disk.mend()
                bench.script()
                await failing.assert_works_again()
            bench.executed = executed
            bench.script()
            async with rig(killed, disk, bench) as restarted:
                assert bench.executed == executed
                await restarted.assert_works_again()


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize("seed", range(12))
async def test_a_power_cut_during_streaming_loses_only_deltas(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    bench = Bench(tmp_path)
    path = tmp_path / "log.db"
    with faulty_disk(seed) as disk:
        async with rig(path, disk, bench) as running:
            bench.script(stays_open)
            accepted = await running.client.request("prompt", **PROMPT)
            bench.note({"ok": True, "payload": accepted})
            seen = [await running.events.next() for _ in range(chance.randrange(4, 45))]
            left = disk.after_power_cut(path, tmp_path / "no-power")
            bench.see(seen)
        bench.script()
        async with rig(left, disk, bench) as restarted:
            run = await restarted.events.run(accepted["run_id"])
            durable = [event for event in seen if not event["type"].endswith("_update")]
            assert [event for event in run if event in durable] == durable
            assert of_type(run, "agent_end")[0]["status"] == "interrupted"
            await restarted.assert_works_again()
