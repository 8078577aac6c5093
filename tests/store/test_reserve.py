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


def test_a_reserve_is_allocated_and_private(path: Path) -> None:
    assert Reserve(path, SIZE).place()
    assert allocated(path) >= SIZE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_released_reserve_can_be_placed_again(path: Path) -> None:
    reserve = Reserve(path, SIZE)
    reserve.place()
    reserve.give_back()
    assert not reserve.in_place
    assert allocated(path) == 0
    assert reserve.place()
    assert allocated(path) >= SIZE


def test_a_sparse_reserve_gets_its_blocks(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(SIZE)
    assert allocated(path) == 0
    assert Reserve(path, SIZE).place()
    assert allocated(path) >= SIZE


def test_without_fallocate_the_blocks_are_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_supported(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "")

    monkeypatch.setattr(os, "posix_fallocate", not_supported)
    assert Reserve(path, SIZE).place()
    assert allocated(path) >= SIZE
    assert path.stat().st_size == SIZE


def test_a_full_disk_has_no_reserve_and_the_error_gives_the_reason(
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


def test_a_symbolic_link_in_place_of_the_reserve_is_not_followed(
    path: Path, tmp_path: Path
) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    path.symlink_to(tmp_path / "precious")
    reserve = Reserve(path, SIZE)
    assert not reserve.place()
    reserve.give_back()
    assert (tmp_path / "precious").read_bytes() == b"precious"


# --- use by the writer ---------------------------------------------------------------------------


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A filesystem that allocates no more blocks until ``undo``; SQLite's own writes still work."""
    monkeypatch.setattr(os, "posix_fallocate", no_space)
    return monkeypatch


async def test_without_a_reserve_only_closing_batches_are_written(
    tmp_path: Path, full: pytest.MonkeyPatch
) -> None:
    outcomes = Outcomes()
    async with sqlite.open_store(tmp_path / "log.db") as store:
        store.submit(outcomes.batch("new", [created()]))
        store.submit(outcomes.batch("closing", [run_ended()], closes_run=True))
        store.submit(outcomes.batch("new too", [delta()]))
        await store.flush()
        assert outcomes.names == ["new", "closing", "new too"]
        assert outcomes.failed == ["new", "new too"]
        assert [event.type for event in await whole_log(store)] == ["agent_end"]
        full.undo()
        await append(store, created())


async def test_a_closing_batch_is_written_after_a_failure(watched: Store, watch: Watch) -> None:
    outcomes = Outcomes()

    def submit_more() -> None:
        watched.submit(outcomes.batch("after", [delta()]))

    watch.fail_at, watch.fail_times = "INSERT", 1
    watch.error_code = apsw.SQLITE_IOERR_WRITE
    watch.hold()
    watched.submit(outcomes.batch("failing", [created()], then=submit_more))
    await watch.wait_held()
    watched.submit(outcomes.batch("stale", [delta()]))
    watched.submit(outcomes.batch("closing", [run_ended()], closes_run=True))
    watch.release()
    await watched.flush()
    await watched.flush()
    assert outcomes.names == ["failing", "stale", "closing", "after"]
    assert outcomes.failed == ["failing", "stale"]


async def test_a_full_disk_releases_the_reserve_and_retries_the_closing_batch(
    watched: Store, watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = Outcomes()
    reserve = tmp_path / "log.reserve"
    assert allocated(reserve) > 0
    monkeypatch.setattr(os, "posix_fallocate", no_space)
    watch.fail_at, watch.fail_times = "INSERT", 1
    watched.submit(outcomes.batch("closing", [run_ended()], closes_run=True))
    await watched.flush()
    assert outcomes.failed == []
    assert allocated(reserve) == 0
    with pytest.raises(StoreFull):
        await append(watched, created())
    monkeypatch.undo()
    await append(watched, created())
    assert allocated(reserve) > 0


async def test_an_io_error_leaves_the_reserve_in_place(
    watched: Store, watch: Watch, tmp_path: Path
) -> None:
    watch.fail_at, watch.error_code = "INSERT", apsw.SQLITE_IOERR_WRITE
    with pytest.raises(WriteFailed) as refused:
        await append(watched, created())
    assert not isinstance(refused.value, StoreFull)
    assert allocated(tmp_path / "log.reserve") > 0
    watch.fail_at = None
    await append(watched, created())


async def test_opening_on_a_full_disk_raises_store_full_unless_the_reserve_suffices(
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
