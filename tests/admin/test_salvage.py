"""``nousd.admin.salvage`` saves everything undamaged, and a daemon can work with the result."""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nousd.admin.check.check import check
from nousd.admin.reading.lines import StoredLine
from nousd.admin.reading.pages import PageReader
from nousd.admin.salvage.salvage import SalvageReport, salvage
from nousd.admin.vacuum import vacuum
from nousd.daemon.clock import SystemClock
from nousd.daemon.eventlog.hub import Hub
from nousd.daemon.eventlog.log import Log
from nousd.daemon.runs.recovery import close_open_work
from nousd.errors import StoreError, StoreTooNew
from nousd.runtime_paths.locks import lock_state_folder
from nousd.store.sqlite import store as sqlite
from nousd.wire.objects.run_options import RunOptions
from nousd.wire.objects.session_values import SessionRules
from tests.admin.conftest import Change, check_unchanged
from tests.admin.logs import a_run, artifact, lines_in, write_log, write_recorded_log
from tests.store.helpers import EVERYTHING, TS, append, created, deleted, whole_log
from tests.suites import examples

PAGE = 4096


def salvage_log(log: Path) -> tuple[SalvageReport, Path]:
    """Salvage a log next to its folder, and check that the log is unchanged."""
    out = log.parent.parent / "out"
    with check_unchanged(log.parent):
        report = salvage(log, out)
    assert [path.name for path in out.iterdir()] == ["nousd.db"]
    return report, out / "nousd.db"


async def start_daemon_on(path: Path) -> None:
    """Recover the log as a start does, and append to it."""
    async with sqlite.open_store(path) as store:
        clock = SystemClock()
        head = store.head
        await close_open_work(store, Log(store, Hub(store), clock), clock)
        assert await store.open_runs() == ()
        await append(store, created("after"), *a_run("after", "after"))
        assert store.head > head
        for row in (await store.sessions(limit=100, before=None)).rows:
            if row.leaf_id is not None:
                await store.path(row.session_id, row.leaf_id, limit=100, bytes_max=10**6)


def pages_of(path: Path) -> dict[int, set[int]]:
    """Return event number -> pages of its row, found by zeroing the pages one by one."""
    content = path.read_bytes()
    whole = _lines_on_pages(path)
    pages: dict[int, set[int]] = {seq: set() for seq in whole}
    blank = path.with_name("blank")
    for page in range(len(content) // PAGE):
        blank.write_bytes(content[: page * PAGE] + bytes(PAGE) + content[(page + 1) * PAGE :])
        left = _lines_on_pages(blank)
        for seq, on in pages.items():
            if left.get(seq) != whole[seq]:
                on.add(page)
    blank.unlink()
    return pages


def _lines_on_pages(path: Path) -> dict[int, bytes]:
    with PageReader(path, path.with_name("none")) as reader:
        return {row.seq: row.line for row in reader.rows() if isinstance(row, StoredLine)}


Damage = Callable[[bytearray, int], None]
"""A function that damages one page of a file."""


def zero(content: bytearray, page: int) -> None:
    content[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)


def spoil_header(content: bytearray, page: int) -> None:
    """Overwrite the header of a b-tree page; on the first page the header of the file too."""
    for offset in (0, 1, 2, 3, 4, 16, 17, 18, 100, 101, 103, 104):
        content[page * PAGE + offset] ^= 0xFF


def flip(content: bytearray, page: int) -> None:
    chance = random.Random(page)
    for _ in range(4):
        content[page * PAGE + chance.randrange(PAGE)] ^= 1 << chance.randrange(8)


def fill_with_noise(content: bytearray, page: int) -> None:
    content[page * PAGE : (page + 1) * PAGE] = random.Random(page).randbytes(PAGE)


DAMAGES: list[Damage] = [zero, spoil_header, flip, fill_with_noise]


# --- guarantees --------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "nousd.db"
    write_recorded_log(path)
    return path


@pytest.fixture(scope="session")
def with_long_lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log whose long rows extend over several pages."""
    path = tmp_path_factory.mktemp("long") / "nousd.db"
    trio.run(lambda: write_log(path, runs=4))
    return path


@pytest.fixture(scope="session", params=["recorded", "with_long_lines"])
def intact(request: pytest.FixtureRequest) -> tuple[Path, dict[int, set[int]]]:
    path: Path = request.getfixturevalue(request.param)
    return path, pages_of(path)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_every_event_on_undamaged_pages_is_saved(
    intact: tuple[Path, dict[int, set[int]]], damage: Damage, folder: Path
) -> None:
    path, pages = intact
    lines = lines_in(path)
    # Each of the four damages takes every fourth page, so that together they take all of them.
    for page in range(DAMAGES.index(damage), path.stat().st_size // PAGE, len(DAMAGES)):
        content = bytearray(path.read_bytes())
        damage(content, page)
        log = folder / "nousd.db"
        log.write_bytes(content)
        _, out = salvage_log(log)
        found = lines_in(out)
        lost = [seq for seq, on in pages.items() if page not in on and found.get(seq) != lines[seq]]
        assert lost == [], f"{damage.__name__} page {page}"
        # A run or an artifact with a gap keeps it; everything else is intact again.
        rows = [
            str(f) for f in check(out).findings if not f.where.startswith(("run ", "artifact "))
        ]
        assert rows == [], f"{damage.__name__} page {page}"
        if page % 6 < 2:
            trio.run(start_daemon_on, out)
        shutil.rmtree(out.parent)


@given(st.data())
@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_salvage_never_crashes_and_a_daemon_starts_on_the_result(
    recorded: Path, folder: Path, data: st.DataObject
) -> None:
    content = bytearray(recorded.read_bytes())
    last = len(content) // PAGE - 1
    for page in data.draw(st.lists(st.integers(0, last), min_size=1, max_size=12), "pages"):
        data.draw(st.sampled_from(DAMAGES), "damage")(content, page)
    cut = data.draw(st.integers(len(content) // 3, len(content)), "bytes left")
    log = folder / "nousd.db"
    log.write_bytes(content[:cut])
    check(log)
    try:
        _, out = salvage_log(log)
    except StoreError as error:
        assert "not one event was found" in str(error)  # noqa: PT017
        return
    assert all(not str(f).startswith("error: the database") for f in check(out).findings)
    trio.run(start_daemon_on, out)
    shutil.rmtree(out.parent)


@pytest.mark.parametrize("kept", [0.5, 0.8, 0.99])
def test_events_of_a_truncated_file_are_saved(log: Path, kept: float) -> None:
    whole = lines_in(log)
    os.truncate(log, int(log.stat().st_size * kept))
    report, out = salvage_log(log)
    assert report.errors
    assert lines_in(out).items() & whole.items()
    trio.run(start_daemon_on, out)


def test_an_intact_log_is_saved_unchanged(log: Path, any_umask: int) -> None:
    report, out = salvage_log(log)
    assert lines_in(out) == lines_in(log)
    assert (report.read, report.from_pages, report.restored, report.added) == (355, 0, 0, 0)
    assert (report.errors, report.missing) == (0, [])
    assert stat.S_IMODE(out.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert check(out).errors == 0


def test_lines_keep_their_schema_version(recorded: Path, folder: Path) -> None:
    log = Path(shutil.copy(recorded, folder / "nousd.db"))
    content = bytearray(log.read_bytes())
    spoil_header(content, 0)
    log.write_bytes(content)
    report, out = salvage_log(log)
    assert report.from_pages == len(lines_in(recorded)) == len(lines_in(out))
    with apsw.Connection(str(out)) as connection:
        versions = list(connection.execute("SELECT DISTINCT schema_version FROM events"))
    connection.close()
    assert versions == [(1,)]


# --- the WAL -----------------------------------------------------------------------------------

_KILLED = """
import os, pathlib, sys, trio
from nousd.store.sqlite import store as sqlite
from tests.admin.logs import a_run
from tests.store.helpers import append, created, deleted
async def main():
    path = pathlib.Path(sys.argv[1])
    async with sqlite.open_store(path) as store:
        await append(store, created(), *a_run("r0"))
    async with sqlite.open_store(path) as store:
        for number in range(1, 9):
            await append(store, *a_run(f"r{number}"))
        os._exit(9)
trio.run(main)
"""


@pytest.fixture(scope="session")
def killed_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("killed") / "nousd.db"
    done = subprocess.run([sys.executable, "-c", _KILLED, str(path)], timeout=60, check=False)
    assert done.returncode == 9
    return path


@pytest.fixture
def killed(folder: Path, killed_template: Path) -> Path:
    """A log with one run in the database and eight in the WAL."""
    for file in killed_template.parent.iterdir():
        shutil.copy(file, folder)
    return folder / "nousd.db"


@pytest.mark.slow
def test_events_in_the_wal_are_saved(killed: Path) -> None:
    report, out = salvage_log(killed)
    assert (len(lines_in(out)), report.errors) == (1 + 9 * 27, 0)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("at", [0, 4, 20, 24 + 32, 24 + 32 + 8, 20_000])
def test_a_damaged_wal_is_read_frame_by_frame(killed: Path, at: int) -> None:
    wal = killed.with_name("nousd.db-wal")
    content = bytearray(wal.read_bytes())
    content[at] ^= 0xFF
    wal.write_bytes(content)
    report, out = salvage_log(killed)
    found = lines_in(out)
    # Pages that were written again are intact in a later frame.
    assert len(found) >= 1 + 9 * 27 - 27
    assert max(found) == 1 + 9 * 27
    assert report.from_pages
    trio.run(start_daemon_on, out)


@pytest.mark.parametrize("garbage", [b"", b"x", b"\xff" * 50_000], ids=["empty", "short", "noise"])
def test_with_an_unreadable_wal_the_database_alone_is_saved(killed: Path, garbage: bytes) -> None:
    killed.with_name("nousd.db-wal").write_bytes(garbage)
    _, out = salvage_log(killed)
    assert len(lines_in(out)) == 28


def test_uncommitted_events_are_not_saved(killed: Path) -> None:
    """The last frame of each transaction marks its commit."""
    wal = killed.with_name("nousd.db-wal")
    content = wal.read_bytes()
    step = PAGE + 24
    commits = [at for at in range(32, len(content), step) if content[at + 4 : at + 8] != bytes(4)]
    wal.write_bytes(content[: commits[-1]])
    content_of_the_rest = bytearray(wal.read_bytes())
    content_of_the_rest[20] ^= 0xFF  # so that SQLite ignores the WAL
    wal.write_bytes(content_of_the_rest)
    _, out = salvage_log(killed)
    assert max(lines_in(out)) == 1 + 8 * 27


# --- rows without events -----------------------------------------------------------------------


def spoil(log: Path, damage: Damage, page: int) -> None:
    content = bytearray(log.read_bytes())
    damage(content, page)
    log.write_bytes(content)


async def test_a_deleted_session_stays_deleted(log: Path) -> None:
    spoil(log, zero, 5)
    _, out = salvage_log(log)
    async with sqlite.open_store(out) as store:
        assert await store.session("gone") is None
        assert [e.type for e in await whole_log(store) if e.session_id == "gone"] == [
            "session_deleted"
        ]


async def test_a_deletion_without_its_event_is_repeated(log: Path, change: Change) -> None:
    change("DELETE FROM events WHERE type = 'session_deleted'")
    report, out = salvage_log(log)
    assert report.added == 1
    assert lines_in(out)[max(lines_in(out))].count(b'"session_deleted"') == 1
    assert check(out).errors == 0


async def test_a_stale_page_does_not_restore_a_deleted_session(folder: Path) -> None:
    path = folder / "nousd.db"
    async with sqlite.open_store(path) as store:
        await append(store, created("s1"), created("gone"), *a_run("g", "gone"), *a_run("r"))
    stale = path.read_bytes()
    async with sqlite.open_store(path) as store:
        await append(store, deleted("gone"))
    content = bytearray(path.read_bytes())
    spoil_header(content, 0)
    path.write_bytes(content + stale)
    _, out = salvage_log(path)
    async with sqlite.open_store(out) as store:
        assert await store.session("gone") is None
        assert not any(b'"g.a"' in event.line for event in await whole_log(store))
        assert await store.session("s1") is not None


async def test_a_stale_page_does_not_restore_pruned_deltas(folder: Path) -> None:
    path = folder / "nousd.db"
    async with sqlite.open_store(path) as store:
        await append(store, created("s1"), *a_run("r"))
    stale = path.read_bytes()
    assert vacuum(folder).deltas_joined == 19
    content = bytearray(path.read_bytes())
    spoil_header(content, 0)
    path.write_bytes(content + stale)
    _, out = salvage_log(path)
    async with sqlite.open_store(out) as store:
        updates = [event for event in await whole_log(store) if event.type == "message_update"]
        assert [event.seq for event in updates] == [24]
        assert b'"joined_from":"evt-5"' in updates[0].line
        assert await store.is_pruned(10, EVERYTHING)


async def test_entries_that_a_branch_shares_with_a_deleted_parent_are_kept(log: Path) -> None:
    _, out = salvage_log(log)
    async with sqlite.open_store(out) as store:
        path = await store.path("branch", "result", limit=10, bytes_max=10**6)
        assert [entry.id for entry in path.entries] == ["g1.a", "result"]
        [artifact_id] = {e.artifact_id for e in path.entries if e.id == "result"}  # type: ignore[union-attr]
        assert await store.artifact(str(artifact_id)) is not None


async def test_lost_events_are_restored_from_their_rows(log: Path, change: Change) -> None:
    before = lines_in(log)
    asked = '{"client_id":"desktop","options":{"tools":[]}}'
    change("UPDATE runs SET request = ? WHERE run_id = 'r1'", asked)
    for type_ in ("entry_appended", "agent_start"):
        change("DELETE FROM events WHERE type = ? AND run_id IN ('r1', 'r2')", type_)
    change("DELETE FROM events WHERE type = 'queue_update' AND CAST(line AS TEXT) LIKE '%\"i2\"%'")
    report, out = salvage_log(log)
    assert report.restored == 5
    after = lines_in(out)
    assert after.keys() == before.keys()
    of_entries = [seq for seq, line in before.items() if b'"entry_appended"' in line]
    assert [after[seq] for seq in of_entries] == [before[seq] for seq in of_entries]
    assert check(out).errors == 0
    async with sqlite.open_store(out) as store:
        assert [queued.input_id for queued in await store.pending_inputs("s1")] == ["i2"]
        run = await store.run("r1")
        assert run is not None
        assert (run.client_id, run.options) == ("desktop", RunOptions(tools=()))


def test_a_consumed_input_does_not_become_pending_again(log: Path, change: Change) -> None:
    change("DELETE FROM events WHERE CAST(line AS TEXT) LIKE '%\"consumed\"%'")
    report, out = salvage_log(log)
    assert report.added == 1
    with apsw.Connection(str(out)) as connection:
        states = dict(connection.execute("SELECT input_id, state FROM inputs"))
    connection.close()
    assert states == {"i1": "consumed", "i2": "pending"}


async def test_a_session_without_its_creation_gets_a_new_one(log: Path, change: Change) -> None:
    change("DELETE FROM events WHERE seq = 1")
    _, out = salvage_log(log)
    async with sqlite.open_store(out) as store:
        session = await store.session("s1")
        assert session is not None
        assert (session.name, session.model, session.leaf_id) == ("first", "other", "r11.a")
        assert max(lines_in(out)) >= 384  # its number is beyond all used ones
    assert check(out).errors == 0


async def test_a_session_without_its_creation_keeps_its_workspace_and_loses_its_grants(
    log: Path, change: Change
) -> None:
    attached = {
        "workspace": "/w/b",
        "origin_workspace": "/w/a",
        "attached_from": "/w/a",
        "attached_at": TS,
        "attach_reason": "the tests are there",
    }
    kept = {"archived": True, "rules": {"deny": ["bash"]}, **attached}
    permitted = {
        "granted": ["bash(make *)"],
        "override_expires_at": "2999-01-01T00:00:00.000000Z",
        "override_seconds": 3600,
    }
    change("DELETE FROM events WHERE seq = 1")
    change(
        "UPDATE sessions SET settings = json_patch(settings, ?) WHERE session_id = 's1'",
        json.dumps({**kept, **permitted}),
    )
    _, out = salvage_log(log)
    assert check(out).errors == 0
    async with sqlite.open_store(out) as store:
        row = await store.session("s1")
        assert row is not None
        assert row.archived
        assert row.rules == SessionRules(deny=("bash",))
        assert (row.workspace, row.origin_workspace) == ("/w/b", "/w/a")
        assert (row.attached_from, row.attach_reason) == ("/w/a", "the tests are there")
        # Grants may have been revoked.
        assert (row.granted, row.override_expires_at) == ((), None)
    await start_daemon_on(out)


async def test_an_inconsistent_run_is_ended_and_open_runs_are_left_to_the_start(
    log: Path, change: Change
) -> None:
    change("DELETE FROM events WHERE run_id = 'r1' AND type IN ('turn_start', 'agent_end')")
    change("UPDATE runs SET status = 'running' WHERE run_id = 'r1'")
    _, out = salvage_log(log)
    async with sqlite.open_store(out) as store:
        assert [run.run_id for run in await store.open_runs()] == ["open"]
        run = await store.run("r1")
        assert run is not None
        assert run.status == "interrupted"
    await start_daemon_on(out)


def test_numbers_are_not_reused_when_the_counter_is_lost(log: Path, change: Change) -> None:
    change("DELETE FROM log_state")
    _, out = salvage_log(log)
    with apsw.Connection(str(out)) as connection:
        assert connection.execute("SELECT next_seq FROM log_state").get > 383 + 100_000
    connection.close()


def test_damaged_lines_and_missing_numbers_are_reported(log: Path, change: Change) -> None:
    change("UPDATE events SET line = x'00' WHERE seq = 40")
    content = bytearray(log.read_bytes())
    leaf = next(
        page
        for page in range(len(content) // PAGE)
        if b'"id":"evt-200"' in content[page * PAGE : (page + 1) * PAGE]
        and content[page * PAGE] == 0x0D
    )
    zero(content, leaf)
    log.write_bytes(content)
    report, _ = salvage_log(log)
    lines = [str(found) for found in report.findings]
    assert "error: evt-40 is lost: it is not one line that ends in LF" in lines
    assert any(first <= 200 <= last for first, last in report.missing)
    assert any(line.endswith("lost, or a number that was never given") for line in lines)


# --- refused -----------------------------------------------------------------------------------


def test_an_existing_target_is_not_overwritten(log: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(StoreError, match="exists; a salvage overwrites nothing"):
        salvage(log, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_the_log_of_a_running_daemon_is_refused(log: Path, tmp_path: Path) -> None:
    lines = rf"a daemon \(pid {os.getpid()}\) is at work"
    with lock_state_folder(log.parent), pytest.raises(StoreError, match=lines):
        salvage(log, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"", b"nothing of ours" * 1000], ids=["empty", "foreign"])
def test_a_file_without_events_leaves_no_output(
    folder: Path, tmp_path: Path, content: bytes
) -> None:
    (folder / "nousd.db").write_bytes(content)
    with pytest.raises(StoreError, match=r"there is no log|not one event was found"):
        salvage(folder / "nousd.db", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_a_log_of_a_newer_version_is_refused(log: Path, tmp_path: Path) -> None:
    with apsw.Connection(str(log)) as connection:
        connection.pragma("user_version", 99)
    connection.close()
    with pytest.raises(StoreTooNew):
        salvage(log, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_an_unwritable_target_is_an_error(log: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be written: No such file"):
        salvage(log, tmp_path / "nowhere" / "out")


def test_event_lines_within_an_artifact_are_not_taken_for_events(folder: Path) -> None:
    """An artifact may contain all of another log."""
    payload = b'{"session_id":"x"}'
    foreign = (
        b'{"v":"1","id":"evt-77","type":"session_activated","payload":%b,"ts":"t"}\n' % payload
    )

    async def write() -> None:
        async with sqlite.open_store(folder / "nousd.db") as store:
            whole = artifact(foreign * 200)
            end = a_run("r")
            await append(store, created(), *end, artifacts=[whole])

    trio.run(write)
    spoil(folder / "nousd.db", spoil_header, 0)
    _, out = salvage_log(folder / "nousd.db")
    assert 77 not in lines_in(out)
