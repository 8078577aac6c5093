"""The checksums of events in a log that a daemon wrote, restarted and failed to write."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from nousd.admin.check.check import check
from nousd.errors import StoreError
from nousd.store.sqlite import store as sqlite
from nousd.store.sqlite.commits import Commits
from tests.admin.logs import a_run
from tests.store.helpers import append, created, deleted, updated


def checksums(path: Path) -> list[tuple[str, bool, bool]]:
    """Return type, and which of the two checksums are known, of each event."""
    with closing(apsw.Connection(str(path))) as connection:
        query = "SELECT type, line_crc IS NOT NULL, previous_crc IS NOT NULL FROM events"
        return [(type_, bool(own), bool(one)) for type_, own, one in connection.execute(query)]


async def test_a_session_begins_anew_behind_a_start_and_deltas_have_no_checksum(
    tmp_path: Path,
) -> None:
    path = tmp_path / "nousd.db"
    async with sqlite.open_store(path) as store:
        await append(store, created("s1"), created("s2"))
        await append(store, *a_run("r1", "s1"), updated("s2", model="m"))
    async with sqlite.open_store(path) as store:
        await append(store, updated("s1", model="m"))
    found = checksums(path)
    assert {own for type_, own, _ in found if type_ == "message_update"} == {False}
    durable = [(type_, one) for type_, own, one in found if own]
    assert durable[:3] == [("session_created", False)] * 2 + [("agent_start", True)]
    assert durable[-2:] == [("session_updated", True), ("session_updated", False)]
    assert check(path).errors == 0


async def test_what_could_not_be_written_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "nousd.db"
    async with sqlite.open_store(path) as store:
        await append(store, created("s1"))
        with monkeypatch.context() as failing:

            def fail(_: Commits) -> None:
                raise apsw.IOError("the disk is broken")

            failing.setattr(Commits, "_commit_transaction", fail)
            with pytest.raises(StoreError):
                await append(store, updated("s1", model="lost"))
        await append(store, updated("s1", model="m"))
        await append(store, updated("s1", model="n"))
    assert check(path).errors == 0
    assert [one for _, _, one in checksums(path)] == [False, False, True]


async def test_a_deleted_session_leaves_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "nousd.db"
    async with sqlite.open_store(path) as store:
        await append(store, created("s1"), created("s2"))
        await append(store, *a_run("r1", "s1"), updated("s2", model="m"))
        await append(store, deleted("s1"))
        await append(store, updated("s2", model="n"))
    assert check(path).errors == 0
