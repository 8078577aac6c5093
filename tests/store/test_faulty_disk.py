"""A disk that fails at any step: the reported outcome of a commit is true, then and later.

Each test plays the same few commits. Every commit that was reported is in the log completely, every
refused one is absent, and one that is in doubt is there completely or not at all: in the same process,
in the next one after a kill, and in the next one after a power cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw
import pytest

from nousd.errors import StoreError, StoreInDoubt, WriteFailed
from nousd.store.artifacts import Artifact
from nousd.store.interface import Store
from nousd.store.records import StoredEvent
from nousd.store.sqlite import commits as _commits
from nousd.store.sqlite import store as sqlite
from nousd.store.sqlite.writer import WAKE
from nousd.wire import events
from nousd.wire.events import DELTA_EVENTS
from tests.store.faulty_disk import Fault, FaultyDisk, faulty_disk
from tests.store.helpers import (
    append,
    appended,
    created,
    deleted,
    delta,
    run_ended,
    run_started,
    whole_log,
)

COMMITS: list[tuple[Sequence[events.Event], Sequence[Artifact]]] = [
    ((created(),), ()),
    ((run_started(), appended("e1")), ()),
    ((delta("one"), delta("two")), ()),
    ((delta("x" * 9000),), ()),
    (
        (appended("e2", "e1", text="y" * 30_000),),
        (Artifact("sha256:00", "text/plain", b"z" * 9000),),
    ),
    ((delta("three"),), ()),
    ((run_ended(),), ()),
]


class ReportedOutcomes:
    """The reported outcome of each commit, by its submitter."""

    def __init__(self) -> None:
        self.stored: list[tuple[StoredEvent, ...]] = []
        self.in_doubt: list[list[str]] = []
        self.refused = 0

    async def play(self, store: Store) -> None:
        for happened, artifacts in COMMITS:
            try:
                self.stored.append(await append(store, *happened, artifacts=artifacts))
            except StoreInDoubt:
                self.in_doubt.append([type(event).__name__ for event in happened])
            except StoreError:
                self.refused += 1

    @property
    def newest(self) -> int:
        return max((event.seq for stored in self.stored for event in stored), default=0)

    async def check(self, store: Store, *, was_power_cut: bool = False) -> None:
        """Assert that the log matches the reported outcomes and can be appended to."""
        log = list(await whole_log(store))
        assert [event.seq for event in log] == sorted({event.seq for event in log})
        for stored in self.stored:
            is_durable = any(event.type not in DELTA_EVENTS for event in stored)
            if is_durable or not was_power_cut or stored[0] in log:
                for event in stored:
                    log.remove(event)
        surplus = [event.type for event in log]
        for doubtful in self._doubtful_types():
            if surplus[: len(doubtful)] == doubtful:
                del surplus[: len(doubtful)]
        assert surplus == []
        assert (await self._append_at_last(store)).seq > self.newest

    @staticmethod
    async def _append_at_last(store: Store) -> StoredEvent:
        """The writer's open file may report once more a sync that failed before the disk was mended."""
        with suppress(StoreError):
            return (await append(store, delta("after")))[0]
        return (await append(store, delta("after")))[0]

    def _doubtful_types(self) -> Iterator[list[str]]:
        names = {type_.__name__: name for type_, name in events.EVENT_TYPES.items()}
        for doubtful in self.in_doubt:
            yield [names[name] for name in doubtful]


async def play_on(
    disk: FaultyDisk, folder: Path, fault: Fault, at: int, *, once: bool
) -> ReportedOutcomes:
    """Play the commits with a fault; check the log in this process, after a kill and a power cut."""
    reported = ReportedOutcomes()
    path = folder / "log.db"
    async with sqlite.open_store(path, connect=disk.connect) as store:
        disk.fail(fault, at=at, once=once)
        await reported.play(store)
        killed = disk.survive_kill(path, folder / "killed")
        no_power = disk.after_power_cut(path, folder / "no-power")
        disk.mend()
        await reported.check(store)
    for copy, was_power_cut in ((killed, False), (no_power, True)):
        async with sqlite.open_store(copy, connect=disk.connect) as store:
            await reported.check(store, was_power_cut=was_power_cut)
    return reported


async def steps_of_a_play(path: Path) -> int:
    with faulty_disk() as disk:
        async with sqlite.open_store(path, connect=disk.connect) as store:
            disk.count()
            await ReportedOutcomes().play(store)
            return disk.operations


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("quick", [256, 4], ids=["one thread", "two threads"])
@pytest.mark.parametrize("once", [True, False], ids=["once", "until mended"])
@pytest.mark.parametrize("fault", Fault, ids=[fault.name for fault in Fault])
async def test_the_reported_outcome_of_a_commit_is_true_wherever_the_disk_fails(
    tmp_path: Path, fault: Fault, once: bool, quick: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_commits, "NUMBERS_PER_BLOCK", 3)
    monkeypatch.setattr(_commits, "WAL_PAGES", 20)
    monkeypatch.setattr(_commits, "QUICK_PAGES", quick)
    monkeypatch.setattr(sqlite, "RESERVE_BYTES", 64 * 1024)
    steps = await steps_of_a_play(tmp_path / "counted.db")
    assert steps > 40
    failed = 0
    for at in range(0, steps + 3, 5 if once else 11):
        with faulty_disk(seed=at) as disk:
            with TemporaryDirectory(dir=tmp_path) as folder:
                reported = await play_on(disk, Path(folder), fault, at, once=once)
            failed += reported.refused + len(reported.in_doubt)
    assert failed


async def steps_of_a_commit(path: Path) -> int:
    """Return how many operations of the disk a second commit takes, the last of which is its sync."""
    with faulty_disk() as disk:
        async with sqlite.open_store(path, connect=disk.connect) as store:
            await append(store, created())
            disk.count()
            await append(store, run_started())
            return disk.operations


@pytest.mark.behaviour("unknown_outcomes_are_settled")
async def test_a_commit_in_doubt_that_a_restart_shows_survives_power_cuts(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.db"
    steps = await steps_of_a_commit(tmp_path / "counted.db")
    shown = []
    with faulty_disk() as disk:
        async with sqlite.open_store(path, connect=disk.connect) as store:
            await append(store, created())
            # From its sync on, so that the commit can be neither confirmed nor undone.
            disk.fail(Fault.ERROR, at=steps - 1)
            with pytest.raises(StoreInDoubt):
                await append(store, run_started())
            killed = disk.survive_kill(path, tmp_path / "killed")
            disk.mend()
        async with sqlite.open_store(killed, connect=disk.connect) as store:
            shown = [event.type for event in await whole_log(store)]
            cuts = [disk.after_power_cut(killed, tmp_path / str(number)) for number in range(10)]
    for cut in cuts:
        async with sqlite.open_store(cut) as store:
            assert [event.type for event in await whole_log(store)] == shown
    assert shown == ["session_created", "agent_start"]


async def test_a_commit_with_one_failed_sync_is_undone_before_it_is_answered(
    tmp_path: Path,
) -> None:
    with faulty_disk() as disk:
        async with sqlite.open_store(tmp_path / "log.db", connect=disk.connect) as store:
            await append(store, created())
            disk.fail_syncs(count=1)
            with pytest.raises(WriteFailed) as refused:
                await append(store, run_started())
            assert not isinstance(refused.value, StoreInDoubt)
            killed = disk.survive_kill(tmp_path / "log.db", tmp_path / "killed")
        async with sqlite.open_store(killed) as store:
            assert [event.type for event in await whole_log(store)] == ["session_created"]


@pytest.mark.parametrize("quick", [256, 2], ids=["between commits", "beside them"])
async def test_a_failed_checkpoint_fails_no_commit_and_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: int
) -> None:
    monkeypatch.setattr(_commits, "WAL_PAGES", 10)
    monkeypatch.setattr(_commits, "QUICK_PAGES", quick)
    path = tmp_path / "log.db"
    with faulty_disk() as disk:
        async with sqlite.open_store(path, connect=disk.connect) as store:
            await append(store, created())
            disk.fail(Fault.FULL, only=path)
            for number in range(20):
                await append(store, appended(f"e{number}", text="x" * 5000))
            left_behind = path.stat().st_size
            disk.mend()
            for number in range(20, 60):
                await append(store, appended(f"e{number}", text="x" * 5000))
            assert path.stat().st_size > left_behind + 20 * 5000


async def append_entries(store: Store, numbers: range) -> list[StoredEvent]:
    """Append entries; return the events that were acknowledged."""
    stored: list[StoredEvent] = []
    for number in numbers:
        with suppress(StoreError):
            stored += await append(store, appended(f"e{number}", text="x" * 5000))
    return stored


@pytest.mark.parametrize("count", [1, 2])
async def test_pages_that_were_copied_and_not_synced_survive_the_failure_of_a_later_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(_commits, "WAL_PAGES", 60)
    path = tmp_path / "log.db"
    with faulty_disk() as disk:
        async with sqlite.open_store(path, connect=disk.connect) as store:
            stored = list(await append(store, created()))
            stored += await append_entries(store, range(4))
            with closing(apsw.Connection(str(path))) as reader:
                # It holds back the copying, which ends without a sync of the database.
                reader.execute("BEGIN; SELECT count(*) FROM events").fetchall()
                stored += await append_entries(store, range(4, 12))
            disk.fail_syncs(count, only=path)
            stored += await append_entries(store, range(12, 30))
            cut = disk.after_power_cut(path, tmp_path / "no-power")
        async with sqlite.open_store(cut) as store:
            assert list(await whole_log(store)) == stored


async def test_a_failed_sync_is_followed_by_no_checkpoint_that_trusts_the_count_of_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_commits, "WAL_PAGES", 60)
    path = tmp_path / "log.db"
    with faulty_disk() as disk:
        async with sqlite.open_store(path, connect=disk.connect) as store:
            stored = list(await append(store, created(), created("s2")))
            stored += await append_entries(store, range(4))
            with closing(apsw.Connection(str(path))) as reader:
                reader.execute("BEGIN; SELECT count(*) FROM events").fetchall()
                stored += await append_entries(store, range(4, 12))
                # After a deletion the WAL is to be emptied, which the reader prevents.
                await append(store, deleted("s2"))
                await store.drop_rows("s2")
            disk.fail_syncs(1, only=path)
            assert isinstance(store, sqlite.SqliteStore)
            for _ in range(3):
                store._writer.jobs.put(WAKE)
            await store._do(lambda _: None)
            cut = disk.after_power_cut(path, tmp_path / "no-power")
        async with sqlite.open_store(cut) as store:
            log = await whole_log(store)
            assert [event for event in log if event.session_id == "s1"] == [
                event for event in stored if event.session_id == "s1"
            ]
