"""The log, on every store: numbers, order, callbacks, pages."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from nousd.errors import StoreError
from nousd.store.interface import PENDING_BATCHES_MAX, PENDING_BYTES_MAX, Store
from nousd.store.memory import store as memory
from nousd.store.pending import PendingBatches
from nousd.store.records import EventFilter
from nousd.store.sqlite import store as sqlite
from nousd.wire.codec.envelope import decode_event
from nousd.wire.events import Status
from tests.harness.daemon import WAIT_SECONDS
from tests.store.helpers import (
    EVERYTHING,
    NO_BOUND,
    Outcomes,
    append,
    appended,
    created,
    delta,
    run_ended,
    run_started,
    whole_log,
)


async def test_an_empty_log_has_head_zero_and_no_events(store: Store) -> None:
    assert store.head == 0
    assert await whole_log(store) == ()


async def test_events_are_numbered_from_one_in_the_order_of_submission(store: Store) -> None:
    outcomes = Outcomes()
    store.submit(outcomes.batch("a", [created(), run_started()]))
    store.submit(outcomes.batch("b", [delta()]))
    await store.flush()
    assert outcomes.seqs("a") == [1, 2]
    assert outcomes.seqs("b") == [3]
    assert [event.seq for event in await whole_log(store)] == [1, 2, 3]


async def test_a_stored_line_is_the_whole_event_with_its_number(store: Store) -> None:
    (stored,) = await append(store, delta("héllo\n"))
    line = decode_event(stored.line)
    assert stored.line.endswith(b"\n")
    assert (line.id, line.type) == ("evt-1", "message_update")
    assert (stored.type, stored.session_id, stored.run_id) == ("message_update", "s1", "r1")
    assert await whole_log(store) == (stored,)


async def test_an_event_outside_of_runs_has_no_run_id(store: Store) -> None:
    (stored,) = await append(store, created())
    assert stored.run_id is None


async def test_each_batch_has_one_callback_in_order_and_never_inside_submit(store: Store) -> None:
    outcomes = Outcomes()
    names = [str(number) for number in range(300)]
    for name in names:
        store.submit(outcomes.batch(name, [delta(name)]))
        assert outcomes.received == []
    await store.flush()
    assert outcomes.names == names
    assert outcomes.failed == []


async def test_a_batch_without_events_is_committed_too(store: Store) -> None:
    assert await append(store) == ()
    assert store.head == 0


async def test_the_head_is_the_last_event_of_the_batch_whose_callback_runs(store: Store) -> None:
    heads: list[int] = []
    outcomes = Outcomes()
    for name in ("a", "b"):
        store.submit(
            outcomes.batch(name, [delta(), delta()], then=lambda: heads.append(store.head))
        )
    assert store.head == 0
    await store.flush()
    assert heads == [2, 4]
    assert store.head == 4


async def test_a_batch_submitted_in_a_callback_is_committed_after_those_waiting(
    store: Store,
) -> None:
    outcomes = Outcomes()
    third = outcomes.batch("c", [delta()])
    store.submit(outcomes.batch("a", [delta()], then=lambda: store.submit(third)))
    store.submit(outcomes.batch("b", [delta()]))
    await store.flush()
    await store.flush()
    assert outcomes.names == ["a", "b", "c"]
    assert outcomes.seqs("c") == [3]


async def test_a_batch_whose_caller_is_cancelled_is_committed_with_its_callback(
    store: Store,
) -> None:
    outcomes = Outcomes()
    with trio.CancelScope() as scope:
        store.submit(outcomes.batch("a", [created()]))
        scope.cancel()
        await store.flush()
    assert scope.cancelled_caught
    await store.flush()
    assert outcomes.seqs("a") == [1]


async def test_committed_events_can_be_read_at_once(store: Store) -> None:
    for number in range(1, 20):
        await append(store, appended(f"e{number}"))
        assert len(await whole_log(store)) == number
        assert await store.entry("s1", f"e{number}") is not None


def test_pending_bytes_count_event_lines_until_the_batch_is_resolved() -> None:
    pending, outcomes = PendingBatches(head=0), Outcomes()
    batch = outcomes.batch("a", [delta("x" * 1000)])
    assert pending.add(batch) == pending.bytes == len(batch.records[0].tail)
    pending.fail_all(StoreError("the disk is gone"))
    assert pending.bytes == 0


def test_what_is_called_after_commits_is_called_once_for_batches_that_were_committed_together() -> (
    None
):
    pending, outcomes = PendingBatches(head=0), Outcomes()
    seen: list[list[str]] = []
    pending.after_commits(lambda: seen.append(list(outcomes.names)))
    for name in ("a", "b", "c"):
        pending.add(outcomes.batch(name, []))
    pending.settle([(), ()])
    pending.settle([()])
    assert seen == [["a", "b"], ["a", "b", "c"]]


async def test_a_producer_gives_others_a_turn_once_it_is_ahead_of_the_commits() -> None:
    pending, outcomes = PendingBatches(head=0), Outcomes()
    turns: list[str] = []

    async def take_turn() -> None:
        turns.append("other")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_turn)
        for name in ("a", "b"):
            turns.append(name)
            pending.add(outcomes.batch(name, [delta()]))
            await pending.wait_room()
    assert turns == ["a", "b", "other"]
    with trio.CancelScope() as scope:
        scope.cancel()
        pending.settle([()])
        await pending.wait_room()
    assert scope.cancelled_caught


@pytest.mark.slow(keep=1)
async def test_wait_room_waits_behind_very_many_small_batches(store: Store) -> None:
    outcomes = Outcomes()
    with trio.fail_after(WAIT_SECONDS):
        for number in range(PENDING_BATCHES_MAX):
            batch = outcomes.batch(str(number), [delta("x")])
            store.submit(batch)
        assert len(batch.records[0].tail) * PENDING_BATCHES_MAX < PENDING_BYTES_MAX
        await store.wait_room()
    assert outcomes.received != []


async def test_wait_room_returns_once_the_queue_is_below_its_limit(
    store: Store,
) -> None:
    outcomes = Outcomes()
    with trio.fail_after(WAIT_SECONDS):
        await store.wait_room()
        assert outcomes.received == []
        piece = "x" * (PENDING_BYTES_MAX // 4)
        for name in ("a", "b", "c", "d"):
            store.submit(outcomes.batch(name, [delta(piece)]))
        await store.wait_room()
    assert (await store.figures()).queued_bytes < PENDING_BYTES_MAX
    assert outcomes.names[0] == "a"


# --- reading -----------------------------------------------------------------------------------


async def test_a_page_begins_after_its_cursor(store: Store) -> None:
    await append(store, *(delta(str(number)) for number in range(10)))
    first = await store.events_after(0, EVERYTHING, limit=4, bytes_max=NO_BOUND)
    second = await store.events_after(4, EVERYTHING, limit=100, bytes_max=NO_BOUND)
    assert [event.seq for event in first] == [1, 2, 3, 4]
    assert [event.seq for event in second] == [5, 6, 7, 8, 9, 10]
    assert await store.events_after(10, EVERYTHING, limit=4, bytes_max=NO_BOUND) == ()


async def test_a_page_stays_within_its_byte_limit(store: Store) -> None:
    stored = await append(store, delta("x"), delta("y"), delta("z"))
    size = len(stored[0].line)
    page = await store.events_after(0, EVERYTHING, limit=10, bytes_max=2 * size)
    assert page == stored[:2]
    assert await store.events_after(0, EVERYTHING, limit=10, bytes_max=2 * size - 1) == stored[:1]


async def test_one_event_always_fits_on_a_page(store: Store) -> None:
    stored = await append(store, delta("x" * 1000), delta())
    assert await store.events_after(0, EVERYTHING, limit=10, bytes_max=1) == stored[:1]


FILTERS: list[tuple[EventFilter, list[int]]] = [
    (EventFilter(), [1, 2, 3, 4, 5, 6, 7]),
    (EventFilter(session_id="s1"), [1, 3, 5, 7]),
    (EventFilter(session_id="s2"), [2, 4, 6]),
    (EventFilter(session_id="nobody"), []),
    (EventFilter(run_id="r1"), [3, 5, 7]),
    (EventFilter(run_id="r1", session_id="s1"), [3, 5, 7]),
    (EventFilter(run_id="r1", session_id="s2"), []),
    (EventFilter(types=frozenset({"message_update"})), [5, 6]),
    (EventFilter(types=frozenset({"message_update", "agent_end"})), [5, 6, 7]),
    (EventFilter(types=frozenset({"message_update"}), session_id="s2"), [6]),
    (EventFilter(types=frozenset({"agent_start"}), run_id="r1"), [3]),
    (EventFilter(types=frozenset()), []),
]


@pytest.mark.parametrize(("wanted", "seqs"), FILTERS)
async def test_a_reader_gets_the_events_that_match_its_filter(
    store: Store, wanted: EventFilter, seqs: list[int]
) -> None:
    await append(store, created("s1"), created("s2"))
    await append(store, run_started("r1", "s1"), run_started("r2", "s2"))
    await append(store, delta("a", "r1", "s1"), delta("b", "r2", "s2"), run_ended("r1", "s1"))
    assert [event.seq for event in await whole_log(store, wanted)] == seqs
    behind = await store.events_after(3, wanted, limit=1, bytes_max=NO_BOUND)
    assert [event.seq for event in behind] == [seq for seq in seqs if seq > 3][:1]


async def test_matching_events_are_found_after_many_that_do_not_match(store: Store) -> None:
    noise = [Status(session_id="s1", run_id="r1", message="busy") for _ in range(500)]
    await append(store, *noise, delta())
    wanted = EventFilter(types=frozenset({"message_update"}))
    (found,) = await store.events_after(0, wanted, limit=10, bytes_max=NO_BOUND)
    assert found.seq == 501


@pytest.mark.parametrize(("until", "found"), [(1, []), (2, [2]), (3, [2, 3]), (9, [2, 3]), (0, [])])
async def test_a_page_ends_at_its_upper_bound_and_at_the_head(
    store: Store, until: int, found: list[int]
) -> None:
    await append(store, *(delta(str(number)) for number in range(3)))
    page = await store.events_after(1, EVERYTHING, until=until, limit=9, bytes_max=NO_BOUND)
    assert [event.seq for event in page] == found


# --- closing -----------------------------------------------------------------------------------

OPENERS = ["memory", "sqlite"]


@pytest.mark.parametrize("kind", OPENERS)
async def test_closing_commits_queued_batches(kind: str, tmp_path: Path) -> None:
    outcomes = Outcomes()
    opener = memory.open_store() if kind == "memory" else sqlite.open_store(tmp_path / "log.db")
    async with opener as store:
        for number in range(50):
            store.submit(outcomes.batch(str(number), [delta()]))
    assert outcomes.names == [str(number) for number in range(50)]
    assert outcomes.failed == []


@pytest.mark.parametrize("kind", OPENERS)
async def test_a_batch_submitted_during_or_after_closing_fails(kind: str, tmp_path: Path) -> None:
    outcomes = Outcomes()
    opener = memory.open_store() if kind == "memory" else sqlite.open_store(tmp_path / "log.db")
    async with opener as store:
        late = outcomes.batch("late", [delta()])
        store.submit(outcomes.batch("first", [delta()], then=lambda: store.submit(late)))
    await store.flush()
    store.submit(outcomes.batch("too late", [delta()]))
    assert outcomes.names == ["first", "late"]
    await store.flush()
    assert outcomes.names == ["first", "late", "too late"]
    assert outcomes.failed == ["late", "too late"]


async def test_a_closed_store_cannot_be_read(tmp_path: Path) -> None:
    async with sqlite.open_store(tmp_path / "log.db") as store:
        await store.defaults()
    with pytest.raises(StoreError, match="closed"):
        await store.defaults()
