"""A read that stops half-way, and the reads after it."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from nousd.errors import StoreError
from nousd.store.sqlite import store as sqlite
from tests.store.helpers import append, created, updated, whole_log


def breaks_off(connection: apsw.Connection) -> tuple[int, ...]:
    return tuple(unreadable(row) for row in connection.execute("SELECT seq FROM events"))


def unreadable(_: object) -> int:
    raise apsw.CorruptError("in the middle")


async def test_a_read_that_broke_off_does_not_hold_later_ones_at_its_own_moment(
    tmp_path: Path,
) -> None:
    async with sqlite.open_store(tmp_path / "log.db") as store:
        await append(store, created(), updated())
        # Whoever keeps the error keeps its frames, and with them the statement that is half done.
        assert isinstance(store, sqlite.SqliteStore)
        with pytest.raises(StoreError) as kept:
            await store._readers.read(breaks_off)
        await append(store, updated())
        assert len(await whole_log(store)) == 3
        assert kept.value.__cause__ is not None
