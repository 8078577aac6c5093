"""Logs with gaps in their numbers: after an unclean exit, and after a salvage."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing
from itertools import count
from pathlib import Path

import apsw
import pytest

from nousd.store.interface import Store
from nousd.store.records import EventFilter, OldDeltas
from nousd.store.sqlite import store as sqlite
from nousd.store.sqlite.database import open_for_reading
from nousd.wire import events
from nousd.wire.events.base import TurnKey
from tests.store.helpers import (
    append,
    created,
    deleted,
    queue_update,
    queued,
    run_started,
    updated,
    whole_log,
)

GAP = 2**40
CALLS_MAX = 1000
STEPS_PER_CALL = 1000


def impatient(connection: apsw.Connection) -> apsw.Connection:
    """Make the connection fail after a million steps, fewer than the gap has blocks."""
    calls = count()
    connection.set_progress_handler(lambda: next(calls) > CALLS_MAX, STEPS_PER_CALL)
    return connection


def leave_gap(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("UPDATE log_state SET next_seq = ?", (GAP,))


IN_RUN = TurnKey(session_id="s1", run_id="r1", turn_id="1")
DELTAS = [events.MessageUpdate(**IN_RUN, message_id="m1", delta=delta) for delta in "ab"]


@pytest.fixture
async def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    """A store with a run and two inputs of one session, of which the later part follows the gap."""
    path = tmp_path / "log.db"
    async with sqlite.open_store(path) as opened:
        await append(opened, created("s1"), run_started("r1"))
        await append(opened, queue_update("accepted", queued("i1")))
        begin = events.MessageStart(**IN_RUN, message_id="m1", role="assistant")
        await append(opened, begin, DELTAS[0])
    leave_gap(path)
    monkeypatch.setattr(
        "nousd.store.sqlite.store.open_for_reading",
        lambda path: impatient(open_for_reading(path)),
    )
    async with sqlite.open_store(
        path, connect=lambda name: impatient(apsw.Connection(name))
    ) as opened:
        await append(opened, queue_update("accepted", queued("i2")))
        await append(opened, DELTAS[1], events.MessageEnd(**IN_RUN, message_id="m1", text="ab"))
        yield opened


@pytest.mark.parametrize(
    "wanted", [EventFilter(session_id="s1"), EventFilter(run_id="r1")], ids=repr
)
async def test_events_are_read_past_a_gap_without_stepping_through_it(
    store: Store, wanted: EventFilter
) -> None:
    log = await whole_log(store)
    assert log[0].seq < GAP <= log[-1].seq
    of_wanted = tuple(each for each in log if wanted.run_id in (None, each.run_id))
    assert await whole_log(store, wanted) == of_wanted


async def test_pending_inputs_are_found_on_both_sides_of_a_gap(store: Store) -> None:
    assert [each.input_id for each in await store.pending_inputs("s1")] == ["i1", "i2"]


async def test_deltas_on_both_sides_of_a_gap_are_joined(store: Store) -> None:
    await store.prune_deltas(OldDeltas("2999-01-01T00:00:00.000Z", 2 * GAP))
    [joined] = [each for each in await whole_log(store) if each.type == "message_update"]
    assert b'"delta":"ab"' in joined.line


async def test_a_session_is_deleted_on_both_sides_of_a_gap(store: Store) -> None:
    await append(store, created("s2"), updated("s2", name="kept"))
    await append(store, deleted("s1"))
    assert {each.session_id for each in (await whole_log(store))[:-1]} == {"s2"}
    assert await store.pending_inputs("s1") == ()
