"""The database file: owner, permissions, migrations, and traces of deleted sessions."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw
import pytest

from nousd.errors import StoreError, StoreFull, StoreTooNew
from nousd.store.artifacts import Artifact
from nousd.store.schema import m001_log_and_rows
from nousd.store.sqlite import call_queries, migrations, queries, session_queries
from nousd.store.sqlite import store as sqlite
from nousd.store.sqlite.database import open_for_writing
from tests.store.faulty_disk import faulty_disk
from tests.store.helpers import (
    append,
    appended,
    created,
    deleted,
    delta,
    queue_update,
    queued,
    run_started,
    updated,
    whole_log,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@contextmanager
def check_unchanged(folder: Path) -> Iterator[None]:
    """Fail if a file of the folder is created, removed or changed."""

    def state() -> dict[str, tuple[bytes, int, int]]:
        return {
            file.name: (file.read_bytes(), file.stat().st_mtime_ns, file.stat().st_mode)
            for file in folder.iterdir()
            if file.is_file()
        }

    before = state()
    yield
    assert state() == before


def write(path: Path, content: bytes, mode: int = 0o600) -> None:
    path.write_bytes(content)
    path.chmod(mode)


def spoil(path: Path) -> None:
    """Overwrite all but the header with garbage."""
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"\xff" * (len(content) - 100))


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def version_in_header(path: Path) -> int:
    return int.from_bytes(path.read_bytes()[60:64], "big")


async def fill(path: Path) -> None:
    async with sqlite.open_store(path) as store:
        await append(store, created(), appended("e1"), run_started(), delta())


# --- ownership ---------------------------------------------------------------------------------


async def test_a_database_of_a_newer_version_is_refused_and_left_unchanged(path: Path) -> None:
    await fill(path)
    newer = len(migrations.MIGRATIONS) + 1
    with closing(apsw.Connection(str(path))) as connection:
        connection.pragma("user_version", newer)
    with check_unchanged(path.parent), pytest.raises(StoreTooNew, match=f"version {newer}.* newer"):
        async with sqlite.open_store(path):
            pass


GARBAGE: list[tuple[bytes, str]] = [
    (b"#!/bin/sh\necho this is somebody's script\n" * 10, "no SQLite database"),
    (b"x", "no SQLite database"),
    (b"SQLite format 3\0", "no SQLite database"),
    (b"SQLite format 3\0" + b"\0" * 4000, "another program"),
]


@pytest.mark.parametrize(("content", "message"), GARBAGE, ids=["script", "short", "cut", "zeros"])
async def test_a_file_that_is_not_a_database_of_ours_is_refused_and_left_unchanged(
    path: Path, content: bytes, message: str
) -> None:
    write(path, content)
    with check_unchanged(path.parent), pytest.raises(StoreError, match=message):
        async with sqlite.open_store(path):
            pass


async def test_a_database_of_another_program_is_refused_and_left_unchanged(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    with check_unchanged(path.parent), pytest.raises(StoreError, match="another program"):
        async with sqlite.open_store(path):
            pass


async def test_opening_a_log_with_garbage_pages_raises_store_error(path: Path) -> None:
    await fill(path)
    spoil(path)
    with pytest.raises(StoreError, match="cannot be opened"):
        async with sqlite.open_store(path):
            pass


async def test_opening_in_a_missing_folder_or_on_a_directory_raises_store_error(
    tmp_path: Path,
) -> None:
    with pytest.raises(StoreError, match="No such file"):
        async with sqlite.open_store(tmp_path / "nowhere" / "log.db"):
            pass
    with pytest.raises(StoreError, match="Is a directory"):
        async with sqlite.open_store(tmp_path):
            pass


async def test_an_empty_file_becomes_a_log(path: Path) -> None:
    write(path, b"")
    await fill(path)


async def test_an_interrupted_creation_is_repeated(path: Path, tmp_path: Path) -> None:
    begin_database(tmp_path / "begun.db")
    for suffix in ("", "-journal"):
        shutil.copy(tmp_path / f"begun.db{suffix}", tmp_path / f"log.db{suffix}")
    await fill(path)


def begin_database(path: Path) -> None:
    """Leave a file and a journal as a kill during the first migration would."""
    connection = apsw.Connection(str(path))
    connection.pragma("cache_size", 5)
    connection.execute("BEGIN")
    for statement in m001_log_and_rows.STATEMENTS:
        connection.execute(statement)
    for seq in range(200):
        connection.execute(
            "INSERT INTO entry_bodies (seq, body) VALUES (?, zeroblob(4000))", (seq,)
        )
    connection.cache_flush()
    kept_open.append(connection)


kept_open: list[apsw.Connection] = []
"""Closing a connection would undo its transaction."""


async def test_the_files_are_private_under_any_umask(path: Path) -> None:
    before = os.umask(0)
    try:
        async with sqlite.open_store(path) as store:
            await append(store, created())
            await store.defaults()
            modes = {file.name: mode_of(file) for file in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert set(modes) == {"log.db", "log.db-wal", "log.db-shm", "log.reserve"}
    assert set(modes.values()) == {0o600}


async def test_a_file_readable_by_others_is_made_private(path: Path) -> None:
    write(path, b"", mode=0o644)
    await fill(path)
    assert mode_of(path) == 0o600


# --- migrations --------------------------------------------------------------------------------


ADD_A_TABLE = ("CREATE TABLE added (x TEXT) STRICT",)

ADD_ANOTHER_TABLE_AND_FAIL = (
    "CREATE TABLE another (x TEXT) STRICT",
    "INSERT INTO nowhere VALUES (1)",
)


async def test_a_new_database_has_every_migration_and_our_application_id(path: Path) -> None:
    await fill(path)
    with closing(apsw.Connection(str(path))) as connection:
        assert connection.pragma("user_version") == len(migrations.MIGRATIONS)
        assert connection.pragma("application_id") == m001_log_and_rows.APPLICATION_ID
        assert connection.pragma("journal_mode") == "wal"


def test_creating_a_database_takes_two_syncs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the file and one of its folder, since a first start waits for each. SQLite does none."""
    synced: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with faulty_disk() as disk:
        open_for_writing(path, disk.connect).connection.close()
    assert (synced, disk.syncs) == ([f"{path}.new", str(path.parent)], 0)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("number", [0, 1])
def test_a_database_whose_creation_failed_is_created_by_the_next_start(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with monkeypatch.context() as patch:
        left = [None] * number

        def fsync(_handle: int) -> None:
            if not left:
                raise OSError(errno.ENOSPC, "No space left on device")
            left.pop()

        patch.setattr(os, "fsync", fsync)
        with pytest.raises(StoreFull, match="cannot be made: No space left on device"):
            open_for_writing(path, apsw.Connection)
    assert path.exists() == (number == 1)
    opened = open_for_writing(path, apsw.Connection)
    with closing(opened.connection) as connection:
        assert connection.pragma("user_version") == len(migrations.MIGRATIONS)
        assert opened.was_closed
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_creating_a_file_without_space_raises_store_full(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(StoreFull, match=r"log\.db\.new cannot be opened: No space left on device"):
        open_for_writing(path, apsw.Connection)


def test_a_symbolic_link_to_the_log_is_followed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "big disk").mkdir()
    target = tmp_path / "big disk" / "the log"
    path.symlink_to(target)
    open_for_writing(path, apsw.Connection).connection.close()
    assert (path.is_symlink(), target.stat().st_size > 0) == (True, True)
    left_open = open_for_writing(path, apsw.Connection).connection
    left_open.execute("UPDATE log_state SET next_seq = 7")
    opened = open_for_writing(path, apsw.Connection)
    assert (opened.was_closed, opened.next_seq) == (False, 7)
    opened.connection.close()
    left_open.close()


def test_leftovers_of_an_interrupted_creation_are_replaced(path: Path) -> None:
    for suffix in ("", "-journal", "-wal"):
        write(
            path.with_name(f"{path.name}.new{suffix}"), b"SQLite format 3" + bytes(5000), mode=0o666
        )
    open_for_writing(path, apsw.Connection).connection.close()
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert mode_of(path) == 0o600


async def test_an_older_database_gets_missing_migrations_and_keeps_its_events(path: Path) -> None:
    await fill(path)
    steps = (*migrations.MIGRATIONS, ADD_A_TABLE)
    opened = open_for_writing(path, apsw.Connection, steps)
    with closing(opened.connection) as connection:
        assert connection.pragma("user_version") == len(steps)
        assert connection.execute("SELECT count(*) FROM added").get == 0
        assert connection.execute("SELECT count(*) FROM events").get == 4
        assert opened.head == 4


async def test_a_failed_migration_undoes_those_before_it_too(path: Path) -> None:
    await fill(path)
    steps = (*migrations.MIGRATIONS, ADD_A_TABLE, ADD_ANOTHER_TABLE_AND_FAIL)
    with pytest.raises(StoreError, match=f"migration {len(steps)} of the database failed"):
        open_for_writing(path, apsw.Connection, steps)
    with closing(apsw.Connection(str(path))) as connection:
        assert connection.pragma("user_version") == len(migrations.MIGRATIONS)
        made = "SELECT name FROM sqlite_schema WHERE name IN ('added', 'another')"
        assert connection.execute(made).get is None
    async with sqlite.open_store(path) as store:
        assert len(await whole_log(store)) == 4


async def test_the_version_is_in_the_main_file_while_the_log_is_open(path: Path) -> None:
    async with sqlite.open_store(path):
        assert version_in_header(path) == len(migrations.MIGRATIONS)


# --- deletion ----------------------------------------------------------------------------------

SECRET = "the launch code is 0000"


async def test_deleted_text_is_in_no_file_of_the_open_log(path: Path) -> None:
    long_secret = SECRET * 2000
    async with sqlite.open_store(path) as store:
        await append(
            store,
            created("s1", name=SECRET, model=SECRET),
            appended("e1", text=long_secret),
            run_started(),
            delta(SECRET),
            queue_update("accepted", queued("i1", text=SECRET, client_message_id="c1")),
            artifacts=[Artifact("sha256:00", "text/plain", long_secret.encode())],
        )
        await append(store, created("s2"), appended("e1", session_id="s2", artifact_id="other"))
        await append(store, appended("e2", "e1", artifact_id="sha256:00"))
        assert any(SECRET.encode() in file.read_bytes() for file in path.parent.iterdir())
        await append(store, deleted("s1"))
        # Once this is answered, the writer has finished the work after the previous commit.
        await append(store, updated("s2", name="kept"))
        for file in path.parent.iterdir():
            assert SECRET.encode() not in file.read_bytes(), file.name
        assert await store.entry("s2", "e1") is not None


# --- indices -----------------------------------------------------------------------------------

NO_READS = {
    *("_CALLS", "_RUN_COLUMNS"),  # beginnings of reads
    # See test_session_lists.
    *("_SESSIONS", "_SESSION_COUNT", "_SESSIONS_OF_PARENT", "_SESSION_COUNT_OF_PARENT"),
    "_SEARCHED_SESSIONS",  # bounded by its reader, see test_session_search
}

READS = [
    (name, query)
    for module in (queries, session_queries, call_queries)
    for name, query in vars(module).items()
    if isinstance(query, str) and query.lstrip().startswith("SELECT") and name not in NO_READS
]


def test_there_are_queries_to_check() -> None:
    assert len(READS) >= 10


@pytest.mark.parametrize(("name", "query"), READS, ids=[name for name, _ in READS])
def test_no_query_sorts_or_scans_a_whole_table(path: Path, name: str, query: str) -> None:
    with closing(open_for_writing(path, apsw.Connection).connection) as connection:
        count = query.count("?")
        bindings = [None] * count if count else dict.fromkeys(_NAMES)
        plan = [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + query, bindings)]
    assert plan
    for step in plan:
        assert "TEMP B-TREE" not in step, plan
        # A scan of a partial index reads nothing but the answer.
        is_partial = step.endswith(
            tuple(
                f"USING INDEX {name}"
                for name in (
                    "runs_open",
                    "inputs_pending",
                    "tool_calls_open",
                    "sessions_overridden",
                )
            )
        )
        is_of_blocks = step == "SCAN blocks"
        is_of_all = step.startswith("SCAN") and "json_each" not in step
        assert not is_of_all or is_partial or is_of_blocks, plan


_NAMES = ("after", "before", "head", "types", "limit", "session_id", "run_id", "leaf_id")
