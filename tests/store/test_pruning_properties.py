"""Any log, pruned in any steps: both stores agree, texts and rows stay, no reader loses or repeats."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from nousd.daemon.eventlog import hub as hubs
from nousd.daemon.eventlog.hub import Hub
from nousd.store import pruning as _pruning
from nousd.store.interface import Store
from nousd.store.memory import store as memory
from nousd.store.records import EventFilter, OldDeltas, StoredEvent
from nousd.store.sqlite import store as sqlite
from nousd.wire import events
from nousd.wire.codec.envelope import decode_event, event_in
from nousd.wire.events import DELTA_EVENTS
from nousd.wire.events.base import TurnKey
from tests.store.helpers import (
    EVERYTHING,
    NO_BOUND,
    append,
    created,
    run_ended,
    run_started,
    whole_log,
)
from tests.store.test_pruning import (
    check_replay,
    message_ended,
    message_started,
    reasoning_delta,
    text_delta,
    texts_of,
    tool_call,
)
from tests.store.test_same_answers import in_a_folder, thorough

THEN = "2026-01-02T00:00:00.000000Z"
CUTOFF = "2026-01-05T00:00:00.000000Z"
NOW = "2026-01-09T00:00:00.000000Z"
OLD = OldDeltas(CUTOFF, until=NO_BOUND)
RUNS = ("r1", "r2", "r3")

# --- any log -------------------------------------------------------------------------------------

pieces = st.tuples(st.sampled_from([text_delta, reasoning_delta]), st.text(max_size=3))
messages = st.lists(pieces, max_size=8)


def message_events(message_id: str, parts: Sequence[Any], run_id: str) -> list[events.Event]:
    text = "".join(piece for tell, piece in parts if tell is text_delta)
    return [
        message_started(message_id, run_id=run_id),
        *(tell(message_id, piece, run_id=run_id) for tell, piece in parts),
        message_ended(message_id, text, run_id=run_id),
    ]


def of_run(run_id: str, event: events.Event) -> events.Event:
    return msgspec.structs.replace(event, run_id=run_id)


@st.composite
def runs(draw: st.DrawFn, run_id: str) -> list[events.Event]:
    """Draw a run of one turn, possibly truncated."""
    where = TurnKey(session_id="s1", run_id=run_id, turn_id="1")
    happened: list[events.Event] = [run_started(run_id), events.TurnStart(**where)]
    for number in range(draw(st.integers(0, 3))):
        name = f"{run_id}-{number}"
        happened += message_events(name, draw(messages), run_id)
        outputs = draw(st.lists(st.text(max_size=3), max_size=4))
        happened += [of_run(run_id, event) for event in tool_call(f"{name}.0", *outputs)]
    happened += [events.TurnEnd(**where), run_ended(run_id)]
    return happened[: draw(st.integers(1, len(happened)))]


@st.composite
def logs(draw: st.DrawFn) -> list[events.Event]:
    """Draw concurrent runs with their events interleaved."""
    waiting = [draw(runs(run_id)) for run_id in RUNS]
    order = draw(
        st.permutations([index for index, run in enumerate(waiting) for _ in range(len(run))])
    )
    return [created(), *(waiting[index].pop(0) for index in order)]


async def fill(store: Store, log: Sequence[events.Event], old: int) -> None:
    await append(store, *log[:old], ts=THEN)
    await append(store, *log[old:], ts=NOW)


def small_steps(deltas: int, places: int) -> Any:
    return patch.multiple(_pruning, DELTAS_PER_STEP=deltas, EVENTS_PER_STEP=places)


async def rows(store: Store) -> list[Any]:
    return [
        (await store.sessions(limit=NO_BOUND, before=None)).rows,
        await store.runs(None, limit=NO_BOUND, before=None),
        await store.open_runs(),
        await store.defaults(),
    ]


cursor_filters = st.sampled_from(
    [EVERYTHING, EventFilter(run_id="r1"), EventFilter(types=frozenset({"message_update"}))]
)


@pytest.mark.slow
@thorough
@given(logs(), st.data())
def test_both_stores_prune_alike_step_by_step(log: list[events.Event], data: st.DataObject) -> None:
    old = data.draw(st.integers(0, len(log)))
    deltas, places = data.draw(st.integers(3, 8)), data.draw(st.integers(1, 20))

    async def check(path: Path) -> None:
        async with memory.open_store() as expected, sqlite.open_store(path) as store:
            await fill(expected, log, old)
            await fill(store, log, old)
            more = True
            while more:
                pruned = await expected.prune_deltas(OLD)
                assert await store.prune_deltas(OLD) == pruned
                assert await whole_log(store) == await whole_log(expected)
                more = pruned.more
            for cursor in range(len(log) + 1):
                wanted = data.draw(cursor_filters)
                answer = await expected.is_pruned(cursor, wanted)
                assert await store.is_pruned(cursor, wanted) is answer

    with small_steps(deltas, places):
        in_a_folder(check)


@thorough
@given(logs(), st.data())
def test_a_pruned_log_has_the_same_texts_and_folds_to_the_same_rows(
    log: list[events.Event], data: st.DataObject
) -> None:
    deltas = data.draw(st.integers(3, 8))

    async def check(path: Path) -> None:
        async with sqlite.open_store(path) as store, memory.open_store() as again:
            before = await append(store, *log, ts=THEN)
            expected = await rows(store)
            more = True
            while more:
                more = (await store.prune_deltas(OLD)).more
            pruned = await whole_log(store)
            assert texts_of(pruned) == texts_of(before)
            assert in_two(pruned)[0] == in_two(before)[0]
            assert_pruned_as_far_as_possible(pruned)
            assert await rows(store) == expected
            await fold_again(pruned, again)
            assert as_lists(await rows(again)) == as_lists(expected)

    with small_steps(deltas, 7):
        in_a_folder(check)


def in_two(log: Sequence[StoredEvent]) -> tuple[list[StoredEvent], list[StoredEvent]]:
    """Return the events other than deltas, and the deltas."""
    others = [event for event in log if event.type not in DELTA_EVENTS]
    return others, [event for event in log if event.type in DELTA_EVENTS]


def assert_pruned_as_far_as_possible(log: Sequence[StoredEvent]) -> None:
    payloads = [json.loads(event.line)["payload"] for event in log]
    ended = {
        payload["message_id"] if event.type == "message_end" else payload["tool_call_id"]
        for event, payload in zip(log, payloads, strict=True)
        if event.type in ("message_end", "tool_execution_end")
    }
    lines = [
        (event.type, payload.get("message_id") or payload["tool_call_id"])
        for event, payload in zip(log, payloads, strict=True)
        if event.type in DELTA_EVENTS
    ]
    of_ended = [line for line in lines if line[1] in ended]
    assert len(of_ended) == len(set(of_ended))


async def fold_again(log: Sequence[StoredEvent], store: Store) -> None:
    for event in log:
        line = decode_event(event.line)
        await append(store, event_in(line), ts=line.ts)


def as_lists(answers: list[Any]) -> list[Any]:
    """Return the answers with tuples as lists, so that they can be compared."""
    return [list(answer) if isinstance(answer, tuple) else answer for answer in answers]


# --- any reader ----------------------------------------------------------------------------------


class Reader:
    """A client that follows protocol/semantics/reading-back.md and checks its guarantees."""

    def __init__(self, after: int, wanted: EventFilter) -> None:
        self.cursor = after
        self.wanted = wanted
        self.others: list[bytes] = []
        self._last_id = after
        self._deltas: dict[tuple[str, str], list[tuple[int, str]]] = {}

    async def read(self, hub: Hub) -> None:
        page, self.cursor = await hub.page_after(self.cursor, self.wanted)
        for line in page.splitlines(keepends=True):
            self._take(line)

    def _take(self, line: bytes) -> None:
        event = json.loads(line)
        seq = number(event["id"])
        assert seq > self._last_id, f"{seq} after {self._last_id}"
        self._last_id = seq
        if event["type"] not in DELTA_EVENTS:
            self.others.append(line)
            return
        payload = event["payload"]
        key = (payload.get("message_id") or payload["tool_call_id"], event["type"])
        begin = number(payload.get("joined_from", event["id"]))
        earlier = [(at, piece) for at, piece in self._deltas.get(key, []) if at < begin]
        self._deltas[key] = [*earlier, (seq, payload["delta"])]

    @property
    def texts(self) -> dict[tuple[str, str], str]:
        return {key: "".join(piece for _, piece in told) for key, told in self._deltas.items()}


def number(event_id: str) -> int:
    return int(event_id.removeprefix("evt-"))


actions = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 12)),
        st.tuples(st.just("prune"), st.integers(1, 3)),
        st.tuples(st.just("release"), st.just(0)),
        st.tuples(st.just("read"), st.integers(0, 2)),
    ),
    max_size=60,
)
READERS: list[EventFilter] = [
    EVERYTHING,
    EventFilter(run_id="r2"),
    EventFilter(types=frozenset({"message_update", "message_end"})),
]


async def play(store: Store, log: Sequence[events.Event], steps: Sequence[tuple[str, int]]) -> None:
    hub = Hub(store)
    readers = [Reader(0, wanted) for wanted in READERS]
    waiting = list(log)

    async def append_some(count: int) -> None:
        hub.publish(await append(store, *waiting[:count], ts=THEN))
        del waiting[:count]

    async def prune_some(count: int) -> None:
        for _ in range(count):
            await store.prune_deltas(OldDeltas(CUTOFF, hub.window_start))

    async def read_some(index: int) -> None:
        await readers[index].read(hub)

    async def release(_: int) -> None:
        hub.release(CUTOFF)

    do: dict[str, Callable[[int], Any]] = {
        "append": append_some,
        "prune": prune_some,
        "release": release,
        "read": read_some,
    }
    for name, argument in steps:
        await do[name](argument)
    await append_some(len(waiting))
    for reader in readers:
        while reader.cursor < hub.head:
            await reader.read(hub)
        await check_reader(reader, store, log)


async def check_reader(reader: Reader, store: Store, log: Sequence[events.Event]) -> None:
    async with memory.open_store() as unpruned:
        await append(unpruned, *log, ts=THEN)
        expected = await whole_log(unpruned, reader.wanted)
    assert reader.texts == texts_of(expected)
    assert reader.others == [event.line for event in in_two(expected)[0]]


@pytest.mark.behaviour("pruning_overtakes_no_reader")
@thorough
@given(logs(), actions, st.data())
def test_no_reader_has_a_gap_or_a_repetition_whatever_the_timing(
    log: list[events.Event], steps: list[tuple[str, int]], data: st.DataObject
) -> None:
    deltas, window = data.draw(st.integers(3, 6)), data.draw(st.integers(2, 12))

    async def check() -> None:
        async with memory.open_store() as store:
            await play(store, log, steps)
            await check_replay_of_whole_runs(store, log)

    small: dict[str, Any] = {
        "WINDOW_EVENTS_MAX": window,
        "PAGE_EVENTS": data.draw(st.integers(1, 5)),
    }
    with small_steps(deltas, 5), patch.multiple(hubs, **small):
        trio.run(check)


async def check_replay_of_whole_runs(store: Store, log: Sequence[events.Event]) -> None:
    ended = {event.run_id for event in log if isinstance(event, events.AgentEnd)}
    if len(ended) == len(RUNS):
        await check_replay(store)
