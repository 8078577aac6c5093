"""The writer thread: shared transactions, syncing, and the scope of a failure."""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import closing
from pathlib import Path

import apsw
import msgspec
import pytest
import trio
from msgspec import UNSET

from nousd.errors import StoreError
from nousd.store.artifacts import Artifact
from nousd.store.interface import Store
from nousd.store.records import EventFilter
from nousd.store.sqlite import checkpoints
from nousd.store.sqlite import commits as _commits
from nousd.store.sqlite import store as sqlite
from nousd.store.sqlite import writer as _writer
from nousd.store.sqlite.commits import NUMBERS_PER_BLOCK
from nousd.store.sqlite.database import open_for_reading
from nousd.store.sqlite.store import READERS_MAX
from nousd.store.sqlite.writer import GROUP_EVENTS_MAX
from nousd.wire import events
from nousd.wire.objects.entries import ToolCall
from tests.harness.daemon import WAIT_SECONDS
from tests.store.helpers import (
    NO_BOUND,
    Outcomes,
    Watch,
    append,
    appended,
    created,
    delta,
    run_started,
    updated,
    whole_log,
)


async def open_and_append(path: Path, *happened: events.Event) -> list[int]:
    async with sqlite.open_store(path) as store:
        return [event.seq for event in await append(store, *happened)]


# --- groups ------------------------------------------------------------------------------------


async def test_batches_waiting_during_a_commit_share_the_next(watched: Store, watch: Watch) -> None:
    outcomes = Outcomes()
    watch.hold()
    watched.submit(outcomes.batch("first", [created()]))
    await watch.wait_held()
    for number in range(200):
        watched.submit(outcomes.batch(str(number), [delta()]))
    watch.release()
    await watched.flush()
    assert len(watch.commits) == 2
    assert outcomes.names == ["first", *map(str, range(200))]
    assert outcomes.failed == []


CALLED = ToolCall(runtime_tool_call_id="own", tool_call_id="m1.0", name="read", args={})
STARTED = events.MessageStart(
    session_id="s1", run_id="r1", turn_id="1", message_id="m1", role="assistant"
)


ASKED = events.MessageEnd(session_id="s1", run_id="r1", turn_id="1", message_id="m0", text="go")


CALL_STARTED = events.ToolCallStarted(
    session_id="s1", run_id="r1", turn_id="1", tool_call_id="m1.0", attempt=1, tool_name="read"
)


def hold_groups(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let groups be held open so long for what follows them."""
    monkeypatch.setattr(_writer, "FOLLOWING_SECONDS_MAX", seconds)
    monkeypatch.setattr(_writer, "HOLDING_SECONDS_MAX", seconds)


def said(*calls: ToolCall) -> events.EntryAppended:
    """Return the answer of a run's model, with calls."""
    answer = appended("m1", tool_calls=calls or UNSET)
    return msgspec.structs.replace(answer, run_id="r1")


@pytest.mark.parametrize(
    "followed",
    [STARTED, ASKED, said(CALLED), said(), CALL_STARTED],
    ids=["content", "a model input", "calls", "the end of the turn", "the end of a call"],
)
async def test_a_batch_waits_for_the_one_that_follows_it_at_once(
    watched: Store, watch: Watch, monkeypatch: pytest.MonkeyPatch, followed: events.Event
) -> None:
    hold_groups(monkeypatch, WAIT_SECONDS)
    outcomes = Outcomes()
    await append(watched, created())
    watch.commits.clear()
    watched.submit(outcomes.batch("first", [followed]))
    with trio.fail_after(WAIT_SECONDS):
        while not watched._writer.jobs.empty():  # type: ignore[attr-defined]
            await trio.lowlevel.checkpoint()
    watched.submit(outcomes.batch("second", [updated()]))
    await watched.flush()
    assert watch.commits == ["FULL"]
    assert outcomes.names == ["first", "second"]


async def test_no_batch_waits_for_what_follows_it_once_somebody_waits_for_it(
    watched: Store, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_groups(monkeypatch, 2 * WAIT_SECONDS)
    outcomes = Outcomes()
    await append(watched, created())
    with trio.fail_after(WAIT_SECONDS):
        watched.submit(outcomes.batch("first", [STARTED]))
        watched.commit_now()
        await watched.flush()
        watch.hold()
        watched.submit(outcomes.batch("second", [updated()]))
        watched.commit_now()
        watched.submit(outcomes.batch("third", [STARTED]))
        await watch.wait_held()
        watch.release()
        await watched.flush()
    assert outcomes.names == ["first", "second", "third"]


async def test_a_message_of_a_client_waits_for_nothing(
    watched: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_groups(monkeypatch, 2 * WAIT_SECONDS)
    outcomes = Outcomes()
    await append(watched, created())
    with trio.fail_after(WAIT_SECONDS):
        watched.submit(outcomes.batch("alone", [appended("m1")]))
        await watched.flush()
    assert outcomes.names == ["alone"]


async def test_a_batch_that_nothing_follows_after_all_is_committed(
    watched: Store, watch: Watch
) -> None:
    outcomes = Outcomes()
    await append(watched, created())
    watched.submit(outcomes.batch("alone", [STARTED]))
    await watched.flush()
    assert outcomes.names == ["alone"]


async def test_a_group_is_not_held_open_longer_although_each_batch_may_be_followed(
    watched: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_groups(monkeypatch, 2 * WAIT_SECONDS)
    monkeypatch.setattr(_writer, "HOLDING_SECONDS_MAX", 0.0)
    outcomes = Outcomes()
    await append(watched, created())
    with trio.fail_after(WAIT_SECONDS):
        for name in ("first", "second", "third"):
            watched.submit(outcomes.batch(name, [STARTED]))
        await watched.flush()
    assert outcomes.names == ["first", "second", "third"]


async def test_a_group_is_closed_when_it_has_enough_events(watched: Store, watch: Watch) -> None:
    outcomes = Outcomes()
    pieces = [delta()] * (GROUP_EVENTS_MAX // 4)
    watch.hold()
    watched.submit(outcomes.batch("first", [created()]))
    await watch.wait_held()
    for number in range(6):
        watched.submit(outcomes.batch(str(number), pieces))
    watch.release()
    await watched.flush()
    assert len(watch.commits) == 3
    assert watched.head == 1 + 6 * len(pieces)


async def test_a_group_is_closed_when_it_has_enough_bytes(
    watched: Store, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_writer, "GROUP_BYTES_MAX", 1000)
    outcomes = Outcomes()
    watch.hold()
    watched.submit(outcomes.batch("first", [created()]))
    await watch.wait_held()
    for number in range(4):
        watched.submit(outcomes.batch(str(number), [delta("x" * 500)]))
    watch.release()
    await watched.flush()
    assert len(watch.commits) == 3


async def test_only_one_thread_writes_and_it_is_not_the_loop(watched: Store, watch: Watch) -> None:
    for number in range(5):
        await append(watched, created(str(number)))
    assert len(watch.threads) == 1
    assert threading.get_ident() not in watch.threads


async def test_a_read_does_not_wait_for_the_writer(watched: Store, watch: Watch) -> None:
    outcomes = Outcomes()
    await append(watched, created())
    watch.hold()
    watched.submit(outcomes.batch("held", [delta()]))
    await watch.wait_held()
    assert len(await whole_log(watched)) == 1
    assert outcomes.received == []
    watch.release()
    await watched.flush()
    assert outcomes.seqs("held") == [2]


async def test_an_event_is_not_readable_before_its_callback(watched: Store, tmp_path: Path) -> None:
    outcomes = Outcomes()
    await append(watched, created())
    watched.submit(outcomes.batch("next", [delta()]))
    block_until_committed(tmp_path / "log.db", events_min=2)
    assert outcomes.received == []
    assert [event.seq for event in await whole_log(watched)] == [1]
    await watched.flush()
    assert [event.seq for event in await whole_log(watched)] == [1, 2]


def block_until_committed(path: Path, events_min: int) -> None:
    """Block the event loop until the writer's thread has committed ``events_min`` events."""
    deadline = time.monotonic() + WAIT_SECONDS
    with closing(open_for_reading(path)) as connection:
        while connection.execute("SELECT count(*) FROM events").get < events_min:
            assert time.monotonic() < deadline


async def test_more_reads_than_connections_are_all_answered(watched: Store) -> None:
    found: list[int] = []

    async def read() -> None:
        found.append(len(await whole_log(watched)))

    await append(watched, created(), delta())
    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            for _ in range(10 * READERS_MAX):
                nursery.start_soon(read)
    assert found == [2] * 10 * READERS_MAX


async def test_batches_of_a_cancelled_owner_are_committed_before_the_file_closes(
    tmp_path: Path,
) -> None:
    outcomes = Outcomes()
    with trio.CancelScope() as scope:
        async with sqlite.open_store(tmp_path / "log.db") as store:
            for number in range(20):
                store.submit(outcomes.batch(str(number), [delta()]))
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert outcomes.names == [str(number) for number in range(20)]
    assert outcomes.failed == []


# --- durability --------------------------------------------------------------------------------


async def test_a_group_with_a_durable_event_is_synced_and_deltas_alone_are_not(
    watched: Store, watch: Watch
) -> None:
    tool_output = events.ToolExecutionUpdate(
        session_id="s1", run_id="r1", turn_id="1", tool_call_id="t1", tool_name="bash", delta="x"
    )
    await append(watched, created())
    await append(watched, delta(), tool_output)
    await append(watched, delta(), run_started())
    await append(watched, delta())
    await append(watched, artifacts=[Artifact("sha256:00", "text/plain", b"x")])
    assert watch.commits == ["FULL", "NORMAL", "FULL", "NORMAL", "FULL"]


async def test_a_durable_batch_makes_the_deltas_of_its_group_durable(
    watched: Store, watch: Watch
) -> None:
    outcomes = Outcomes()
    await append(watched, created())
    watch.hold()
    watched.submit(outcomes.batch("before", [delta()]))
    await watch.wait_held()
    watched.submit(outcomes.batch("deltas", [delta()]))
    watched.submit(outcomes.batch("durable", [run_started()]))
    watch.release()
    await watched.flush()
    assert watch.commits == ["FULL", "NORMAL", "FULL"]


async def test_a_new_block_of_numbers_is_synced_also_for_deltas(
    watched: Store, watch: Watch
) -> None:
    await append(watched, delta())
    await append(watched, delta())
    assert watch.commits == ["FULL", "NORMAL"]


async def test_a_used_up_block_of_numbers_is_followed_by_another(
    watched: Store, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_commits, "NUMBERS_PER_BLOCK", 10)
    for _ in range(12):
        await append(watched, delta())
    assert watch.commits == ["FULL", *["NORMAL"] * 10, "FULL"]
    assert watched.head == 12


# --- numbers over restarts ---------------------------------------------------------------------


def copy_as_after_a_kill(path: Path, to: Path) -> Path:
    """Copy the files of an open log as another process would find them if this one died now."""
    to.mkdir()
    for name in (path.name, path.name + "-wal"):
        shutil.copy(path.with_name(name), to / name)
    return to / path.name


def names_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


async def test_a_clean_close_leaves_no_gap_and_no_side_files_but_the_reserve(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.db"
    assert await open_and_append(path, created(), delta()) == [1, 2]
    assert names_in(tmp_path) == ["log.db", "log.reserve"]
    assert await open_and_append(path, delta()) == [3]
    async with sqlite.open_store(path) as store:
        assert store.head == 3
        assert len(await whole_log(store)) == 3


async def test_opening_and_closing_uses_no_numbers(tmp_path: Path) -> None:
    for _ in range(3):
        async with sqlite.open_store(tmp_path / "log.db"):
            pass
    assert await open_and_append(tmp_path / "log.db", created()) == [1]


async def test_after_a_kill_commits_are_kept_and_numbers_continue_in_the_next_block(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.db"
    async with sqlite.open_store(path) as store:
        before = await append(store, created(), delta())
        copy = copy_as_after_a_kill(path, tmp_path / "killed")
    async with sqlite.open_store(copy) as store:
        assert store.head == 2
        (after,) = await append(store, delta())
        assert after.seq == 3 + NUMBERS_PER_BLOCK
        assert await whole_log(store) == (*before, after)
    assert await open_and_append(copy, delta()) == [after.seq + 1]


async def test_numbers_of_deltas_lost_in_a_power_cut_are_not_reused(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with sqlite.open_store(path) as store:
        await append(store, created(), run_started())
        synced_bytes = path.with_name("log.db-wal").stat().st_size
        await append(store, *[delta()] * 100)
        copy = copy_as_after_a_kill(path, tmp_path / "no-power")
    with copy.with_name("log.db-wal").open("r+b") as wal:
        wal.truncate(synced_bytes)
    async with sqlite.open_store(copy) as store:
        assert [event.seq for event in await whole_log(store)] == [1, 2]
        (after,) = await append(store, delta())
        assert after.seq > 102


@pytest.mark.parametrize("quick", [256, 10], ids=["between commits", "beside them"])
async def test_the_wal_restarts_once_it_is_large_and_no_reader_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: int
) -> None:
    monkeypatch.setattr("nousd.store.sqlite.commits.WAL_PAGES", 20)
    monkeypatch.setattr("nousd.store.sqlite.commits.QUICK_PAGES", quick)
    path, wal = tmp_path / "log.db", tmp_path / "log.db-wal"

    async def append_pages(numbers: range) -> int:
        for number in numbers:
            await append(store, appended(f"e{number}", text="x" * 4096))
        return wal.stat().st_size

    async with sqlite.open_store(path) as store:
        await append(store, created())
        bounded = await append_pages(range(60))
        assert bounded < 120 * 4096
        with closing(open_for_reading(path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM events").fetchall()
            held = await append_pages(range(60, 120))
            assert held > bounded + 60 * 4096
        assert await append_pages(range(120, 180)) < held + 30 * 4096


async def test_the_wal_is_checkpointed_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nousd.store.sqlite.commits.WAL_PAGES", 100)
    async with sqlite.open_store(tmp_path / "log.db") as store:
        await append(store, created())
        with trio.fail_after(WAIT_SECONDS):
            while not (await store.figures()).checkpoints:
                await append(store, updated(name="often"))
        # The second is answered once the writer has finished the work after the first.
        await append(store, updated(name="once more"))
        await append(store, updated(name="for the last time"))
        assert (await store.figures()).checkpoints == 1


async def test_a_large_wal_is_moved_by_another_connection_until_the_rest_is_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nousd.store.sqlite.commits.WAL_PAGES", 20)
    monkeypatch.setattr("nousd.store.sqlite.commits.QUICK_PAGES", 10)
    threads: dict[str, int] = {}
    checkpoint = checkpoints.checkpoint

    def watched(connection: apsw.Connection, mode: int) -> checkpoints.CheckpointResult:
        done = checkpoint(connection, mode)
        if mode == apsw.SQLITE_CHECKPOINT_PASSIVE:
            name = threading.current_thread().name
            threads[name] = max(done.moved, threads.get(name, 0))
        return done

    monkeypatch.setattr(checkpoints, "checkpoint", watched)
    path = tmp_path / "log.db"
    async with sqlite.open_store(path) as store:
        await append(store, created())
        before = path.stat().st_size
        with trio.fail_after(WAIT_SECONDS):
            while not threads:
                await append(store, updated(name="x" * 4096))
        assert next(iter(threads)).startswith("nousd log checkpoints")
        assert path.stat().st_size > before


async def test_a_store_is_closed_while_its_wal_is_being_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nousd.store.sqlite.commits.WAL_PAGES", 20)
    monkeypatch.setattr("nousd.store.sqlite.commits.QUICK_PAGES", 0)
    begun, gate = threading.Event(), threading.Event()
    checkpoint = checkpoints.checkpoint

    def slow(connection: apsw.Connection, mode: int) -> checkpoints.CheckpointResult:
        begun.set()
        assert gate.wait(WAIT_SECONDS)
        return checkpoint(connection, mode)

    monkeypatch.setattr(checkpoints, "checkpoint", slow)
    path = tmp_path / "log.db"
    async with sqlite.open_store(path) as store:
        await append(store, created())
        with trio.fail_after(WAIT_SECONDS):
            while not begun.is_set():
                await append(store, updated(name="x" * 4096))
        # It is still at it: others commit, and the end waits for it.
        await append(store, updated(name="last"))
        gate.set()
    assert not path.with_name("log.db-wal").exists()
    async with sqlite.open_store(path) as store:
        session = await store.session("s1")
        assert session is not None
        assert session.name == "last"


# --- failures ----------------------------------------------------------------------------------


async def test_batches_queued_behind_a_failed_group_fail_and_later_ones_succeed(
    watched: Store, watch: Watch
) -> None:
    outcomes = Outcomes()
    await append(watched, created())
    submitted_in_callback = outcomes.batch("in callback", [delta()])

    def disk_is_free_again() -> None:
        watch.fail_at = None
        watched.submit(submitted_in_callback)

    watch.hold()
    watched.submit(outcomes.batch("failing", [run_started()], then=disk_is_free_again))
    await watch.wait_held()
    watch.fail_at = "INSERT"
    for name in ("queued", "queued too"):
        watched.submit(outcomes.batch(name, [delta()]))
    watch.release()
    await watched.flush()
    await watched.flush()
    assert outcomes.names == ["failing", "queued", "queued too", "in callback"]
    assert outcomes.failed == ["failing", "queued", "queued too"]
    assert outcomes.seqs("in callback") == [2]
    assert len(watch.commits) == 2
    assert len(await whole_log(watched)) == 2


async def test_batches_queued_behind_a_failure_fail_even_if_the_disk_has_recovered(
    watched: Store, watch: Watch
) -> None:
    outcomes = Outcomes()
    watch.hold()
    watched.submit(outcomes.batch("failing", [created()]))
    await watch.wait_held()
    assert watch.connection is not None
    seen = watch.connection.exec_trace
    assert seen is not None

    def fail_once(cursor: object, statement: str, bindings: object) -> bool:
        if statement == "COMMIT":
            watch.connection.set_exec_trace(seen)  # type: ignore[union-attr]
            raise apsw.IOError("disk I/O error")
        return True

    watch.connection.set_exec_trace(fail_once)
    watched.submit(outcomes.batch("queued", [appended("e1")]))
    watch.release()
    await watched.flush()
    assert outcomes.failed == ["failing", "queued"]
    assert watch.commits == []
    assert await append(watched, created()) == await whole_log(watched)


async def test_a_full_database_fails_the_batch_and_loses_nothing(
    watched: Store, watch: Watch
) -> None:
    await append(watched, created())
    assert watch.connection is not None
    pages = watch.connection.pragma("page_count")
    watch.connection.pragma("max_page_count", pages)
    with pytest.raises(StoreError, match="full"):
        await append(watched, appended("e1", text="x" * 100_000))
    watch.connection.pragma("max_page_count", 2**30)
    assert len(await whole_log(watched)) == 1
    await append(watched, appended("e1", text="x" * 100_000))
    assert watched.head == 2


async def test_the_next_commit_recovers_from_a_failed_rollback(
    watched: Store, watch: Watch
) -> None:
    await append(watched, created())
    watch.fail_at = "COMMIT"
    seen = watch.connection.exec_trace if watch.connection else None
    assert watch.connection is not None
    assert seen is not None

    def fail_rollback(cursor: object, statement: str, bindings: object) -> bool:
        if statement == "ROLLBACK":
            raise apsw.IOError("disk I/O error")
        return seen(cursor, statement, bindings)  # type: ignore[arg-type]

    watch.connection.set_exec_trace(fail_rollback)
    with pytest.raises(StoreError):
        await append(watched, run_started())
    watch.connection.set_exec_trace(seen)
    watch.fail_at = None
    (after,) = await append(watched, delta())
    assert [event.seq for event in await whole_log(watched)] == [1, after.seq]
    assert await watched.run("r1") is None


async def test_a_bug_in_the_writer_fails_all_batches_and_is_raised_on_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(*_: object) -> None:
        raise AssertionError("a fault of ours")

    outcomes = Outcomes()

    async def use_the_store() -> None:
        async with sqlite.open_store(tmp_path / "log.db") as store:
            await append(store, created())
            monkeypatch.setattr("nousd.store.sqlite.rows.apply", faulty)
            store.submit(outcomes.batch("faulty", [run_started()]))
            store.submit(outcomes.batch("queued", [delta()]))
            await store.flush()
            store.submit(outcomes.batch("late", [delta()]))
            await store.flush()

    with pytest.raises(AssertionError, match="a fault of ours"):
        await use_the_store()
    assert outcomes.names == ["faulty", "queued", "late"]
    assert outcomes.failed == ["faulty", "queued", "late"]
    monkeypatch.undo()
    async with sqlite.open_store(tmp_path / "log.db") as store:
        assert len(await whole_log(store)) == 1


async def test_reading_an_invalid_row_raises_store_error(watched: Store, watch: Watch) -> None:
    await append(watched, created(), appended("e1"))
    assert watch.connection is not None
    watch.connection.execute("UPDATE entry_bodies SET body = x'7b'")
    with pytest.raises(StoreError, match="could not be read"):
        await watched.entry("s1", "e1")
    assert len(await watched.events_after(0, EventFilter(), limit=9, bytes_max=NO_BOUND)) == 2
