"""Databases of earlier versions: lookups after the migration return what they contain.

The expected contents are read beforehand, row by row without indices, and filtered by the test.
Upcasting of events and failing migrations are tested in ``test_earlier_stores``.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nousd.admin.check.check import check
from nousd.store.records import EventFilter, OldDeltas, StoredEvent
from nousd.store.sqlite import store as sqlite
from nousd.wire.events import DELTA_EVENTS
from nousd.wire.objects.inputs import QueuedInput
from nousd.wire.objects.metrics import PendingInputs
from tests.harness.earlier_stores import (
    EARLIER,
    HELD,
    Held,
    StoredInput,
    rows,
    stored_inputs,
    unpack,
)
from tests.harness.lifecycle import LifecycleChecker
from tests.store.helpers import (
    NO_BOUND,
    append,
    deleted,
    queue_update,
    queued,
    run_ended,
    run_started,
    whole_log,
)

AFTER_EVERY = 20
"""Pages begin after every event with this distance in the log, and before the next one."""

NO_SESSION, NO_RUN = "sess-nosuch", "run-nosuch"


@pytest.fixture(params=EARLIER)
def name(request: pytest.FixtureRequest) -> str:
    """The name of a database of each earlier version."""
    name: str = request.param
    return name


@pytest.fixture
def held(name: str) -> Held:
    """The expected contents of that database."""
    return HELD[name]


@pytest.fixture
def path(name: str, tmp_path: Path) -> Path:
    """The path of that database."""
    path = tmp_path / "nousd.db"
    unpack(name, path)
    return path


# --- events ------------------------------------------------------------------------------------


def all_filters(path: Path) -> list[EventFilter]:
    """Return filters for every session, run and client call, for unknown ones, and for all pairs."""
    places = rows(path, "SELECT session_id, run_id FROM events WHERE +seq > 0")
    sessions = {session_id for session_id, _ in places} | {None, NO_SESSION}
    runs = {run_id for _, run_id in places} | {None, NO_RUN}
    return [EventFilter(*each) for each in product(sessions, runs)]


def matching(log: tuple[StoredEvent, ...], wanted: EventFilter) -> tuple[StoredEvent, ...]:
    """Return the events of a log that match a filter."""
    return tuple(
        event
        for event in log
        if wanted.session_id in (None, event.session_id)
        and wanted.run_id in (None, event.run_id)
        and (wanted.types is None or event.type in wanted.types)
    )


@pytest.mark.slow(keep=2)
async def test_events_are_found_by_session_run_or_both_in_log_order(
    path: Path,
) -> None:
    stored = rows(path, "SELECT seq, type, session_id, run_id FROM events ORDER BY +seq")
    async with sqlite.open_store(path) as store:
        log = await whole_log(store)
        assert [(e.seq, e.type, e.session_id, e.run_id) for e in log] == stored
        for wanted in all_filters(path):
            assert await whole_log(store, wanted) == matching(log, wanted), wanted


@pytest.mark.slow
async def test_pages_begin_after_any_number_and_end_at_their_upper_bound(
    path: Path,
) -> None:
    some = frozenset({"queue_update", "message_end", "tool_call_completed"})
    async with sqlite.open_store(path) as store:
        log = await whole_log(store)
        ends = [event.seq for event in log[::AFTER_EVERY]]
        after = sorted({0, *ends, *(seq - 1 for seq in ends), log[-1].seq})
        filters = [each for each in all_filters(path) if None in (each.session_id, each.run_id)]
        for cursor, wanted in product(after, filters):
            behind = tuple(event for event in matching(log, wanted) if event.seq > cursor)
            page = await store.events_after(cursor, wanted, limit=3, bytes_max=NO_BOUND)
            assert page == behind[:3], (cursor, wanted)
        for until, wanted in product(ends, filters):
            typed = EventFilter(wanted.session_id, wanted.run_id, some)
            before = tuple(event for event in matching(log, typed) if event.seq <= until)
            found = await store.events_after(
                0, typed, limit=NO_BOUND, bytes_max=NO_BOUND, until=until
            )
            assert found == before, (until, typed)


async def test_new_events_follow_the_migrated_ones(path: Path, held: Held) -> None:
    of_session, of_run = EventFilter(session_id=held.main), EventFilter(run_id=held.killed)
    async with sqlite.open_store(path) as store:
        in_session, in_run = await whole_log(store, of_session), await whole_log(store, of_run)
        [end] = await append(store, run_ended(held.killed, held.main, "interrupted"))
        [start] = await append(store, run_started("run-new", held.main))
        assert await whole_log(store, of_session) == (*in_session, end, start)
        assert await whole_log(store, of_run) == (*in_run, end)
        assert await whole_log(store, EventFilter(run_id="run-new")) == (start,)


@pytest.mark.slow(keep=1)
async def test_a_cursor_among_joined_deltas_is_reported_to_filters_that_select_them(
    path: Path,
) -> None:
    filters = all_filters(path)
    async with sqlite.open_store(path) as store:
        log = {event.seq: event for event in await whole_log(store)}
        joined = rows(path, "SELECT joined_from, seq FROM events WHERE +joined_from IS NOT NULL")
        cursors = {
            cursor for first, last in joined for cursor in (first - 1, first, last - 1, last)
        }
        for cursor, wanted in product({1, *cursors}, filters):
            around = tuple(log[last] for first, last in joined if first <= cursor < last)
            assert await store.is_pruned(cursor, wanted) == bool(matching(around, wanted))


async def test_joining_deltas_leaves_each_message_one_of_each_type(path: Path, held: Held) -> None:
    async with sqlite.open_store(path) as store:
        before = await whole_log(store)
        pruned = await store.prune_deltas(OldDeltas(ended_before="9999", until=NO_BOUND))
        assert pruned.deltas
        while pruned.more:
            pruned = await store.prune_deltas(OldDeltas(ended_before="9999", until=NO_BOUND))
        after = await whole_log(store)
    # It checks that the deltas of each message, joined or not, add up to its text.
    checker = LifecycleChecker()
    for event in after:
        checker.feed(event.line)
    kept = [event for event in after if event.type not in DELTA_EVENTS]
    assert kept == [event for event in before if event.type not in DELTA_EVENTS]
    deltas = Counter(
        delta_of(event)
        for event in after
        if event.type in DELTA_EVENTS and event.run_id != held.killed
    )
    assert set(deltas.values()) == {1}


def delta_of(event: StoredEvent) -> tuple[Any, ...]:
    """Return the type of a delta and the message, call or stream it belongs to."""
    payload = json.loads(event.line)["payload"]
    call = payload.get("tool_call_id"), payload.get("attempt")
    return event.type, payload.get("message_id"), *call, payload.get("stream")


# --- inputs ------------------------------------------------------------------------------------


def pending(inputs: list[StoredInput], session_id: str) -> tuple[QueuedInput, ...]:
    return tuple(
        msgspec.json.decode(each.body, type=QueuedInput)
        for each in inputs
        if (each.session_id, each.state) == (session_id, "pending")
    )


def sessions_of(path: Path) -> list[str]:
    return [session_id for (session_id,) in rows(path, "SELECT session_id FROM sessions")]


async def test_pending_inputs_of_each_session_keep_their_order(path: Path, held: Held) -> None:
    inputs = stored_inputs(path)
    async with sqlite.open_store(path) as store:
        for session_id in (*sessions_of(path), NO_SESSION):
            assert await store.pending_inputs(session_id) == pending(inputs, session_id)
        found = await store.pending_inputs(held.main)
        assert tuple((each.kind, each.text) for each in found) == held.waiting
        kinds = Counter(json.loads(each.body)["kind"] for each in inputs if each.state == "pending")
        assert await store.pending_counts() == PendingInputs.of(kinds, truncated=False)


async def test_an_input_is_found_by_its_client_message_id_only_in_its_session(path: Path) -> None:
    inputs = stored_inputs(path)
    first = {(each.session_id, each.client_message_id): each for each in reversed(inputs)}
    ids = {each.client_message_id for each in inputs if each.client_message_id is not None}
    assert ids
    async with sqlite.open_store(path) as store:
        for session_id, client_id in product((*sessions_of(path), NO_SESSION), (*ids, "c-nosuch")):
            found = await store.input_by_client_id(session_id, client_id)
            expected = first.get((session_id, client_id))
            assert (found is None) == (expected is None), (session_id, client_id)
            if found is not None and expected is not None:
                assert found.input == msgspec.json.decode(expected.body, type=QueuedInput)
                assert (found.session_id, found.state) == (session_id, expected.state)


@pytest.mark.slow(keep=2)
async def test_pending_inputs_can_be_promoted_consumed_and_cleared(path: Path, held: Held) -> None:
    async with sqlite.open_store(path) as store:
        steer, follow_up = await store.pending_inputs(held.main)
        promoted = msgspec.structs.replace(follow_up, kind="steer")
        new = queued("in-new", client_message_id="c-new")
        await append(store, queue_update("accepted", new, session_id=held.main))
        await append(store, queue_update("promoted", promoted, session_id=held.main))
        assert await store.pending_inputs(held.main) == (steer, new, promoted)
        await append(store, queue_update("consumed", steer, session_id=held.main))
        await append(store, queue_update("cleared", new, session_id=held.main))
        assert await store.pending_inputs(held.main) == (promoted,)
    states = {each.input_id: each.state for each in stored_inputs(path)}
    assert (states[steer.input_id], states[new.input_id]) == ("consumed", "cleared")
    check_sound(path)


def check_sound(path: Path) -> None:
    """Assert that the rows of a log match its events."""
    assert [found for found in check(path).findings if found.severity == "error"] == []


# --- deletion ----------------------------------------------------------------------------------

KEPT = {
    "inputs": "SELECT session_id, input_id, state, seq, position FROM inputs ORDER BY 1, 2",
    "entries": "SELECT session_id, entry_id, seq FROM entries ORDER BY 1, 2",
    "runs": "SELECT session_id, run_id, seq, status FROM runs ORDER BY 1, 2",
    "tool_calls": "SELECT session_id, seq, last_seq, state FROM tool_calls ORDER BY 1, 2",
    "artifact_uses": "SELECT session_id, artifact_id FROM artifact_uses ORDER BY 1, 2",
}
"""Queries for the rows of all sessions, with the session in the first column."""


@pytest.mark.slow
async def test_a_deleted_session_leaves_its_tombstone_and_does_not_affect_others(
    path: Path, tmp_path: Path
) -> None:
    async with sqlite.open_store(path) as store:
        log = await whole_log(store)
    inputs, kept = stored_inputs(path), {table: rows(path, KEPT[table]) for table in KEPT}
    for gone in {event.session_id for event in log}:
        copy = tmp_path / f"without-{gone}.db"
        shutil.copy(path, copy)
        async with sqlite.open_store(copy) as store:
            [tombstone] = await append(store, deleted(gone))
            while await store.drop_rows(gone):
                pass
            left = tuple(event for event in log if event.session_id != gone)
            assert await whole_log(store) == (*left, tombstone)
            assert await whole_log(store, EventFilter(session_id=gone)) == (tombstone,)
            for session_id in sessions_of(path):
                still = () if session_id == gone else pending(inputs, session_id)
                assert await store.pending_inputs(session_id) == still
        for table, before in kept.items():
            assert rows(copy, KEPT[table]) == [row for row in before if row[0] != gone], table
        orphans = "SELECT count(*) FROM entry_bodies WHERE seq NOT IN (SELECT seq FROM entries)"
        assert rows(copy, orphans) == [(0,)]
        check_sound(copy)
