"""Databases of earlier versions: opened, migrated and read without changing what was stored.

What a daemon answers from them is tested in ``tests/daemon/test_earlier_logs.py``.
"""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path

import apsw
import msgspec
import pytest
from msgspec import UNSET

from nousd.admin.check.check import check
from nousd.errors import StoreError, StoreFull, StoreTooNew
from nousd.store.records import EventFilter
from nousd.store.sqlite import store as sqlite
from nousd.store.sqlite.database import open_for_writing
from nousd.store.sqlite.migrations import MIGRATIONS
from nousd.wire.codec.envelope import decode_event
from nousd.wire.codec.upcasting import EVENT_SCHEMA_VERSION, STEPS
from nousd.wire.events import EVENTS
from tests.harness.earlier_stores import EARLIER, HELD, StoredLines, stored_lines, unpack
from tests.harness.validation import check_event
from tests.store.faulty_disk import Fault, faulty_disk
from tests.store.helpers import NO_BOUND, append, run_started, whole_log


@pytest.fixture(params=EARLIER)
def name(request: pytest.FixtureRequest) -> str:
    """The name of a database of each earlier version."""
    name: str = request.param
    return name


@pytest.fixture
def path(name: str, tmp_path: Path) -> Path:
    """The path of that database."""
    path = tmp_path / "nousd.db"
    unpack(name, path)
    return path


def test_a_database_of_every_earlier_version_exists() -> None:
    assert tuple(f"schema-{version}" for version in range(1, len(MIGRATIONS))) == EARLIER
    assert tuple(HELD) == EARLIER


def test_every_event_schema_version_comes_with_a_migration() -> None:
    # A migration raises the version of the file, so that older daemons refuse it.
    assert len(MIGRATIONS) >= EVENT_SCHEMA_VERSION


async def test_an_earlier_database_is_migrated_on_opening(path: Path) -> None:
    async with sqlite.open_store(path):
        pass
    connection = apsw.Connection(str(path))
    assert connection.pragma("user_version") == len(MIGRATIONS)
    assert connection.pragma("integrity_check") == "ok"
    connection.close()


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("fault", [Fault.FULL, Fault.ERROR])
def test_a_disk_failure_during_migration_is_reported_and_leaves_the_events_unchanged(
    path: Path, tmp_path: Path, fault: Fault
) -> None:
    before = stored_lines(path)
    failures = []
    for step in count(step=7):
        copy = tmp_path / f"at-{step}.db"
        shutil.copy(path, copy)
        with faulty_disk() as disk:
            disk.fail(fault, at=step)
            try:
                open_for_writing(copy, disk.connect).connection.close()
            except StoreError as error:
                failures.append(error)
            else:
                break
        assert stored_lines_of_killed(copy) == before
        open_for_writing(copy, apsw.Connection).connection.close()
        assert stored_lines(copy) == before
    in_migrations = [error for error in failures if "migration " in str(error)]
    assert in_migrations
    assert all(isinstance(error, StoreFull) == fault.is_full for error in in_migrations)
    assert all(fault.value in str(error) for error in failures)


def stored_lines_of_killed(path: Path) -> StoredLines:
    """Like ``stored_lines``, of a copy of a database that a process left unfinished."""
    folder = path.with_suffix(".looked-at")
    folder.mkdir()
    for file in path.parent.glob(f"{path.name}*"):
        shutil.copy(file, folder)
    connection = apsw.Connection(str(folder / path.name))
    assert connection.pragma("integrity_check") == "ok"
    connection.close()
    return stored_lines(folder / path.name)


@pytest.mark.slow(keep=2)
@pytest.mark.behaviour("logs_of_earlier_versions_are_read")
async def test_every_event_is_read_in_the_current_schema(path: Path) -> None:
    stored = stored_lines(path)
    async with sqlite.open_store(path) as store:
        log = await whole_log(store)
    assert [event.seq for event in log] == sorted(stored)
    for event in log:
        failures = check_event(event.line)
        line = decode_event(event.line)
        msgspec.json.decode(line.payload, type=EVENTS[event.type])
        _, type_, before = stored[event.seq]
        was = decode_event(before)
        assert (failures["type"], failures["id"], failures["ts"]) == (type_, was.id, was.ts)


async def test_only_event_types_with_an_upcasting_step_are_read_differently_than_stored(
    name: str, path: Path
) -> None:
    stored = stored_lines(path)
    async with sqlite.open_store(path) as store:
        changed = {
            event.type for event in await whole_log(store) if event.line != stored[event.seq][2]
        }
    assert changed == HELD[name].lifted


def test_every_upcasting_step_changes_a_line_of_its_version() -> None:
    for version, steps in STEPS.items():
        assert steps.keys() <= HELD[f"schema-{version}"].lifted


async def test_stored_lines_are_not_rewritten_and_new_lines_have_the_current_version(
    path: Path,
) -> None:
    before = stored_lines(path)
    async with sqlite.open_store(path) as store:
        await whole_log(store)
        [new] = await append(store, run_started("run-new", "sess-new"))
        [read] = await store.events_after(new.seq - 1, EventFilter(), limit=1, bytes_max=NO_BOUND)
        assert read == new
    after = stored_lines(path)
    assert after.pop(new.seq) == (EVENT_SCHEMA_VERSION, "agent_start", new.line)
    assert after == before
    assert new.seq > max(before)


async def test_rows_of_an_earlier_version_are_readable(path: Path) -> None:
    async with sqlite.open_store(path) as store:
        sessions = (await store.sessions(limit=100, before=None)).rows
        assert sessions
        for session in sessions:
            await store.pending_inputs(session.session_id)
            nodes = await store.tree(session.session_id, after=None, limit=1000)
            assert nodes
            for node in nodes:
                assert await store.entry(session.session_id, node.id) is not None
        assert await store.runs(None, limit=100, before=None)
        assert await store.open_runs()
        await store.defaults()


@pytest.mark.slow(keep=2)
async def test_rows_after_the_migration_match_the_events(path: Path) -> None:
    async with sqlite.open_store(path) as store:
        sums = [run.usage for run in await store.runs(None, limit=100, before=None)]
        assert len([usage for usage in sums if usage is not UNSET and usage.calls]) >= 4
    assert [found for found in check(path).findings if found.severity == "error"] == []


async def test_an_event_of_a_later_schema_version_is_refused(path: Path) -> None:
    async with sqlite.open_store(path) as store:
        [new] = await append(store, run_started("run-new", "sess-new"))
    later = EVENT_SCHEMA_VERSION + 1
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE events SET schema_version = ? WHERE seq = ?", (later, new.seq))
    connection.close()
    async with sqlite.open_store(path) as store:
        with pytest.raises(StoreTooNew, match=rf"evt-{new.seq} has schema version {later}"):
            await whole_log(store)
        earlier = await store.events_after(0, EventFilter(), limit=5, bytes_max=NO_BOUND)
        assert len(earlier) == 5
