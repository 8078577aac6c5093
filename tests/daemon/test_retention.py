"""The pruning of old deltas while the daemon runs, and its effect on clients."""

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
from nousd.store.records import OldDeltas, PruneResult, StoredEvent
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
    """A clock that follows trio's, starting on a day that the test chooses."""

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
        """Run a daemon that starts at the calendar's current time."""
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


# --- schedule ------------------------------------------------------------------------------------


@pytest.mark.behaviour("old_deltas_are_pruned")
async def test_deltas_older_than_the_retention_are_pruned_at_startup(
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


async def test_old_deltas_are_pruned_every_hour_even_if_the_hub_holds_them(
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
async def test_a_retention_of_zero_or_very_many_days_prunes_nothing(
    days: int, autojump_clock: MockClock, world: World
) -> None:
    async with world.daemon() as daemon:
        await talk(daemon, world.model, "one ", "two")
    world.calendar.days = 30_000
    async with world.daemon(delta_retention_days=days):
        await trio.sleep(2 * DAY)
    assert len(await deltas(world.store)) == 2


async def test_pruning_pauses_between_its_steps(
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


async def test_deltas_in_the_hub_are_not_pruned_if_the_clock_was_set_back(
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
    """A store whose first ``failures`` prunings fail."""

    def __init__(self, store: Store, failures: int) -> None:
        self._store = store
        self.failures = failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def prune_deltas(self, old: OldDeltas) -> PruneResult:
        if self.failures:
            self.failures -= 1
            raise StoreError("the disk is full")
        return await self._store.prune_deltas(old)


async def test_a_failed_pruning_is_logged_and_retried_after_an_hour(
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


# --- readers of the log --------------------------------------------------------------------------


async def test_a_run_left_open_by_a_kill_is_closed_in_a_pruned_log(
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


PROMPT = {"text": "go", "client_message_id": "once"}


async def test_the_result_of_a_pruned_run_has_the_same_texts(
    autojump_clock: MockClock, world: World
) -> None:
    async with world.daemon() as daemon:
        world.model.answer(says("one ", "two ", "three"))
        before = await (await daemon.connect()).request("prompt", **PROMPT)
    world.calendar.days = 8
    async with world.daemon() as daemon:
        await trio.sleep(10)
        assert len(await deltas(world.store)) == 1
        after = await (await daemon.connect()).request("prompt", **PROMPT)
    assert events_of(after) == events_of(before)
    assert after["output"] == before["output"] == "one two three"


def events_of(result: Any) -> list[tuple[str, Any]]:
    return [(event["type"], event.get("delta")) for event in result["events"]]


class PruningStore:
    """A store that prunes all deltas after it has read a page that ends within them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.pruned = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def events_after(
        self, after: int, *wanted: Any, **bounds: Any
    ) -> tuple[StoredEvent, ...]:
        page = await self._store.events_after(after, *wanted, **bounds)
        if page and page[-1].type == "message_update":
            self.pruned += await prune(self._store, "9999")
        return page


async def test_a_result_read_during_pruning_repeats_no_text(
    autojump_clock: MockClock, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.daemon() as daemon:
        world.model.answer(says("one ", "two ", "three ", "four"))
        before = await (await daemon.connect()).request("prompt", **PROMPT)
    monkeypatch.setattr(log_walk, "_PAGE_EVENTS", 4)
    pruning_store = PruningStore(world.store)
    async with world.daemon(store=pruning_store) as daemon:
        after = await (await daemon.connect()).request("prompt", **PROMPT)
    assert pruning_store.pruned == 3
    assert events_of(after) == events_of(before)


# --- clients -------------------------------------------------------------------------------------


@asynccontextmanager
async def pruned_daemon(folder: Path) -> AsyncIterator[tuple[Daemon, Client, list[Event]]]:
    """Run a daemon on a pruned log; yield it, a client, and the events before the pruning."""
    model, tool = ScriptedProvider(), ScriptedTool()
    parts: dict[str, Any] = {"provider": model, "tools": [tool.tool]}
    model.answer(asks_for_tools(1), says("one ", "two ", "three ", "four"))
    tool.finish(gives("done"))
    async with socket_daemon(folder, **parts) as daemon:
        await (await daemon.connect()).request("prompt", **PROMPT)
        events = await daemon.watch(after="evt-0", types="all")
        before = [await events.next() for _ in range(daemon.services.hub.head)]
    assert vacuum(folder).deltas_joined == 3
    async with socket_daemon(folder, **parts) as daemon:
        yield daemon, await daemon.connect(), before


def seqs_of(log: list[Event], type_: str) -> list[int]:
    return [number(event) for event in log if event["type"] == type_]


def number(event: Event) -> int:
    return int(event["id"].removeprefix("evt-"))


def log_after_pruning(before: list[Event]) -> list[Event]:
    """Return the events of the log after pruning."""
    *gone, last = [event for event in before if event["type"] == "message_update"]
    payload = {**last["payload"], "delta": "one two three four", "joined_from": gone[0]["id"]}
    joined = {**last, "payload": payload}
    return [joined if event == last else event for event in before if event not in gone]


@pytest.mark.behaviour("pruned_cursors_go_on")
async def test_a_cursor_among_pruned_deltas_continues_at_the_next_stored_event(
    short_folder: Path,
) -> None:
    async with pruned_daemon(short_folder) as (daemon, client, before):
        first, *_, last = seqs_of(before, "message_update")
        after_prune = log_after_pruning(before)
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
async def test_only_responses_whose_filter_matches_pruned_deltas_are_marked_as_pruned(
    short_folder: Path,
) -> None:
    async with pruned_daemon(short_folder) as (daemon, client, before):
        cursor = before[seqs_of(before, "message_update")[0]]["id"]
        run_id = before[-1]["payload"].get("run_id") or before[-2]["payload"]["run_id"]
        filters: list[tuple[dict[str, Any], bool]] = [
            ({"types": "v1"}, True),
            ({"types": ["message_update"]}, True),
            ({"types": ["message_end"]}, False),
            ({"run_id": run_id}, True),
            ({"run_id": "run-another"}, False),
            ({"session_id": "sess-another"}, False),
        ]
        for chosen, is_marked in filters:
            events = await daemon.watch()
            answer = await events.subscribe(after=cursor, **chosen)
            assert answer.get("pruned", False) is is_marked, chosen
            page = await client.request("get_events", after=cursor, **chosen)
            assert page.get("pruned", False) is is_marked, chosen
            await events.aclose()


@pytest.mark.behaviour("pruned_runs_are_whole")
async def test_a_replay_of_a_pruned_run_has_the_complete_texts(
    short_folder: Path,
) -> None:
    async with pruned_daemon(short_folder) as (daemon, client, before):
        events = await daemon.watch(after="evt-0")
        replay = await events.run()
        ends = [event for event in before if event["type"] == "message_end"]
        assert [event for event in replay if event["type"] == "message_end"] == ends
        updates = [e["payload"]["delta"] for e in replay if e["type"] == "message_update"]
        assert updates == ["one two three four"]
        again = await client.request("prompt", **PROMPT)
        assert again["output"] == "one two three four"


@pytest.mark.behaviour("unfinished_messages_are_not_pruned")
async def test_a_message_still_streaming_after_the_retention_is_not_pruned(
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
    """Return a model call that is silent for a day after each text."""

    async def play(receive: Receive) -> None:
        for text in texts:
            await receive(TextDelta(text))
            await trio.sleep(DAY)
        await receive(Finished("stop"))

    return play
