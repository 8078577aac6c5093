"""The hub: history and live events as one stream, for any number of readers at any speed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from nousd.daemon.clock import Clock
from nousd.daemon.eventlog import hub as hub_module
from nousd.daemon.eventlog.hub import Hub, matches, whole_line
from nousd.daemon.eventlog.log import Log
from nousd.store.interface import Store
from nousd.store.memory import store as memory
from nousd.store.records import EventFilter, StoredEvent
from nousd.store.sqlite import store as sqlite
from nousd.wire import events
from nousd.wire.codec.envelope import decode_event
from tests.harness.daemon import WAIT_SECONDS, FakeClock

ALL = EventFilter()


class Bench:
    """A log with a hub on it."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.hub = Hub(store)
        self.log = Log(store, self.hub, clock)

    def publish(self, count: int, *, session_id: str = "s", text: str = "x") -> None:
        for _ in range(count):
            event = events.Status(session_id=session_id, run_id=f"run-{session_id}", message=text)
            self.log.submit(self.log.encode([event]))

    async def publish_now(self, count: int, **more: str) -> None:
        self.publish(count, **more)
        await self.store.flush()

    async def read_to_head(self, after: int, wanted: EventFilter = ALL) -> list[int]:
        """Read page by page, as a subscriber does, and return the events' numbers."""
        seqs: list[int] = []
        while after < self.hub.head:
            lines, reached = await self.hub.page_after(after, wanted)
            assert reached > after, "a page without progress"
            seqs += seqs_of(lines)
            after = reached
        return seqs


def seqs_of(lines: bytes) -> list[int]:
    return [
        int(line.removeprefix(b'{"v":"1","id":"evt-').partition(b'"')[0])
        for line in lines.split(b"\n")[:-1]
    ]


@pytest.fixture(params=["memory", "sqlite"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    if request.param == "memory":
        async with memory.open_store() as store:
            yield Bench(store, FakeClock())
    else:
        async with sqlite.open_store(tmp_path / "log.db") as store:
            yield Bench(store, FakeClock())


async def test_released_events_leave_the_window_and_are_read_from_the_log(
    bench: Bench,
) -> None:
    await bench.publish_now(10)
    assert bench.hub.window_start == 0
    fifth = (await bench.store.events_after(4, ALL, limit=1, bytes_max=1))[0]
    bench.hub.release(decode_event(fifth.line).ts)
    assert bench.hub.window_start == 4
    assert await bench.read_to_head(0) == list(range(1, 11))
    bench.hub.release("9999")
    assert bench.hub.window_start == 10
    assert await bench.read_to_head(0) == list(range(1, 11))
    await bench.publish_now(1)
    assert await bench.read_to_head(9) == [10, 11]


@pytest.fixture
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "WINDOW_EVENTS_MAX", 64)
    monkeypatch.setattr(hub_module, "PAGE_EVENTS", 10)


class Waiting:
    """A reader that does not go on waiting."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.event_filter = ALL
        self.line_of = whole_line
        self.woken = trio.Event()

    def take(self, lines: bytes, position: int) -> bool:
        self.woken.set()
        return False


async def wait_after(hub: Hub, cursor: int) -> None:
    """Return once there is an event after ``cursor``."""
    if hub.head <= cursor:
        reader = Waiting(cursor)
        with hub.attach_reader(reader):
            await reader.woken.wait()


def window_of(hub: Hub) -> list[int]:
    return [event.seq for event in hub._window.events]


async def test_a_reader_at_the_head_receives_the_next_event(bench: Bench) -> None:
    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_after, bench.hub, bench.hub.head)
            await wait_all_tasks_blocked()
            assert nursery.child_tasks, "there is nothing to wake up for"
            bench.publish(1)
        lines, reached = await bench.hub.page_after(0, ALL)
    assert seqs_of(lines) == [1]
    assert reached == bench.hub.head == 1
    assert await bench.hub.page_after(reached, ALL) == (b"", reached)


class Following(Waiting):
    """A reader that waits until it has so many events."""

    def __init__(self, position: int, wanted: EventFilter, count: int) -> None:
        super().__init__(position)
        self.event_filter = wanted
        self.seqs: list[int] = []
        self._count = count

    def take(self, lines: bytes, position: int) -> bool:
        self.seqs += seqs_of(lines)
        self.position = position
        return len(self.seqs) < self._count or super().take(lines, position)


async def test_readers_that_wait_are_given_what_they_want_until_they_have_enough(
    bench: Bench,
) -> None:
    odd = Following(0, EventFilter(session_id="odd"), 100)
    first = Following(0, ALL, 2)
    everything = Following(0, ALL, 100)
    with bench.hub.attach_reader(odd), bench.hub.attach_reader(first):
        with bench.hub.attach_reader(everything):
            for number in range(1, 7):
                await bench.publish_now(1, session_id="odd" if number % 2 else "even")
                assert {odd.position, everything.position} == {number}
        await bench.publish_now(1, session_id="odd")
    await bench.publish_now(1, session_id="odd")
    assert odd.seqs == [1, 3, 5, 7]
    assert everything.seqs == [1, 2, 3, 4, 5, 6]
    assert first.seqs == [1, 2], "nothing is given to a reader that does not go on waiting"


async def test_a_reader_behind_the_window_is_told_to_read_the_log(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "WINDOW_BYTES_MAX", 1000)
    reader = Following(0, ALL, 0)
    with bench.hub.attach_reader(reader):
        await bench.publish_now(1, text="x" * 2000)
    assert (reader.seqs, reader.position) == ([], 0)
    assert reader.woken.is_set()
    assert await bench.read_to_head(reader.position) == [1]


async def test_the_window_returns_the_same_lines_as_the_log(bench: Bench) -> None:
    await bench.publish_now(5)
    lines, _ = await bench.hub.page_after(2, ALL)
    stored = await bench.store.events_after(2, ALL, limit=10, bytes_max=10_000)
    assert lines == b"".join(event.line for event in stored)


async def test_events_dropped_from_the_window_are_read_from_the_log(
    bench: Bench, small_window: None
) -> None:
    await bench.publish_now(300)
    assert window_of(bench.hub)[0] > 200
    assert await bench.read_to_head(0) == list(range(1, 301))


async def test_every_cursor_continues_without_gap_or_duplicate_from_log_to_window(
    bench: Bench, small_window: None
) -> None:
    await bench.publish_now(100)
    for after in range(101):
        assert await bench.read_to_head(after) == list(range(after + 1, 101))


async def test_the_window_stays_within_its_bounds_and_drops_the_oldest_events(
    bench: Bench, small_window: None
) -> None:
    for _ in range(200):
        await bench.publish_now(1)
        window = window_of(bench.hub)
        assert len(window) <= 64
        assert window == list(range(window[0], bench.hub.head + 1))
        assert bench.hub.window.bytes == sum(len(event.line) for event in bench.hub._window.events)
    assert len(window) >= 24, "half of the window stays"


async def test_the_window_is_bounded_in_bytes_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "WINDOW_BYTES_MAX", 10_000)
    for _ in range(20):
        await bench.publish_now(1, text="x" * 2000)
        assert bench.hub.window.bytes <= 10_000
    await bench.publish_now(1, text="x" * 20_000)
    assert window_of(bench.hub) == [], "one event that is larger than the window is not kept"
    assert bench.hub.head == 21
    assert await bench.read_to_head(0) == list(range(1, 22))
    await bench.publish_now(1)
    assert await bench.read_to_head(20) == [21, 22]


@pytest.mark.parametrize("published_before", [0, 200])
async def test_filters_apply_in_the_window_and_in_the_log(
    bench: Bench, small_window: None, published_before: int
) -> None:
    for number in range(20):
        await bench.publish_now(1, session_id="a" if number % 3 == 0 else "b")
    await bench.publish_now(published_before, session_id="c")
    expected = [number + 1 for number in range(20) if number % 3 == 0]
    assert await bench.read_to_head(0, EventFilter(session_id="a")) == expected
    assert await bench.read_to_head(0, EventFilter(run_id="run-a")) == expected
    assert await bench.read_to_head(0, EventFilter(types=frozenset({"error"}))) == []
    none = EventFilter(session_id="a", run_id="run-b")
    assert await bench.read_to_head(0, none) == []


@pytest.mark.parametrize(
    ("wanted", "is_wanted"),
    [
        (EventFilter(), True),
        (EventFilter(session_id="s"), True),
        (EventFilter(session_id="t"), False),
        (EventFilter(run_id="r"), True),
        (EventFilter(run_id="q"), False),
        (EventFilter(types=frozenset({"status", "error"})), True),
        (EventFilter(types=frozenset({"error"})), False),
        (EventFilter(types=frozenset()), False),
        (EventFilter("s", "r", frozenset({"status"})), True),
        (EventFilter("s", "q", frozenset({"status"})), False),
    ],
)
def test_an_event_matches_if_every_part_of_the_filter_does(
    wanted: EventFilter, is_wanted: bool
) -> None:
    assert matches(StoredEvent(1, "status", "s", "r", b""), wanted) is is_wanted


async def test_a_page_ends_at_the_hubs_head_even_if_the_log_is_ahead(
    bench: Bench,
) -> None:
    await bench.publish_now(3)
    # The hub has not yet received the callback for the newest event.
    late = Hub(bench.store)
    late._window.restart(2)
    assert await late.page_after(0, ALL) == (
        b"".join(e.line for e in await bench.store.events_after(0, ALL, limit=2, bytes_max=10_000)),
        2,
    )


async def test_a_hub_on_an_existing_log_begins_at_its_head(
    bench: Bench, small_window: None
) -> None:
    await bench.publish_now(30)
    again = Hub(bench.store)
    assert again.head == bench.store.head == 30
    assert await again.page_after(30, ALL) == (b"", 30)
    lines, reached = await again.page_after(0, ALL)
    assert seqs_of(lines) == list(range(1, 11))
    assert reached == 10


async def test_readers_of_any_speed_receive_every_event_during_fast_publishing(
    bench: Bench, small_window: None
) -> None:
    total = 1200
    seen: dict[int, list[int]] = {pause: [] for pause in (0, 1, 7, 50)}

    async def read(pause: int) -> None:
        after = 0
        while after < total:
            await wait_after(bench.hub, after)
            lines, after = await bench.hub.page_after(after, ALL)
            seen[pause] += seqs_of(lines)
            for _ in range(pause):
                await trio.lowlevel.checkpoint()

    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            for pause in seen:
                nursery.start_soon(read, pause)
            for _ in range(total // 6):
                bench.publish(6)
                await trio.lowlevel.checkpoint()
    for read_by in seen.values():
        assert read_by == list(range(1, total + 1))


async def test_a_stalled_reader_does_not_enlarge_the_window_and_catches_up(
    bench: Bench, small_window: None
) -> None:
    stalled_at = bench.hub.head
    await bench.publish_now(1000)
    assert len(window_of(bench.hub)) <= 64
    assert await bench.read_to_head(stalled_at) == list(range(1, 1001))


async def test_a_forgotten_session_leaves_the_window_and_breaks_no_reader(
    bench: Bench,
) -> None:
    await bench.publish_now(3, session_id="kept")
    await bench.publish_now(4, session_id="gone")
    head = bench.hub.head
    bench.hub.forget("gone")
    assert bench.hub.head == head
    for cursor in range(head):
        lines, after = await bench.hub.page_after(cursor, ALL)
        seen = seqs_of(lines)
        while after < head:
            lines, after = await bench.hub.page_after(after, ALL)
            seen += seqs_of(lines)
        assert seen == [seq for seq in (1, 2, 3) if seq > cursor]
    await bench.publish_now(1, session_id="kept")
    assert await bench.read_to_head(2) == [3, head + 1]
