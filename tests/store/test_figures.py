"""A store's counters of what it has written, on every store."""

from __future__ import annotations

from pathlib import Path

import trio

from nousd.errors import StoreError
from nousd.store.artifacts import PUT_STEP_BYTES, Artifact
from nousd.store.interface import Store
from nousd.store.memory import store as memory
from nousd.store.pending import PendingBatches
from nousd.store.records import OldDeltas
from nousd.store.sqlite import store as sqlite
from nousd.store.write_stats import SYNC_BOUNDS, WriteStats
from nousd.wire import events
from nousd.wire.objects.inputs import PendingCounts, QueuedInput
from nousd.wire.objects.metrics import PendingInputs
from tests.store.helpers import TS, Outcomes, Watch, append, created, deleted, source, updated


def delta(text: str = "x") -> events.MessageUpdate:
    where = {"session_id": "s", "run_id": "r", "turn_id": "1", "message_id": "m"}
    return events.MessageUpdate(**where, delta=text)


def accepted(session_id: str, *kinds: str) -> events.QueueUpdate:
    inputs = tuple(
        QueuedInput(input_id=f"{session_id}-{number}", kind=kind, text="t")  # type: ignore[arg-type]
        for number, kind in enumerate(kinds)
    )
    counts = PendingCounts(steer=0, follow_up=0)
    return events.QueueUpdate(
        session_id=session_id, change="accepted", inputs=inputs, pending_counts=counts
    )


def counts_of(**counts: int) -> PendingInputs:
    return PendingInputs.of(counts, truncated=False)


async def test_a_new_store_has_written_nothing(store: Store) -> None:
    figures = await store.figures()
    assert (figures.events, figures.bytes, figures.artifacts, figures.artifact_bytes) == (0,) * 4
    assert (figures.queued_batches, figures.queued_bytes, figures.failed_commits) == (0, 0, 0)
    assert figures.unsynced_commits == 0
    assert len(figures.sync_seconds.counts) == len(figures.sync_seconds.bounds) + 1


async def test_events_and_the_bytes_of_their_lines_are_counted(store: Store) -> None:
    stored = await append(store, created("s"), updated("s", name="n"))
    stored += await append(store, delta())
    figures = await store.figures()
    assert figures.events == 3
    assert figures.bytes == sum(len(event.line) for event in stored)


async def test_artifacts_of_batches_and_those_put_alone_are_counted(store: Store) -> None:
    await append(store, created("s"), artifacts=[Artifact("sha256:a", "text/plain", b"abc")])
    large = b"x" * (PUT_STEP_BYTES + 1)
    for _ in range(2):
        await store.put_artifact(source(large), "text/plain", now=TS)
    figures = await store.figures()
    assert (figures.artifacts, figures.artifact_bytes) == (3, 3 + 2 * len(large))


async def test_batches_waiting_for_their_commit_are_counted_as_queued(
    watch: Watch, watched: Store
) -> None:
    outcomes = Outcomes()
    batches = [outcomes.batch("a", [created("s")]), outcomes.batch("b", [updated("s", name="n")])]
    watch.hold()
    for batch in batches:
        watched.submit(batch)
    await watch.wait_held()
    figures = await watched.figures()
    assert figures.queued_batches == 2
    assert figures.queued_bytes == sum(len(batch.records[0].tail) for batch in batches)
    watch.release()
    await watched.flush()
    figures = await watched.figures()
    assert (figures.queued_batches, figures.queued_bytes) == (0, 0)


async def test_pending_inputs_of_all_sessions_are_counted_by_kind(store: Store) -> None:
    assert await store.pending_counts() == counts_of()
    await append(store, created("s"), accepted("s", "steer", "follow_up", "follow_up"))
    await append(store, created("other"), accepted("other", "prompt", "message", "steer"))
    wanted = counts_of(prompt=1, steer=2, follow_up=2, message=1)
    assert await store.pending_counts() == wanted
    await append(store, deleted("other"))
    assert await store.pending_counts() == counts_of(steer=1, follow_up=2)


async def test_a_failed_commit_is_counted_and_its_events_are_not(
    watch: Watch, watched: Store
) -> None:
    await append(watched, created("s"))
    before = await watched.figures()
    watch.fail_at = "COMMIT"
    outcomes = Outcomes()
    watched.submit(outcomes.batch("a", [updated("s", name="n")]))
    await watched.flush()
    assert outcomes.failed == ["a"]
    watch.fail_at = None
    figures = await watched.figures()
    assert (figures.events, figures.bytes) == (before.events, before.bytes)
    assert figures.failed_commits == before.failed_commits + 1


async def test_a_failed_commit_in_memory_is_counted() -> None:
    def full() -> None:
        raise StoreError("no")

    async with memory.open_store(before_commit=full) as store:
        store.submit(Outcomes().batch("a", [created("s")]))
        await store.flush()
        figures = await store.figures()
        assert (figures.failed_commits, figures.unsynced_commits, figures.events) == (1, 0, 0)


async def test_commits_of_deltas_alone_are_counted_as_unsynced(tmp_path: Path) -> None:
    async with sqlite.open_store(tmp_path / "log.db") as store:
        await append(store, created("s"))
        before = await store.figures()
        for _ in range(3):
            await append(store, delta())
        deltas = await store.figures()
        assert deltas.unsynced_commits == before.unsynced_commits + 3
        assert deltas.synced_commits == before.synced_commits
        await append(store, updated("s", name="n"))
        after = await store.figures()
        assert after.synced_commits == deltas.synced_commits + 1
        assert sum(after.sync_seconds.counts) == after.synced_commits
        assert after.sync_seconds.sum > deltas.sync_seconds.sum


async def test_pruning_is_counted_as_an_unsynced_commit(tmp_path: Path) -> None:
    async with sqlite.open_store(tmp_path / "log.db") as store:
        await append(store, created("s"))
        before = await store.figures()
        await store.prune_deltas(OldDeltas(TS, 1))
        assert (await store.figures()).unsynced_commits == before.unsynced_commits + 1


async def test_file_sizes_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with sqlite.open_store(path) as store:
        await append(store, created("s"))
        figures = await store.figures()
        sizes = [(await trio.Path(f"{path}{suffix}").stat()).st_size for suffix in ("", "-wal")]
    assert [figures.database_bytes, figures.wal_bytes] == sizes
    assert all(sizes)


async def test_checkpoints_are_counted(tmp_path: Path) -> None:
    async with sqlite.open_store(tmp_path / "log.db") as store:
        await append(store, created("s"))
        before = (await store.figures()).checkpoints
        await append(store, deleted("s"))  # deleted text must not stay in the WAL
        await store.flush()
        await store.prune_deltas(OldDeltas(TS, 1))  # answered after the checkpoint
        figures = await store.figures()
        assert figures.checkpoints > before
        assert figures.checkpoint_seconds > 0


async def test_counters_start_at_zero_after_reopening(tmp_path: Path) -> None:
    async with sqlite.open_store(tmp_path / "log.db") as store:
        await append(store, created("s"))
    async with sqlite.open_store(tmp_path / "log.db") as store:
        figures = await store.figures()
        assert (figures.events, figures.bytes, store.head) == (0, 0, 1)


def test_a_duration_is_counted_below_the_first_bound_that_it_does_not_exceed() -> None:
    write_stats = WriteStats()
    for seconds in (0.0, SYNC_BOUNDS[0], SYNC_BOUNDS[0] * 1.01, SYNC_BOUNDS[-1], 99.0):
        write_stats.count_synced(seconds)
    durations = write_stats.read(PendingBatches(0), database_bytes=0, wal_bytes=0).sync_seconds
    assert durations.counts == (2, 1, *[0] * (len(SYNC_BOUNDS) - 3), 1, 1)
    assert sum(durations.counts) == 5


async def test_reading_figures_repeatedly_does_not_disturb_commits(store: Store) -> None:
    async with trio.open_nursery() as nursery:

        async def look() -> None:
            for _ in range(50):
                await store.figures()

        nursery.start_soon(look)
        for number in range(50):
            await append(store, created(f"s{number}"))
    assert (await store.figures()).events == 50
