"""Old deltas are pruned while the daemon runs; what clients see of it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from nousd.admin.vacuum import vacuum
from nousd.daemon.eventlog import log_walk, retention
from nousd.errors import StoreError
from nousd.providers.interface import Finished, Receive, TextDelta
from nousd.store.interface import Store
from nousd.store.memory import store as memory
from nousd.store.records import Old, Pruned, StoredEvent
from tests.daemon.scripted import (
    Outcome,
    ScriptedProvider,
    ScriptedTool,
    asks_for_tools,
    gives,
    says,
)
from tests.harness.daemon import (
    Client,
    Daemon,
    Event,
    FakeClock,
    check_log,
    memory_daemon,
    socket_daemon,
)
from tests.store.helpers import append, whole_log
from tests.store.test_pruning import message, prune, turn_of

DAY = 24 * 3600.0


class Calendar(FakeClock):
    """A clock that goes with trio's, from a day on that the test chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.days = 0

    def now(self) -> str:
        elapsed = timedelta(days=self.days, seconds=trio.current_time())
        return (datetime(2026, 1, 1, tzinfo=UTC) + elapsed).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class World:
    """Everything that outlives a daemon: its store, its clock and its model."""

    def __init__(self, store: Store, workdir: Path) -> None:
        self.store = store
        self.calendar = Calendar()
        self.model = ScriptedProvider()
        self._workdir = workdir

    def daemon(self, **options: Any) -> AbstractAsyncContextManager[Daemon]:
        """Run a daemon, started at the time that it is now."""
        parts: dict[str, Any] = {
            "store": self.store,
            "clock": self.calendar,
            "provider": self.model,
            "workdir": self._workdir,
        }
        return memory_daemon(**(parts | options))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with memory.open_store() as store:
        yield World(store, tmp_path)


async def talk(daemon: Daemon, model: ScriptedProvider, *texts: str) -> None:
    model.answer(says(*texts))
    client = await daemon.connect()
    await client.request("prompt", text="go")


async def deltas(store: Store) -> list[str]:
    log = await whole_log(store)
    return [event.line.decode() for event in log if event.type == "message_update"]


# --- when ----------------------------------------------------------------------------------------


@pytest.mark.behaviour("old_deltas_are_pruned")
async def test_what_ended_longer_ago_than_the_setting_says_is_pruned_at_the_start(
    autojump_clock: MockClock, world: World
) -> None:
    async with world.daemon() as daemon:
        await talk(daemon, world.model, "one ", "two ", "three")
        world.calendar.days = 5
        await talk(daemon, world.model, "four ", "five")
    assert len(await deltas(world.store)) == 5
    world.calendar.days = 8
    async with world.daemon():
        await trio.sleep(10)
        joined, *young = await deltas(world.store)
    assert '"delta":"one two three"' in joined
    assert len(young) == 2


async def test_then_it_is_looked_for_every_hour_also_in_what_the_hub_holds(
    autojump_clock: MockClock, world: World
) -> None:
    async with world.daemon(delta_retention_days=1) as daemon:
        await trio.sleep(600)
        await talk(daemon, world.model, "one ", "two")
        await trio.sleep(DAY - 300)
        assert len(await deltas(world.store)) == 2
        await trio.sleep(3600)
        assert len(await deltas(world.store)) == 1


@pytest.mark.parametrize("days", [0, 36_500])
async def test_a_setting_of_none_or_many_keeps_them(
    days: int, autojump_clock: MockClock, world: World
) -> None:
    async with world.daemon() as daemon:
        await talk(daemon, world.model, "one ", "two")
    world.calendar.days = 30_000
    async with world.daemon(delta_retention_days=days):
        await trio.sleep(2 * DAY)
    assert len(await deltas(world.store)) == 2


async def test_there_is_a_pause_between_two_steps(
    autojump_clock: MockClock, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nousd.store.pruning.DELTAS_PER_STEP", 3)
    async with world.daemon() as daemon:
        await talk(daemon, world.model, *"abcdefghijklm")
    world.calendar.days = 8
    async with world.daemon():
        await trio.sleep(retention.PAUSE_SECONDS / 2)
        lengths = []
        for _ in range(6):
            lengths.append(len(await deltas(world.store)))
            await trio.sleep(retention.PAUSE_SECONDS)
    assert lengths == [11, 9, 7, 5, 3, 1]


async def test_where_the_clock_was_set_back_nothing_is_pruned_that_the_hub_holds(
    autojump_clock: MockClock, world: World
) -> None:
    async with world.daemon() as daemon:
        client = await daemon.connect()
        await client.request("new_session")
        world.calendar.days = 30
        for number in range(20):
            await client.request("new_session", name=str(number))
        world.calendar.days = 0
        await talk(daemon, world.model, "one ", "two")
        world.calendar.days = 20
        await trio.sleep(4000)
        assert len(await deltas(world.store)) == 2
    async with world.daemon():
        await trio.sleep(10)
        assert len(await deltas(world.store)) == 1


class Failing:
    """A store whose first attempts at pruning fail."""

    def __init__(self, store: Store, failures: int) -> None:
        self._store = store
        self.failures = failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def prune_deltas(self, old: Old) -> Pruned:
        if self.failures:
            self.failures -= 1
            raise StoreError("the disk is full")
        return await self._store.prune_deltas(old)


async def test_a_step_that_fails_is_logged_and_tried_again_an_hour_later(
    autojump_clock: MockClock, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.daemon() as daemon:
        await talk(daemon, world.model, "one ", "two")
    world.calendar.days = 8
    failing = Failing(world.store, 1)
    async with world.daemon(store=failing) as daemon:
        await trio.sleep(10)
        assert failing.failures == 0
        assert "old deltas could not be pruned: the disk is full" in caplog.text
        assert caplog.records[-1].levelno == logging.WARNING
        await talk(daemon, world.model, "still ", "at work")
        assert len(await deltas(world.store)) == 4
        await trio.sleep(4000)
        assert len(await deltas(world.store)) == 3


# --- who reads the log ---------------------------------------------------------------------------


async def test_a_run_that_a_kill_left_open_is_closed_on_a_pruned_log(
    autojump_clock: MockClock, world: World
) -> None:
    happened = turn_of(message("m1", "one ", "two"), message("m2", "three ", "four", "five"))
    await append(world.store, *happened[:-3], ts="2026-01-01T00:00:00.000000Z")
    assert await prune(world.store) == 1
    async with world.daemon():
        pass
    await check_log(world.store)
    ends = [e.line for e in await whole_log(world.store) if e.type == "message_end"]
    assert b'"text":"three fourfive","stop_reason":"interrupted"' in ends[-1]


ASKED = {"text": "go", "client_message_id": "once"}


async def test_the_result_of_a_pruned_run_has_the_same_texts(
    autojump_clock: MockClock, world: World
) -> None:
    async with world.daemon() as daemon:
        world.model.answer(says("one ", "two ", "three"))
        before = await (await daemon.connect()).request("prompt", **ASKED)
    world.calendar.days = 8
    async with world.daemon() as daemon:
        await trio.sleep(10)
        assert len(await deltas(world.store)) == 1
        after = await (await daemon.connect()).request("prompt", **ASKED)
    assert told(after) == told(before)
    assert after["output"] == before["output"] == "one two three"


def told(result: Any) -> list[tuple[str, Any]]:
    return [(event["type"], event.get("delta")) for event in result["events"]]


class PrunedMeanwhile:
    """A store that prunes everything behind the back of whoever reads a page in the midst of deltas."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.overtaken = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def events_after(
        self, after: int, *wanted: Any, **bounds: Any
    ) -> tuple[StoredEvent, ...]:
        page = await self._store.events_after(after, *wanted, **bounds)
        if page and page[-1].type == "message_update":
            self.overtaken += await prune(self._store, "9999")
        return page


async def test_a_result_that_pruning_overtakes_tells_no_text_twice(
    autojump_clock: MockClock, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.daemon() as daemon:
        world.model.answer(says("one ", "two ", "three ", "four"))
        before = await (await daemon.connect()).request("prompt", **ASKED)
    monkeypatch.setattr(log_walk, "_PAGE_EVENTS", 4)
    overtaking = PrunedMeanwhile(world.store)
    async with world.daemon(store=overtaking) as daemon:
        after = await (await daemon.connect()).request("prompt", **ASKED)
    assert overtaking.overtaken == 3
    assert told(after) == told(before)


# --- what a client is told -----------------------------------------------------------------------


@asynccontextmanager
async def pruned_daemon(folder: Path) -> AsyncIterator[tuple[Daemon, Client, list[Event]]]:
    """A daemon on real sockets whose log was pruned; with all events as they were before."""
    model, tool = ScriptedProvider(), ScriptedTool()
    parts: dict[str, Any] = {"provider": model, "tools": [tool.tool]}
    model.answer(asks_for_tools(1), says("one ", "two ", "three ", "four"))
    tool.finish(gives("done"))
    async with socket_daemon(folder, **parts) as daemon:
        await (await daemon.connect()).request("prompt", **ASKED)
        events = await daemon.watch(after="evt-0", types="all")
        before = [await events.next() for _ in range(daemon.services.hub.head)]
    assert vacuum(folder).deltas_joined == 3
    async with socket_daemon(folder, **parts) as daemon:
        yield daemon, await daemon.connect(), before


def seqs_of(log: list[Event], type_: str) -> list[int]:
    return [number(event) for event in log if event["type"] == type_]


def number(event: Event) -> int:
    return int(event["id"].removeprefix("evt-"))


def kept(before: list[Event]) -> list[Event]:
    """The contents of a log with those events after it was pruned."""
    *gone, last = [event for event in before if event["type"] == "message_update"]
    payload = {**last["payload"], "delta": "one two three four", "joined_from": gone[0]["id"]}
    joined = {**last, "payload": payload}
    return [joined if event == last else event for event in before if event not in gone]


@pytest.mark.behaviour("pruned_cursors_go_on")
async def test_a_cursor_among_pruned_deltas_goes_on_from_the_next_kept_event(
    short_folder: Path,
) -> None:
    async with pruned_daemon(short_folder) as (daemon, client, before):
        first, *_, last = seqs_of(before, "message_update")
        after_prune = kept(before)
        for cursor in range(len(before)):
            is_among = first <= cursor < last
            expected = [event for event in after_prune if number(event) > cursor]
            events = await daemon.watch()
            answer = await events.subscribe(after=f"evt-{cursor}", types="all")
            assert answer == {
                "cursor": f"evt-{cursor}",
                "head": f"evt-{len(before)}",
                **({"pruned": True} if is_among else {}),
            }
            assert [await events.next() for _ in expected] == expected
            page = await client.request("get_events", after=f"evt-{cursor}", types="all")
            assert page["events"] == expected
            assert page.get("pruned") == (True if is_among else None)
            await events.aclose()


@pytest.mark.behaviour("pruned_only_for_those_concerned")
async def test_only_who_asks_for_such_deltas_is_told_that_some_were_pruned(
    short_folder: Path,
) -> None:
    async with pruned_daemon(short_folder) as (daemon, client, before):
        cursor = before[seqs_of(before, "message_update")[0]]["id"]
        run_id = before[-1]["payload"].get("run_id") or before[-2]["payload"]["run_id"]
        wishes: list[tuple[dict[str, Any], bool]] = [
            ({"types": "v1"}, True),
            ({"types": ["message_update"]}, True),
            ({"types": ["message_end"]}, False),
            ({"run_id": run_id}, True),
            ({"run_id": "run-another"}, False),
            ({"session_id": "sess-another"}, False),
        ]
        for wish, is_told in wishes:
            events = await daemon.watch()
            answer = await events.subscribe(after=cursor, **wish)
            assert answer.get("pruned", False) is is_told, wish
            page = await client.request("get_events", after=cursor, **wish)
            assert page.get("pruned", False) is is_told, wish
            await events.aclose()


@pytest.mark.behaviour("pruned_runs_are_whole")
async def test_a_replay_of_a_pruned_run_is_whole_and_has_the_same_texts(
    short_folder: Path,
) -> None:
    async with pruned_daemon(short_folder) as (daemon, client, before):
        events = await daemon.watch(after="evt-0")
        replay = await events.run()
        ends = [event for event in before if event["type"] == "message_end"]
        assert [event for event in replay if event["type"] == "message_end"] == ends
        updates = [e["payload"]["delta"] for e in replay if e["type"] == "message_update"]
        assert updates == ["one two three four"]
        again = await client.request("prompt", **ASKED)
        assert again["output"] == "one two three four"


@pytest.mark.behaviour("unfinished_messages_are_not_pruned")
async def test_a_message_that_goes_on_for_longer_than_deltas_are_kept_is_not_pruned(
    autojump_clock: MockClock, world: World
) -> None:
    async with world.daemon(delta_retention_days=1, stale_seconds=10 * DAY) as daemon:
        client = await daemon.connect()
        await client.request("prompt", text="go", wait=False)
        world.model.answer(says_slowly("one ", "two ", "three "))
        await trio.sleep(2.5 * DAY)
        assert len(await deltas(world.store)) == 3
        await trio.sleep(2 * DAY)
        assert len(await deltas(world.store)) == 1
        (last,) = (await client.request("get_messages"))["messages"][-1:]
        assert last["text"] == "one two three "


def says_slowly(*texts: str) -> Outcome:
    """A model call that is silent for a day after each of those texts."""

    async def play(receive: Receive) -> None:
        for text in texts:
            await receive(TextDelta(text))
            await trio.sleep(DAY)
        await receive(Finished("stop"))

    return play
