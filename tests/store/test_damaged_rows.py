"""Rows changed by the disk: requests that need one get an error, all others continue."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from nousd.errors import StoreError
from nousd.store.records import Old
from nousd.store.sqlite import store as sqlite
from tests.store.helpers import append, created, delta, run_ended, run_started, updated, whole_log

LATER = "2026-01-09T00:00:00.000000Z"

NO_UTF_8 = "CAST(X'6d65B3' AS TEXT)"
"""What SQLite takes for a text, as it does not look into one."""


async def written(path: Path) -> None:
    async with sqlite.open_store(path) as store:
        await append(store, created(), created("s2"), run_started(), delta("a"), delta("b"))
        await append(store, run_ended())


def damage(path: Path, table: str, column: str, value: str, where: str) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute(f"UPDATE {table} SET {column} = {value} WHERE {where}")
        assert connection.changes() == 1


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("type", NO_UTF_8),
        ("session_id", NO_UTF_8),
        ("line", "X'7bB3', schema_version = 1"),
        ("schema_version", "0"),
    ],
)
async def test_reading_an_event_that_is_damaged_fails_as_a_fault_of_the_log(
    column: str, value: str, tmp_path: Path
) -> None:
    path = tmp_path / "log.db"
    await written(path)
    damage(path, "events", column, value, "seq = 4")
    async with sqlite.open_store(path) as store:
        with pytest.raises(StoreError):
            await whole_log(store)


async def test_pruning_what_is_damaged_fails_and_the_log_is_written_on(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await written(path)
    damage(path, "events", "type", NO_UTF_8, "seq = 4")
    async with sqlite.open_store(path) as store:
        with pytest.raises(StoreError):
            await store.prune_deltas(Old(LATER, until=6))
        assert await append(store, created("s3"))


async def test_a_session_whose_row_is_damaged_cannot_be_changed_and_all_others_can(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.db"
    await written(path)
    damage(path, "sessions", "settings", "'[]'", "session_id = 's1'")
    async with sqlite.open_store(path) as store:
        with pytest.raises(StoreError):
            await append(store, updated(name="new"))
        assert await append(store, updated("s2", name="new"))
