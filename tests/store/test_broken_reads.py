"""A read that is aborted, and the reads after it."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from nousd.errors import StoreError
from nousd.store.sqlite import store as sqlite
from tests.store.helpers import append, created, updated, whole_log


def aborted_read(connection: apsw.Connection) -> tuple[int, ...]:
    return tuple(raise_corrupt(row) for row in connection.execute("SELECT seq FROM events"))


def raise_corrupt(_: object) -> int:
    raise apsw.CorruptError("in the middle")


async def test_an_aborted_read_does_not_pin_the_snapshot_of_later_reads(
    tmp_path: Path,
) -> None:
    async with sqlite.open_store(tmp_path / "log.db") as store:
        await append(store, created(), updated())
        # The error holds its frames, and with them the unfinished statement.
        assert isinstance(store, sqlite.SqliteStore)
        with pytest.raises(StoreError) as kept:
            await store._readers.read(aborted_read)
        await append(store, updated())
        assert len(await whole_log(store)) == 3
        assert kept.value.__cause__ is not None
