"""Artifacts in chunks, and whole ones of earlier versions: checked, salvaged, copied."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest
import trio

from nousd.admin.backup import backup
from nousd.admin.check.check import check
from nousd.admin.salvage.salvage import salvage
from nousd.store.artifacts import CHUNK_BYTES
from nousd.store.sqlite import store as sqlite
from nousd.store.sqlite.migrations import MIGRATIONS, migrate
from tests.store.helpers import TS, Source, append, appended, created, source

LARGE = source(b"".join(b"%07d " % number for number in range(3 * CHUNK_BYTES // 8 + 1)))
SIZES = [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES, 2 * CHUNK_BYTES + 7]


@pytest.fixture
def log(folder: Path) -> Path:
    """A log with a large artifact that a session uses, and an unused one."""
    trio.run(write_log, folder / "nousd.db")
    return folder / "nousd.db"


async def write_log(path: Path) -> None:
    async with sqlite.open_store(path) as store:
        await store.put_artifact(LARGE, "text/plain", now=TS)
        await store.put_artifact(source(b"unused"), "text/plain", now=TS)
        await append(store, created("s1"), appended("e1", artifact_id=LARGE.artifact_id))


def change(log: Path, statement: str, *values: str) -> None:
    connection = apsw.Connection(str(log))
    connection.execute(statement, values)
    assert connection.changes()
    connection.close()


def errors(path: Path) -> list[str]:
    return [str(finding) for finding in check(path).findings if finding.severity == "error"]


async def has_artifact(path: Path, wanted: Source) -> bool:
    """Return True if the log has the complete artifact."""
    async with sqlite.open_store(path) as store:
        found = await store.artifact(wanted.artifact_id)
    return found is not None and found.data == wanted.data


def test_a_log_with_artifacts_in_chunks_has_no_errors(log: Path) -> None:
    assert errors(log) == []


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("UPDATE artifact_chunks SET data = zeroblob(length(data)) WHERE idx = 1", "other bytes"),
        ("DELETE FROM artifact_chunks WHERE idx = 2", "another size"),
        ("UPDATE artifact_chunks SET idx = 9 WHERE idx = 0", "other bytes"),
    ],
)
def test_a_wrong_or_missing_chunk_is_an_error(log: Path, statement: str, found: str) -> None:
    change(log, statement)
    assert any(LARGE.artifact_id in error and found in error for error in errors(log))


async def test_a_backup_contains_the_artifacts(log: Path, tmp_path: Path) -> None:
    backup(log, tmp_path / "copy.db")
    assert errors(tmp_path / "copy.db") == []
    assert await has_artifact(tmp_path / "copy.db", LARGE)


async def test_a_salvage_keeps_only_artifacts_in_use(log: Path, tmp_path: Path) -> None:
    report = salvage(log, tmp_path / "out")
    saved = tmp_path / "out" / "nousd.db"
    assert report.errors == 0
    assert errors(saved) == []
    assert await has_artifact(saved, LARGE)
    assert not await has_artifact(saved, source(b"unused"))


async def test_an_artifact_whose_row_is_lost_is_restored_from_its_chunks(
    log: Path, tmp_path: Path
) -> None:
    change(log, "DELETE FROM artifacts WHERE artifact_id = ?", LARGE.artifact_id)
    salvage(log, tmp_path / "out")
    saved = tmp_path / "out" / "nousd.db"
    assert errors(saved) == []
    assert await has_artifact(saved, LARGE)


async def test_an_artifact_that_lost_a_chunk_is_reported_as_lost(log: Path, tmp_path: Path) -> None:
    change(log, "DELETE FROM artifact_chunks WHERE idx = 1")
    report = salvage(log, tmp_path / "out")
    assert any(
        f.where == f"artifact {LARGE.artifact_id} of s1" and f.what == "is lost"
        for f in report.findings
    )
    saved = tmp_path / "out" / "nousd.db"
    assert not await has_artifact(saved, LARGE)
    connection = apsw.Connection(str(saved))
    assert connection.execute("SELECT count(*) FROM artifact_chunks").get == 0
    connection.close()


def test_chunks_of_an_unreadable_database_are_read_from_its_pages(
    log: Path, tmp_path: Path
) -> None:
    content = log.read_bytes()
    log.write_bytes(bytes(16) + content[16:])
    report = salvage(log, tmp_path / "out")
    assert report.from_pages == 2
    assert trio.run(has_artifact, tmp_path / "out" / "nousd.db", LARGE)


# --- logs of earlier versions --------------------------------------------------------------------


@pytest.fixture
def earlier(folder: Path) -> Path:
    """A log of schema 2, with artifacts of all sizes that a session uses."""
    path = folder / "nousd.db"
    connection = apsw.Connection(str(path))
    migrate(connection, MIGRATIONS[:2])
    for size in SIZES:
        kept = source(LARGE.data[:size])
        connection.execute(
            "INSERT INTO artifacts (artifact_id, media_type, data) VALUES (?, 'text/plain', ?)",
            (kept.artifact_id, kept.data),
        )
    connection.close()
    return path


async def test_undivided_artifacts_are_in_chunks_after_the_migration(
    earlier: Path,
) -> None:
    async with sqlite.open_store(earlier) as store:
        for size in SIZES:
            kept = source(LARGE.data[:size])
            info = await store.artifact_info(kept.artifact_id)
            assert info is not None
            assert (info.media_type, info.size_bytes) == ("text/plain", size)
            assert await store.artifact_range(kept.artifact_id, 0, size) == kept.data
    assert errors(earlier) == []
    connection = apsw.Connection(str(earlier))
    sizes = "SELECT min(length(data)), max(length(data)) FROM artifact_chunks"
    assert connection.execute(sizes).get == (1, CHUNK_BYTES)
    connection.close()


def test_undivided_artifacts_of_an_earlier_version_are_checked(earlier: Path) -> None:
    assert errors(earlier) == []
    wrong = source(LARGE.data[:1]).artifact_id
    change(earlier, "UPDATE artifacts SET data = x'00' WHERE artifact_id = ?", wrong)
    assert errors(earlier) == [f"error: artifact {wrong} has other bytes than its id says"]
