"""The disk reserve: allocated, private, released and restored, and what it is used for."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import apsw
import pytest

from nousd.errors import StoreError, StoreFull, WriteFailed
from nousd.store.interface import Store
from nousd.store.sqlite import store as sqlite
from nousd.store.sqlite.reserve import Reserve
from tests.store.helpers import Outcomes, Watch, append, created, delta, run_ended, whole_log

SIZE = 1024 * 1024


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.reserve"


def allocated(path: Path) -> int:
    return path.stat().st_blocks * 512


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_reserve_has_its_blocks_and_is_private(path: Path) -> None:
    assert Reserve(path, SIZE).place()
    assert allocated(path) >= SIZE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_given_back_can_be_taken_again(path: Path) -> None:
    reserve = Reserve(path, SIZE)
    reserve.place()
    reserve.give_back()
    assert not reserve.in_place
    assert allocated(path) == 0
    assert reserve.place()
    assert allocated(path) >= SIZE


def test_a_copy_without_blocks_gets_them(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(SIZE)
    assert allocated(path) == 0
    assert Reserve(path, SIZE).place()
    assert allocated(path) >= SIZE


def test_where_blocks_cannot_be_asked_for_they_are_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_supported(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "")

    monkeypatch.setattr(os, "posix_fallocate", not_supported)
    assert Reserve(path, SIZE).place()
    assert allocated(path) >= SIZE
    assert path.stat().st_size == SIZE


def test_a_full_disk_has_no_reserve_and_the_error_says_why(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", no_space)
    reserve = Reserve(path, SIZE)
    assert not reserve.place()
    assert allocated(path) == 0
    with pytest.raises(StoreFull, match="No space left"):
        reserve.require()
    monkeypatch.undo()
    reserve.require()


def test_somebody_elses_file_is_not_written_through_a_link(path: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    path.symlink_to(tmp_path / "precious")
    reserve = Reserve(path, SIZE)
    assert not reserve.place()
    reserve.give_back()
    assert (tmp_path / "precious").read_bytes() == b"precious"


# --- what the writer does with it ----------------------------------------------------------------


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A filesystem that gives no more blocks, until ``undo``; SQLite's own writes still work."""
    monkeypatch.setattr(os, "posix_fallocate", no_space)
    return monkeypatch


async def test_without_a_reserve_only_what_is_owed_is_written(
    tmp_path: Path, full: pytest.MonkeyPatch
) -> None:
    outcomes = Outcomes()
    async with sqlite.open_store(tmp_path / "log.db") as store:
        store.submit(outcomes.batch("new", [created()]))
        store.submit(outcomes.batch("owed", [run_ended()], owed=True))
        store.submit(outcomes.batch("new too", [delta()]))
        await store.flush()
        assert outcomes.names == ["new", "owed", "new too"]
        assert outcomes.failed == ["new", "new too"]
        assert [event.type for event in await whole_log(store)] == ["agent_end"]
        full.undo()
        await append(store, created())


async def test_what_is_owed_is_written_behind_a_failure(watched: Store, watch: Watch) -> None:
    outcomes = Outcomes()

    def submit_more() -> None:
        watched.submit(outcomes.batch("after", [delta()]))

    watch.fail_at, watch.fail_times = "INSERT", 1
    watch.error_code = apsw.SQLITE_IOERR_WRITE
    watch.hold()
    watched.submit(outcomes.batch("failing", [created()], then=submit_more))
    await watch.wait_held()
    watched.submit(outcomes.batch("stale", [delta()]))
    watched.submit(outcomes.batch("owed", [run_ended()], owed=True))
    watch.release()
    await watched.flush()
    await watched.flush()
    assert outcomes.names == ["failing", "stale", "owed", "after"]
    assert outcomes.failed == ["failing", "stale"]


async def test_a_full_disk_gives_the_reserve_back_and_tries_what_is_owed_again(
    watched: Store, watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = Outcomes()
    reserve = tmp_path / "log.reserve"
    assert allocated(reserve) > 0
    monkeypatch.setattr(os, "posix_fallocate", no_space)
    watch.fail_at, watch.fail_times = "INSERT", 1
    watched.submit(outcomes.batch("owed", [run_ended()], owed=True))
    await watched.flush()
    assert outcomes.failed == []
    assert allocated(reserve) == 0
    with pytest.raises(StoreFull):
        await append(watched, created())
    monkeypatch.undo()
    await append(watched, created())
    assert allocated(reserve) > 0


async def test_an_error_that_is_no_want_of_space_leaves_the_reserve_in_place(
    watched: Store, watch: Watch, tmp_path: Path
) -> None:
    watch.fail_at, watch.error_code = "INSERT", apsw.SQLITE_IOERR_WRITE
    with pytest.raises(WriteFailed) as refused:
        await append(watched, created())
    assert not isinstance(refused.value, StoreFull)
    assert allocated(tmp_path / "log.reserve") > 0
    watch.fail_at = None
    await append(watched, created())


async def test_a_store_that_cannot_be_opened_for_want_of_space_is_full(
    tmp_path: Path, full: pytest.MonkeyPatch
) -> None:
    watch = Watch()
    watch.fail_at = "SELECT coalesce"
    with pytest.raises(StoreFull, match="cannot be opened"):
        async with sqlite.open_store(tmp_path / "log.db", connect=watch.connect):
            pass
    watch.fail_times = 1  # ... and the reserve made room for the second try
    async with sqlite.open_store(tmp_path / "log.db", connect=watch.connect) as store:
        with pytest.raises(StoreError):
            await append(store, created())
