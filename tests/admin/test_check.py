"""``nousd.admin.check.check`` finds every kind of damage and changes no byte."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import apsw
import pytest
import trio

from nousd.admin.check.check import check
from nousd.admin.check.findings import FINDINGS_MAX
from nousd.admin.check.refold import Refold
from nousd.store.sqlite import deleting
from nousd.store.sqlite import store as sqlite
from nousd.store.sqlite.migrations import MIGRATIONS
from tests.admin.conftest import Change, check_unchanged
from tests.admin.logs import a_run, artifact, write_log, write_recorded_log
from tests.store.helpers import append, appended, created, deleted, delta, run_started

OPEN_RUN = "note: run open has no end: it is at work, or will be closed at the next start"


def findings_of(path: Path) -> list[str]:
    with check_unchanged(path.parent):
        report = check(path)
    assert report.errors == sum(found.severity == "error" for found in report.findings)
    return [str(found) for found in report.findings]


def errors(path: Path) -> list[str]:
    return [line.removeprefix("error: ") for line in findings_of(path) if line.startswith("error")]


# --- intact logs -------------------------------------------------------------------------------


def test_a_deletion_that_a_kill_broke_off_is_no_damage(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleting, "ROWS_PER_STEP", 3)
    path = folder / "nousd.db"
    trio.run(write_log, path)
    note = "note: session gone is being deleted: the next start drops what is left of it"
    assert findings_of(path) == [note, OPEN_RUN]


def test_an_intact_log_has_only_the_note_of_its_open_run(log: Path) -> None:
    assert findings_of(log) == [OPEN_RUN]
    report = check(log)
    assert (report.events, report.head) == (355, 383)
    assert report.summary.endswith(
        f"355 events up to evt-383, {log.stat().st_size} bytes: no damage"
    )


def test_an_intact_log_of_schema_version_1_has_no_errors(folder: Path) -> None:
    write_recorded_log(folder / "nousd.db")
    assert errors(folder / "nousd.db") == []


async def check_in_another_process(folder: Path) -> list[str]:
    """Return the output of ``nousd check`` in a process that shares no memory with this one."""
    with check_unchanged(folder), trio.fail_after(60):
        done = await trio.run_process(
            [sys.executable, "-m", "nousd", "check", "--state-dir", str(folder)],
            capture_stdout=True,
        )
    return done.stdout.decode().splitlines()


async def test_a_log_in_use_is_checked_without_changes(folder: Path) -> None:
    async with sqlite.open_store(folder / "nousd.db") as store:
        await append(store, created(), *a_run("r1"))
        [line] = await check_in_another_process(folder)
        assert ": 28 events up to evt-28, " in line
        await append(store, *a_run("r2"))
        [line] = await check_in_another_process(folder)
        assert ": 55 events up to evt-55, " in line
        assert line.endswith(": no damage")


_KILLED = """
import os, sys, pathlib, trio
from nousd.store.sqlite import store as sqlite
from tests.admin.logs import a_run
from tests.store.helpers import append, created
async def main():
    async with sqlite.open_store(pathlib.Path(sys.argv[1])) as store:
        await append(store, created(), *a_run("r1"))
        os._exit(9)
trio.run(main)
"""


@pytest.fixture
def killed(folder: Path) -> Path:
    """The log of a process that was killed, with its writes in the WAL."""
    path = folder / "nousd.db"
    done = subprocess.run([sys.executable, "-c", _KILLED, str(path)], timeout=60, check=False)
    assert done.returncode == 9
    assert path.with_name("nousd.db-wal").stat().st_size > 0
    return path


@pytest.mark.slow
@pytest.mark.parametrize("removed", [(), ("-shm",)], ids=["all files", "without the index"])
def test_the_log_of_a_killed_process_is_read_with_its_wal(
    killed: Path, removed: tuple[str, ...]
) -> None:
    for suffix in removed:
        killed.with_name(killed.name + suffix).unlink()
    assert errors(killed) == []
    assert check(killed).events == 28


def test_checking_a_copy_creates_no_side_files(log: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone" / "nousd.db"
    alone.parent.mkdir()
    shutil.copy(log, alone)
    assert errors(alone) == []
    assert [file.name for file in alone.parent.iterdir()] == ["nousd.db"]


def test_a_log_in_a_read_only_folder_is_checked(log: Path) -> None:
    log.parent.chmod(0o500)
    try:
        assert errors(log) == []
    finally:
        log.parent.chmod(0o700)


# --- files that are not a log ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (None, "is not there"),
        (b"", "is empty"),
        (b"#!/bin/sh\n" * 20, "is no SQLite database: it begins with b'#!/bin/sh"),
        (b"SQLite format 3\0" + bytes(4080), "is a database of another program"),
        (b"SQLite format 3\0", "is no SQLite database"),
    ],
    ids=["missing", "empty", "script", "other program", "cut"],
)
def test_a_file_that_is_not_a_log_is_reported_as_such(
    folder: Path, content: bytes | None, found: str
) -> None:
    path = folder / "nousd.db"
    if content is not None:
        path.write_bytes(content)
    [line] = errors(path)
    assert line.startswith(f"{path} {found}")
    assert ("--salvage" in check(path).summary) == bool(content), "there is nothing to save"


def test_a_log_with_an_interrupted_migration_is_reported(unfinished: Path) -> None:
    with check_unchanged(unfinished.parent):
        report = check(unfinished)
    assert [finding.where for finding in report.findings] == [str(unfinished)]
    assert "has a rollback journal" in report.findings[0].what


def test_a_log_of_a_newer_version_is_reported(log: Path, change: Change) -> None:
    with apsw.Connection(str(log)) as connection:
        connection.pragma("user_version", 99)
    connection.close()
    [line] = errors(log)
    assert f"schema version 99, this nousd knows up to {len(MIGRATIONS)}" in line


def test_a_log_without_read_permission_is_reported(folder: Path) -> None:
    path = folder / "nousd.db"
    path.write_bytes(b"x" * 200)
    path.chmod(0)
    found = "is no SQLite database" if os.geteuid() == 0 else "cannot be read: Permission denied"
    report = check(path)
    assert [found in str(finding) for finding in report.findings] == [True]


def test_a_truncated_log_is_reported_as_damaged(log: Path) -> None:
    os.truncate(log, log.stat().st_size // 2)
    assert any("malformed" in line or "damaged" in line for line in errors(log))


def test_a_zeroed_page_is_found_and_rows_are_not_compared_with_incomplete_events(
    log: Path,
) -> None:
    content = bytearray(log.read_bytes())
    for start in range(0, len(content), 4096):
        if b'"id":"evt-120"' in content[start : start + 4096]:
            content[start : start + 4096] = bytes(4096)
    log.write_bytes(content)
    found = errors(log)
    assert any(line.startswith("the database is damaged") for line in found)
    assert any(line.startswith("the log cannot be read") for line in found)
    assert not any("differs" in line or "no row" in line for line in found)


# --- the events --------------------------------------------------------------------------------


OF_VERSION_2 = """{"v":"2","id":"evt-4","type":"turn_start","payload":\
{"session_id":"gone","run_id":"g","turn_id":"1"},"ts":"x"}
"""


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("nothing", "is not one line that ends in LF"),
        ("{}\n{}\n", "is not one line that ends in LF"),
        ("no json\n", "is not an event of v1"),
        (
            '{"v":"1","id":"evt-4","type":"turn_start","payload":{},"ts":"x"}\n',
            "is not an event of v1",
        ),
        ('{"v":"1","id":"evt-4","type":"wish","payload":{},"ts":"x"}\n', "is of the unknown type"),
        (OF_VERSION_2, "is not of protocol version 1"),
    ],
)
def test_a_line_that_is_not_an_event_is_found(
    log: Path, change: Change, line: str, found: str
) -> None:
    change("UPDATE events SET line = ? WHERE seq = 40", line.encode())
    assert any(text.startswith(f"evt-40 {found}") for text in errors(log))


def test_a_line_with_the_id_of_another_row_is_found(log: Path, change: Change) -> None:
    change("UPDATE events SET seq = 100000 WHERE seq = 40")
    found = errors(log)
    assert "evt-100000 carries the id 'evt-40' of another row" in found
    change("UPDATE log_state SET next_seq = 7")
    assert "the counter says evt-7 comes next, and evt-100000 is there" in errors(log)


@pytest.mark.parametrize("column", ["type", "session_id", "run_id"])
def test_a_row_whose_columns_differ_from_its_line_is_found(
    log: Path, change: Change, column: str
) -> None:
    change(f"UPDATE events SET {column} = 'other' WHERE seq = 40")
    assert "evt-40 is in the row of another event" in errors(log)


def test_an_event_of_a_later_schema_version_is_found(log: Path, change: Change) -> None:
    change("UPDATE events SET schema_version = 99 WHERE seq = 40")
    assert "evt-40 is of schema version 99, written by a newer nousd" in errors(log)


def test_an_event_of_a_nonexistent_schema_version_is_found(log: Path, change: Change) -> None:
    change("UPDATE events SET schema_version = 0 WHERE seq = 40")
    reason = "evt-40 has schema version 0, which there never was"
    assert f"evt-40 is not an event of v1: {reason}" in errors(log)


async def test_events_that_break_the_lifecycle_of_a_run_are_found(folder: Path) -> None:
    path = folder / "nousd.db"
    async with sqlite.open_store(path) as store:
        events = a_run("r1")
        await append(store, created(), *events[:-2], events[-1])
        await append(store, *a_run("r2"), delta(run_id="r2"))
        await append(store, created("s2"), run_started("r3"), *a_run("r3", "s2")[1:2])
    assert errors(path) == [
        "run r1 has agent_end where it cannot stand: turn (evt-27)",
        "run r2 has message_update behind its end (evt-55)",
        "run r3 has turn_start in another session, s2 (evt-58)",
    ]


async def test_branches_of_a_branch_of_a_deleted_session_have_no_findings(
    folder: Path,
) -> None:
    path, later = folder / "nousd.db", artifact(b"found later")
    async with sqlite.open_store(path) as store:
        await append(store, created("gone"), *a_run("g1", "gone"))
        await append(store, created("s1", parent_id="gone", leaf_id="g1.a"))
        await append(store, deleted("gone"))
        await append(store, created("s2", parent_id="s1", leaf_id="g1.a"))
        await append(store, created("s3", parent_id="s2", leaf_id="g1.a"))
        found = appended("e1", "g1.a", session_id="s1", artifact_id=later.id)
        await append(store, found, artifacts=[later])
        await append(store, created("s4", parent_id="s1", leaf_id="e1"))
    assert findings_of(path) == []


# --- the rows ----------------------------------------------------------------------------------


@pytest.mark.slow(keep=5)
@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("DELETE FROM sessions WHERE session_id = 's1'", "session s1 has no row"),
        ("UPDATE sessions SET settings = '{}' WHERE session_id = 's1'", "session s1 differs"),
        ("DELETE FROM sessions WHERE deleted", "deleted session gone has no row"),
        ("UPDATE sessions SET deleted = 0 WHERE deleted", "session gone has a row that follows"),
        ("DELETE FROM entries WHERE entry_id = 'r3.a'", "entry r3.a of s1 has no row"),
        ("UPDATE entries SET parent_id = 'x' WHERE entry_id = 'r3.a'", "entry r3.a of s1 differs"),
        ("DELETE FROM entry_bodies WHERE seq = 27", "entry g1.a of branch has lost its body"),
        ("INSERT INTO entry_bodies (seq, body) VALUES (7, x'00')", "the body of entry 7 belongs"),
        ("UPDATE inputs SET state = 'pending' WHERE input_id = 'i1'", "input i1 of s1 differs"),
        ("DELETE FROM inputs WHERE input_id = 'i2'", "input i2 of s1 has no row"),
        (
            "UPDATE runs SET status = 'running' WHERE run_id = 'r2'",
            "run r2 differs from its events",
        ),
        ("DELETE FROM artifacts", "artifact sha256:"),
        ("UPDATE artifact_chunks SET data = x'00'", "artifact sha256:"),
        ("DELETE FROM artifact_chunks", "artifact sha256:"),
        ("UPDATE artifacts SET size_bytes = 1", "artifact sha256:"),
        ("UPDATE log_state SET active_session_id = 'nobody'", "the active session is nobody"),
        ("DELETE FROM log_state", "the counter has 0 rows"),
    ],
)
def test_rows_that_differ_from_the_events_are_found(
    log: Path, change: Change, statement: str, found: str
) -> None:
    change(statement)
    assert any(line.startswith(found) for line in errors(log)), errors(log)


def test_equivalent_json_is_not_an_error(log: Path, change: Change) -> None:
    settings = '{ "model":"other", "name": "first"}'
    change("UPDATE sessions SET settings = ? WHERE session_id = 's1'", settings)
    assert errors(log) == []


async def test_defaults_that_differ_from_the_events_are_found(
    folder: Path,
) -> None:
    path = folder / "nousd.db"
    async with sqlite.open_store(path) as store:
        await append(store, created())
    assert errors(path) == []
    connection = apsw.Connection(str(path))
    connection.execute('UPDATE log_state SET defaults = \'{"model":"x"}\'')
    connection.close()
    assert errors(path) == ["the settings of new sessions differ from their events"]


def test_findings_are_listed_up_to_a_limit_and_counted_beyond_it(
    log: Path, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nousd.admin.check.findings.FINDINGS_MAX", 5)
    change("UPDATE events SET line = x'00'")
    report = check(log)
    assert len(report.findings) == 5 < FINDINGS_MAX
    assert report.errors >= 355
    assert report.untold == report.errors - 5


def test_a_check_reports_its_progress(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nousd.admin.check.check.PROGRESS_EVENTS", 100)
    seen: list[int] = []
    check(log, progress=seen.append)
    assert seen == [100, 200, 300]


def test_a_daemon_that_starts_during_the_check_is_detected(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_a_daemon(self: Refold, run_id: str) -> bool:
        os.utime(log)
        return False

    monkeypatch.setattr(Refold, "has_ended", start_a_daemon)
    [found] = [str(f) for f in check(log).findings if f.severity == "error"]
    assert found.endswith("a daemon was started; try again")


def test_an_incomplete_artifact_is_a_note(log: Path, change: Change) -> None:
    change("INSERT INTO artifact_chunks (artifact_id, idx, data) VALUES ('sha256:1', 0, x'00')")
    report = check(log)
    assert report.errors == 0
    assert any("is there in part" in str(finding) for finding in report.findings)
