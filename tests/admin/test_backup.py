"""``nousd.admin.backup``: one consistent state of a log, complete or absent."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from nousd.admin import backup as backing_up
from nousd.admin.backup import backup
from nousd.admin.check.check import check
from nousd.errors import StoreError
from nousd.store.sqlite import store as sqlite
from tests.admin.conftest import check_unchanged
from tests.admin.logs import a_run, lines_in, state_of
from tests.store.helpers import append, created, whole_log


def test_a_backup_has_every_line_and_is_private(log: Path, tmp_path: Path, any_umask: int) -> None:
    target = tmp_path / "copy.db"
    with check_unchanged(log.parent):
        report = backup(log, target)
    assert lines_in(target) == lines_in(log)
    assert (report.events, report.head) == (355, 383)
    assert report.bytes == target.stat().st_size
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.db", "state"]


async def test_a_store_can_append_to_a_backup(log: Path, tmp_path: Path) -> None:
    backup(log, tmp_path / "copy.db")
    async with sqlite.open_store(tmp_path / "copy.db") as store:
        await append(store, *a_run("next"))
        assert len(await whole_log(store)) == 355 + 27
    assert check(tmp_path / "copy.db").errors == 0


def test_a_log_with_an_interrupted_migration_is_not_copied(
    unfinished: Path, tmp_path: Path
) -> None:
    with (
        check_unchanged(unfinished.parent),
        pytest.raises(StoreError, match="the next start undoes it"),
    ):
        backup(unfinished, tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()


_BACKUP = """
import pathlib, sys
from nousd.admin.backup import backup
backup(*map(pathlib.Path, sys.argv[1:]))
"""


@pytest.mark.slow
async def test_a_backup_of_a_busy_log_is_one_consistent_state(folder: Path, tmp_path: Path) -> None:
    """Each commit is a whole run, so a copy with part of a run would mix two states."""
    path = folder / "nousd.db"
    async with sqlite.open_store(path) as store, trio.open_nursery() as nursery:
        await append(store, created())
        heads = []

        async def write() -> None:
            number = 0
            while True:
                await append(store, *a_run(f"r{number}", text="x" * 5000))
                number += 1

        nursery.start_soon(write)
        for number in range(3):
            target = tmp_path / f"copy{number}.db"
            with trio.fail_after(60):
                await trio.run_process([sys.executable, "-c", _BACKUP, str(path), str(target)])
            report = check(target)
            assert [str(found) for found in report.findings] == []
            heads.append(report.head)
        nursery.cancel_scope.cancel()
    assert heads == sorted(heads)
    assert heads[0] < heads[-1], "nobody wrote meanwhile"
    assert all((head - 1) % 27 == 0 for head in heads)


# --- not at all --------------------------------------------------------------------------------


def test_an_existing_file_is_not_overwritten(log: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    target.write_text("precious")
    with pytest.raises(StoreError, match="exists; a backup overwrites nothing"):
        backup(log, target)
    assert target.read_text() == "precious"
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(StoreError, match="exists"):
        backup(log, tmp_path / "link")


def test_a_missing_target_folder_is_an_error(log: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be written: No such file or directory"):
        backup(log, tmp_path / "nowhere" / "copy.db")


def test_a_missing_or_foreign_log_is_not_copied(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no log"):
        backup(tmp_path / "nousd.db", tmp_path / "copy.db")
    (tmp_path / "nousd.db").write_bytes(b"x" * 500)
    with pytest.raises(StoreError, match="no SQLite database"):
        backup(tmp_path / "nousd.db", tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()


def test_a_damaged_log_is_not_copied(log: Path, tmp_path: Path) -> None:
    content = bytearray(log.read_bytes())
    content[4096 * 4 : 4096 * 5] = bytes(4096)
    log.write_bytes(content)
    before = state_of(log.parent)
    with pytest.raises(StoreError, match=r"the log is damaged.*see nousd check"):
        backup(log, tmp_path / "copy.db")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    assert state_of(log.parent) == before


_ON_A_SMALL_DISK = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
{_BACKUP}
"""


def test_a_write_failure_leaves_no_partial_copy(log: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ON_A_SMALL_DISK, str(log), str(tmp_path / "copy.db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "nousd.errors.StoreError: " in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_a_copy_that_cannot_be_flushed_is_removed(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_path: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(backing_up, "flush_to_disk", fail)
    with pytest.raises(StoreError, match="cannot be written: Input/output error"):
        backup(log, tmp_path / "copy.db")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
