"""Rows changed by the disk: requests that need one get an error, all others continue."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from nousd.errors import StoreError
from nousd.store.records import OldDeltas
from nousd.store.sqlite import store as sqlite
from tests.store.helpers import append, created, delta, run_ended, run_started, updated, whole_log

LATER = "2026-01-09T00:00:00.000000Z"

NO_UTF_8 = "CAST(X'6d65B3' AS TEXT)"
"""A value that SQLite accepts as text, since it does not validate the encoding."""


async def write_log(path: Path) -> None:
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
async def test_reading_a_damaged_event_raises_store_error(
    column: str, value: str, tmp_path: Path
) -> None:
    path = tmp_path / "log.db"
    await write_log(path)
    damage(path, "events", column, value, "seq = 4")
    async with sqlite.open_store(path) as store:
        with pytest.raises(StoreError):
            await whole_log(store)


async def test_pruning_a_damaged_event_fails_and_appending_still_works(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await write_log(path)
    damage(path, "events", "type", NO_UTF_8, "seq = 4")
    async with sqlite.open_store(path) as store:
        with pytest.raises(StoreError):
            await store.prune_deltas(OldDeltas(LATER, until=6))
        assert await append(store, created("s3"))


async def test_updating_a_session_with_a_damaged_row_fails_and_others_can_be_updated(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.db"
    await write_log(path)
    damage(path, "sessions", "settings", "'[]'", "session_id = 's1'")
    async with sqlite.open_store(path) as store:
        with pytest.raises(StoreError):
            await append(store, updated(name="new"))
        assert await append(store, updated("s2", name="new"))
