"""Logs of thousands of events, on every store: lookups by session and run."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
import trio

from nousd.store.interface import Store
from nousd.store.records import EventFilter, OldDeltas, StoredEvent
from nousd.store.schema.m006_blocks_of_events import EVENTS_PER_BLOCK
from nousd.wire import events
from nousd.wire.events.base import TurnKey
from tests.harness.daemon import WAIT_SECONDS
from tests.store.helpers import (
    EVERYTHING,
    NO_BOUND,
    append,
    created,
    deleted,
    delta,
    queue_update,
    queued,
    run_ended,
    run_started,
    updated,
    whole_log,
)

LONG = 3 * EVENTS_PER_BLOCK + 100
"""The number of events that fill three blocks and part of a fourth."""


async def append_interleaved(store: Store) -> tuple[StoredEvent, ...]:
    """Append a long log in which sessions and runs alternate with different frequencies."""
    await append(store, *(created(f"s{number}") for number in range(4)))
    happened: list[events.Event] = []
    for number in range(LONG):
        # s1 is frequent, s2 less so, s3 occurs less than once per block.
        rare = 3 if number % 1500 == 7 else 2 if number % 37 == 5 else 1
        happened.append(delta(str(number), f"r{rare}-{number // 900}", f"s{rare}"))
    for at in range(0, LONG, 500):
        await append(store, *happened[at : at + 500])
    await append(store, updated("s3", name="last"))
    return await whole_log(store)


async def read_in_pages(store: Store, wanted: EventFilter, limit: int) -> list[StoredEvent]:
    found: list[StoredEvent] = []
    page = await store.events_after(0, wanted, limit=limit, bytes_max=NO_BOUND)
    while page:
        found += page
        page = await store.events_after(page[-1].seq, wanted, limit=limit, bytes_max=NO_BOUND)
    return found


FILTERS = [
    EventFilter(session_id="s0"),
    EventFilter(session_id="s1"),
    EventFilter(session_id="s2"),
    EventFilter(session_id="s3"),
    EventFilter(session_id="nobody"),
    EventFilter(run_id="r1-0"),
    EventFilter(run_id="r2-1"),
    EventFilter(run_id="r3-3"),
    EventFilter(run_id="r2-1", session_id="s1"),
    EventFilter(session_id="s3", types=frozenset({"session_updated"})),
]


def matches(event: StoredEvent, wanted: EventFilter) -> bool:
    return (
        wanted.session_id in (None, event.session_id)
        and wanted.run_id in (None, event.run_id)
        and (wanted.types is None or event.type in wanted.types)
    )


@pytest.mark.slow(keep=8)
@pytest.mark.parametrize("wanted", FILTERS, ids=repr)
@pytest.mark.parametrize("limit", [97, NO_BOUND])
async def test_pages_hold_each_event_of_a_session_or_run_once_and_in_order(
    store: Store, wanted: EventFilter, limit: int
) -> None:
    log = await append_interleaved(store)
    assert await read_in_pages(store, wanted, limit) == [
        each for each in log if matches(each, wanted)
    ]


EDGES = [EVENTS_PER_BLOCK + offset for offset in (-2, -1, 0, 1)]


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize("after", EDGES)
@pytest.mark.parametrize("until", [2 * EVENTS_PER_BLOCK - 1, 2 * EVENTS_PER_BLOCK, NO_BOUND])
async def test_a_page_may_begin_and_end_at_the_edge_of_a_block(
    store: Store, after: int, until: int
) -> None:
    log = await append_interleaved(store)
    wanted = EventFilter(session_id="s1")
    page = await store.events_after(after, wanted, until=until, limit=NO_BOUND, bytes_max=NO_BOUND)
    assert page == tuple(
        each for each in log if matches(each, wanted) and after < each.seq <= until
    )


async def test_deleting_a_session_removes_only_its_events_from_every_block(
    store: Store,
) -> None:
    log = await append_interleaved(store)
    await append(store, deleted("s2"))
    left = await whole_log(store)
    assert left[:-1] == tuple(each for each in log if each.session_id != "s2")
    assert (left[-1].type, left[-1].session_id) == ("session_deleted", "s2")
    assert await read_in_pages(store, EventFilter(session_id="s2"), 100) == [left[-1]]


async def test_pending_inputs_keep_their_order_however_far_apart_they_were_accepted(
    store: Store,
) -> None:
    await append(store, created("s1"), created("s2"))
    noise = [delta(str(number)) for number in range(EVENTS_PER_BLOCK)]
    accepted = {"s1": [queued(f"a{number}") for number in range(8)]}
    accepted["s2"] = [queued(f"b{number}") for number in range(8)]
    for pair in range(0, 8, 2):
        for session_id, inputs in accepted.items():
            two = inputs[pair : pair + 2]
            await append(store, queue_update("accepted", *two, session_id=session_id))
        await append(store, *noise)
    consumed = accepted["s1"].pop(3)
    await append(store, queue_update("consumed", consumed, session_id="s1"))
    # Inputs accepted together, so that their block has none of this session any more.
    cleared, accepted["s1"] = accepted["s1"][:2], accepted["s1"][2:]
    await append(store, queue_update("cleared", *cleared, session_id="s1"))
    for session_id, inputs in accepted.items():
        assert await store.pending_inputs(session_id) == tuple(inputs)
    await append(store, deleted("s1"))
    assert await store.pending_inputs("s1") == ()
    assert await store.pending_inputs("s2") == tuple(accepted["s2"])


async def test_inputs_of_two_sessions_may_share_an_id(store: Store) -> None:
    mine, other = queued("same", text="mine"), queued("same", text="other")
    await append(store, created("s1"), created("s2"))
    await append(store, queue_update("accepted", mine, session_id="s1"))
    await append(store, queue_update("accepted", other, session_id="s2"))
    await append(store, queue_update("consumed", mine, session_id="s1"))
    assert await store.pending_inputs("s1") == ()
    assert await store.pending_inputs("s2") == (other,)


THEN = "2026-01-02T00:00:00.000000Z"
LATER = "2026-01-05T00:00:00.000000Z"


def message_events(
    run_id: str, pieces: int
) -> tuple[list[events.Event], Callable[[], list[events.Event]]]:
    """Return the start and deltas of a message, and a function that makes its end."""
    turn = TurnKey(session_id="s1", run_id=run_id, turn_id="1")
    name = f"m-{run_id}"
    deltas = [
        events.MessageUpdate(**turn, message_id=name, delta=f"{number} ")
        for number in range(pieces)
    ]
    text = "".join(each.delta for each in deltas)
    return (
        [events.MessageStart(**turn, message_id=name, role="assistant"), *deltas],
        lambda: [events.MessageEnd(**turn, message_id=name, text=text)],
    )


async def test_deltas_of_a_message_are_joined_across_blocks(
    store: Store,
) -> None:
    pieces = 2 * EVENTS_PER_BLOCK
    (mine, mine_ends), (other, _) = message_events("r1", pieces), message_events("r2", pieces)
    await append(store, created(), run_started("r1"), run_started("r2"), ts=THEN)
    for at in count(0, 250):
        both = [*mine[at : at + 250], *other[at : at + 250]]
        if not both:
            break
        await append(store, *both, ts=THEN)
    await append(store, *mine_ends(), run_ended("r1"), ts=THEN)
    with trio.fail_after(WAIT_SECONDS):
        while (await store.prune_deltas(OldDeltas(LATER, NO_BOUND))).more:
            pass
    of_mine = await whole_log(store, EventFilter(run_id="r1"))
    (joined,) = [each for each in of_mine if each.type == "message_update"]
    assert b'"delta":"0 1 2 3 ' in joined.line
    of_other = await whole_log(store, EventFilter(run_id="r2"))
    assert len([each for each in of_other if each.type == "message_update"]) == pieces
    assert len(await whole_log(store, EVERYTHING)) == len(of_mine) + len(of_other) + 1
