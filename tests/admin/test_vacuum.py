"""``nousd vacuum`` joins all old deltas, shrinks the file, and leaves the log complete in any case."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from nousd.admin.vacuum import VacuumReport, vacuum
from nousd.errors import ConfigError, StoreError, StoreFull
from nousd.runtime_paths.locations import database_file
from nousd.runtime_paths.locks import lock_state_folder
from nousd.store.artifacts import PUT_STEP_BYTES
from nousd.store.records import StoredEvent
from nousd.store.sqlite import deleting
from nousd.store.sqlite import store as sqlite
from tests.store.faulty_disk import Fault, FaultyDisk, faulty_disk
from tests.store.helpers import TS, append, appended, created, deleted, source, whole_log
from tests.store.test_pruning import check_replay, message, texts_of, tool_call, turn_of

WORDS = [f"word {number} " for number in range(300)]
LATELY = "2126-01-01T00:00:00.000000Z"


async def fill(state_dir: Path) -> tuple[StoredEvent, ...]:
    happened = turn_of(message("m1", *WORDS), tool_call("m1.0", *WORDS[:100]), message("m2", "end"))
    async with sqlite.open_store(database_file(state_dir)) as store:
        return await append(store, *happened, ts=LATELY)


async def read(state_dir: Path) -> tuple[StoredEvent, ...]:
    async with sqlite.open_store(database_file(state_dir)) as store:
        await check_replay(store)
        return await whole_log(store)


def on_disk(state_dir: Path) -> int:
    path = database_file(state_dir)
    wal = path.with_name(path.name + "-wal")
    return path.stat().st_size + (wal.stat().st_size if wal.exists() else 0)


async def test_a_deletion_that_a_kill_broke_off_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleting, "ROWS_PER_STEP", 2)
    path = database_file(tmp_path)
    async with sqlite.open_store(path) as store:
        await append(store, created("s"), *(appended(f"e{n}", session_id="s") for n in range(9)))
        await append(store, deleted("s"))
        assert await store.list_unfinished_deletions() == ("s",)
    vacuum(tmp_path)
    async with sqlite.open_store(path) as store:
        assert await store.list_unfinished_deletions() == ()
        assert [event.type for event in await whole_log(store)] == ["session_deleted"]


async def test_deltas_of_any_age_are_joined_and_the_file_shrinks(tmp_path: Path) -> None:
    before = await fill(tmp_path)
    size = on_disk(tmp_path)
    report = vacuum(tmp_path)
    assert report == VacuumReport(
        bytes_before=size,
        bytes_after=on_disk(tmp_path),
        deltas_joined=299 + 99,
        artifacts_dropped=0,
    )
    assert report.bytes_after < size
    after = await read(tmp_path)
    assert texts_of(after) == texts_of(before)
    assert len(after) == len(before) - report.deltas_joined


async def test_a_second_vacuum_changes_nothing(tmp_path: Path) -> None:
    await fill(tmp_path)
    first = vacuum(tmp_path)
    assert vacuum(tmp_path) == VacuumReport(
        bytes_before=first.bytes_after,
        bytes_after=first.bytes_after,
        deltas_joined=0,
        artifacts_dropped=0,
    )


async def test_old_unused_artifacts_are_dropped_and_others_are_kept(
    tmp_path: Path,
) -> None:
    data = bytes(3 * PUT_STEP_BYTES)
    used, unused, young = (source(mark + data) for mark in (b"1", b"2", b"3"))
    async with sqlite.open_store(database_file(tmp_path)) as store:
        await store.put_artifact(used, "text/plain", now=TS)
        await store.put_artifact(unused, "text/plain", now=TS)
        await store.put_artifact(young, "text/plain", now=LATELY)
        await append(store, created(), appended("e1", artifact_id=used.artifact_id))
    report = vacuum(tmp_path)
    assert report.artifacts_dropped == 1
    assert report.bytes_before - report.bytes_after > len(data)
    async with sqlite.open_store(database_file(tmp_path)) as store:
        there = [await store.artifact(kept.artifact_id) for kept in (used, unused, young)]
    assert [None if kept is None else kept.data[:1] for kept in there] == [b"1", None, b"3"]


async def test_event_numbers_continue_after_a_vacuum(tmp_path: Path) -> None:
    head = (await fill(tmp_path))[-1].seq
    vacuum(tmp_path)
    async with sqlite.open_store(database_file(tmp_path)) as store:
        assert store.head == head
        (event,) = await append(store, *message("m9")[:1])
        assert event.seq == head + 1


async def test_changes_left_in_the_wal_by_a_kill_are_kept(tmp_path: Path) -> None:
    before = await fill(tmp_path)
    path = database_file(tmp_path)
    with closing(apsw.Connection(str(path))) as connection:
        connection.pragma("journal_mode", "WAL")
        connection.execute("UPDATE log_state SET next_seq = next_seq + 1000")
        wal = path.with_name(path.name + "-wal").read_bytes()
    assert wal
    path.with_name(path.name + "-wal").write_bytes(wal)
    vacuum(tmp_path)
    async with sqlite.open_store(path) as store:
        (event,) = await append(store, *message("m9")[:1])
        assert event.seq == before[-1].seq + 1001


async def test_a_log_with_invalid_text_cannot_be_vacuumed(tmp_path: Path) -> None:
    await fill(tmp_path)
    path = database_file(tmp_path)
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("UPDATE events SET type = CAST(X'6d65B3' AS TEXT) WHERE seq = 4")
    with pytest.raises(StoreError, match="cannot be vacuumed: 'utf-8' codec"):
        vacuum(tmp_path)


async def test_the_log_of_a_running_daemon_is_refused(tmp_path: Path) -> None:
    before = await fill(tmp_path)
    with (
        lock_state_folder(tmp_path),
        pytest.raises(ConfigError, match=r"another daemon \(pid \d+\)"),
    ):
        vacuum(tmp_path)
    assert await read(tmp_path) == before


def test_a_folder_without_a_log_is_refused_and_unchanged(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"there is no log in {tmp_path}"):
        vacuum(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="there is no log"):
        vacuum(tmp_path / "nowhere")


# --- disk failures -------------------------------------------------------------------------------


@pytest.fixture
def original(tmp_path: Path) -> Path:
    folder = tmp_path / "original"
    folder.mkdir()
    return folder


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    with faulty_disk() as disk:
        yield disk


async def try_vacuum(disk: FaultyDisk, original: Path, copy: Path) -> StoreError | None:
    """Vacuum a copy, check that a complete log is left, and return the failure if there is one."""
    shutil.copytree(original, copy)
    failure = None
    try:
        vacuum(copy, connect=disk.connect)
    except StoreError as error:
        failure = error
    disk.mend()
    before, after = await read(original), await read(copy)
    assert texts_of(after) == texts_of(before)
    assert after[-1] == before[-1]
    return failure


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault.FULL, Fault.TORN_FULL, Fault.ERROR])
async def test_the_log_is_complete_wherever_the_disk_fails(
    fault: Fault, disk: FaultyDisk, original: Path, tmp_path: Path
) -> None:
    await fill(original)
    disk.count()
    assert await try_vacuum(disk, original, tmp_path / "good") is None
    failures = []
    # The last ones are syncs, which take no space.
    for at in range(0, disk.operations - 5, disk.operations // 5):
        disk.fail(fault, at=at)
        failures.append(await try_vacuum(disk, original, tmp_path / str(at)))
    assert sum(failure is not None for failure in failures) > 2
    for failure in failures:
        assert failure is None or isinstance(failure, StoreFull) is fault.is_full


async def test_the_error_of_a_full_disk_says_how_much_space_is_needed(
    disk: FaultyDisk, original: Path, tmp_path: Path
) -> None:
    await fill(original)
    disk.fail(Fault.FULL, at=30)
    failure = await try_vacuum(disk, original, tmp_path / "copy")
    assert isinstance(failure, StoreFull)
    assert "up to 1 MiB" in str(failure)
    assert str(tmp_path / "copy") in str(failure)
    assert "TMPDIR" in str(failure)
