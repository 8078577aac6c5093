"""The commits that a tool call is waited for, from the model's last byte to its next request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from nousd.daemon.eventlog.log import CommitHandle
from nousd.extensions.hooks import ToolCalled, TurnEnding
from nousd.providers.interface import Finished, Receive, ToolCallPiece
from nousd.store.memory.store import MemoryStore
from nousd.store.sqlite import store as sqlite
from nousd.store.sqlite import writer
from nousd.tools.interface import ToolContext, ToolResult
from tests.daemon.hooks_bench import Bench, calls, open_bench
from tests.daemon.scripted import (
    Outcome,
    ScriptedProvider,
    ScriptedTool,
    asks_for_tools,
    gives,
    says,
)
from tests.extensions.registering import Register, on
from tests.harness.daemon import WAIT_SECONDS, Event, memory_daemon

READ = ToolCallPiece("own", "read", '{"path": "a.txt"}')
WRITE = ToolCallPiece("own", "write", '{"path": "b.txt", "content": "x"}')


class HeldStore(MemoryStore):
    """A log that commits nothing while it is held."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self._is_held = False

    def hold(self) -> None:
        self._is_held = True

    def commit_what_waits(self) -> None:
        super()._commit()

    def release(self) -> None:
        self._is_held = False
        self.commit_what_waits()

    def _commit(self) -> None:
        if not self._is_held:
            super()._commit()


@asynccontextmanager
async def held_bench(folder: Path, *registers: Register) -> AsyncIterator[tuple[Bench, HeldStore]]:
    (folder / "a.txt").write_text("x")
    store = HeldStore()
    async with open_bench(folder, *registers, store=store) as bench:
        await bench.run(says("the folder and its instructions are read by now"))
        yield bench, store
    await store.aclose()


def asks(store: HeldStore, *pieces: ToolCallPiece) -> Outcome:
    """A model call with these calls; from its end on nothing is committed."""

    async def play(receive: Receive) -> None:
        for piece in pieces:
            await receive(piece)
        store.hold()
        await receive(Finished("tool_use"))

    return play


def ends(store: HeldStore) -> Outcome:
    """The next model call; from its beginning on everything is committed."""

    async def play(receive: Receive) -> None:
        store.release()
        await says("done")(receive)

    return play


@pytest.mark.parametrize(
    ("registers", "asked", "expected"),
    [
        ((), [WRITE], 2),
        ((), [WRITE, WRITE], 3),
        ((on("tool_call", lambda _: None),), [WRITE], 3),
        ((on("tool_result", lambda _: None),), [WRITE], 2),
        ((), [READ], 1),
        ((), [READ, READ], 1),
        ((on("tool_call", lambda _: None),), [READ], 2),
    ],
    ids=[
        "one call",
        "two calls",
        "a hook before the call",
        "a hook behind the call",
        "a call without effects",
        "two without effects",
        "a hook before one without effects",
    ],
)
async def test_from_the_models_last_byte_to_its_next_request_two_commits_are_waited_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    registers: Sequence[Register],
    asked: Sequence[ToolCallPiece],
    expected: int,
) -> None:
    waits = 0
    wait = CommitHandle.wait_settled

    async def counted(handle: CommitHandle) -> None:
        nonlocal waits
        if not handle.is_settled:
            waits += 1
            store.commit_what_waits()
        await wait(handle)

    async with held_bench(tmp_path, *registers) as (bench, store):
        monkeypatch.setattr(CommitHandle, "wait_settled", counted)
        counts: list[int] = []

        async def asks_and_counts(receive: Receive) -> None:
            await asks(store, *asked)(receive)
            counts.append(waits)

        async def counts_and_ends(receive: Receive) -> None:
            counts.append(waits)
            await ends(store)(receive)

        await bench.run(asks_and_counts, counts_and_ends)
    assert counts[1] - counts[0] == expected


def hold_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a group wait for ever for what follows it, as far as a test can tell."""
    monkeypatch.setattr(writer, "FOLLOWING_SECONDS_MAX", 2 * WAIT_SECONDS)
    monkeypatch.setattr(writer, "HOLDING_SECONDS_MAX", 2 * WAIT_SECONDS)


async def test_what_follows_at_once_is_committed_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A group that is held open although nothing follows would be held for ever.
    hold_groups(monkeypatch)
    (tmp_path / "a.txt").write_text("x")
    ends: set[int] = set()
    async with (
        sqlite.open_store(tmp_path / "log.db") as store,
        open_bench(tmp_path, store=store) as bench,
    ):
        store.after_commits(lambda: ends.add(store.head))
        run = await bench.run(calls("read", '{"path": "a.txt"}'), says("done"))
    last_of_commits = [event["type"] for event in run if number_of(event) in ends]
    # The turn goes on with its input, an answer with its call or the end of the turn, a call that only
    # reads with its result, and that with the next input.
    assert "model_input" in last_of_commits
    assert not {"message_end", "entry_appended", "tool_call_started"} & set(last_of_commits)


async def test_the_start_of_a_call_with_effects_is_committed_while_the_tool_prepares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_groups(monkeypatch)
    provider, tool = ScriptedProvider(), ScriptedTool()
    is_started = trio.Event()

    async def prepares(context: ToolContext) -> ToolResult:
        await is_started.wait()
        await context.wait_started()
        return ToolResult("worked")

    async with sqlite.open_store(tmp_path / "log.db") as store:
        tools = [msgspec.structs.replace(tool.tool, begins_early=True)]
        async with memory_daemon(
            workdir=tmp_path, provider=provider, tools=tools, store=store
        ) as daemon:
            client, events = await daemon.connect(), await daemon.watch(types="all")
            provider.answer(asks_for_tools(), says("done"))
            tool.finish(prepares)
            await client.request("prompt", text="go", wait=False)
            with trio.fail_after(WAIT_SECONDS):
                await events.until("tool_call_started")
            is_started.set()
            await events.run()


def number_of(event: Event) -> int:
    return int(event["id"].removeprefix("evt-"))


@pytest.mark.parametrize("begins_early", [False, True])
async def test_only_a_tool_that_begins_early_runs_before_its_start_is_durable(
    tmp_path: Path, *, begins_early: bool
) -> None:
    provider, tool, store = ScriptedProvider(), ScriptedTool(), HeldStore()
    tools = [msgspec.structs.replace(tool.tool, begins_early=begins_early)]
    async with memory_daemon(
        workdir=tmp_path, provider=provider, tools=tools, store=store
    ) as daemon:
        client, events = await daemon.connect(), await daemon.watch(types="all")
        provider.answer(asks(store, ToolCallPiece("own", "work", "{}")), says("done"))
        await client.request("prompt", text="go", wait=False)
        await wait_all_tasks_blocked()
        assert tool.waiting is begins_early
        store.release()
        await wait_all_tasks_blocked()
        assert tool.waiting
        tool.finish(gives("worked"))
        await events.run()
    await store.aclose()


async def test_a_hook_on_a_call_is_asked_once_the_answer_is_durable(tmp_path: Path) -> None:
    asked: list[str] = []

    async def hook(call: ToolCalled) -> None:
        asked.append(call.tool)

    async with held_bench(tmp_path, on("tool_call", hook)) as (bench, store):
        bench.provider.answer(asks(store, READ), ends(store))
        await bench.client.request("prompt", text="go", wait=False)
        await wait_all_tasks_blocked()
        assert asked == []
        store.release()
        await bench.events.run()
    assert asked == ["read"]


async def test_the_hook_behind_a_turn_is_called_once_its_skipped_calls_are_durable(
    tmp_path: Path,
) -> None:
    told: list[str] = []

    async def steers(receive: Receive) -> None:
        client = await bench.daemon.connect()
        await client.request("steer", text="stop that")
        await asks(store, READ)(receive)

    async def hook(turn: TurnEnding) -> None:
        told.append(turn.turn_id)

    async with held_bench(tmp_path, on("turn_end", hook)) as (bench, store):
        told.clear()
        bench.provider.answer(steers, says("done"))
        await bench.client.request("prompt", text="go", wait=False)
        await wait_all_tasks_blocked()
        assert told == []
        store.release()
        await bench.events.run()
    assert told == ["1", "2"]
