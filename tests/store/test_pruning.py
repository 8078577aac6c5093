"""Joining old deltas, on every store: which are joined, which are kept, and how readers notice."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
import trio
from msgspec import UNSET
from trio.testing import wait_all_tasks_blocked

from nousd.errors import StoreError
from nousd.store import pruning as _pruning
from nousd.store.interface import Store
from nousd.store.records import EventFilter, OldDeltas, PruneResult
from nousd.store.sqlite import pruning as _pruning_sqlite
from nousd.store.sqlite import store as sqlite
from nousd.store.sqlite.database import open_for_writing
from nousd.wire import events
from nousd.wire.events.base import TurnKey
from tests.harness.daemon import WAIT_SECONDS
from tests.harness.lifecycle import LifecycleChecker
from tests.harness.validation import check_event
from tests.store.helpers import (
    EVERYTHING,
    NO_BOUND,
    Outcomes,
    Watch,
    append,
    created,
    deleted,
    run_ended,
    run_started,
    whole_log,
)

THEN = "2026-01-02T00:00:00.000000Z"
CUTOFF = "2026-01-05T00:00:00.000000Z"
NOW = "2026-01-09T00:00:00.000000Z"
STORES = Path(__file__).resolve().parents[2] / "fixtures" / "stores"


def turn(run_id: str = "r1", session_id: str = "s1") -> TurnKey:
    return {"session_id": session_id, "run_id": run_id, "turn_id": "1"}


def message_started(message_id: str, **where: str) -> events.MessageStart:
    return events.MessageStart(**turn(**where), message_id=message_id, role="assistant")


def text_delta(message_id: str, text: str, **where: str) -> events.MessageUpdate:
    return events.MessageUpdate(**turn(**where), message_id=message_id, delta=text)


def reasoning_delta(message_id: str, text: str, **where: str) -> events.ReasoningUpdate:
    return events.ReasoningUpdate(**turn(**where), message_id=message_id, delta=text)


def message_ended(message_id: str, text: str, **where: str) -> events.MessageEnd:
    return events.MessageEnd(**turn(**where), message_id=message_id, text=text)


def message(message_id: str, *texts: str, **where: str) -> list[events.Event]:
    return [
        message_started(message_id, **where),
        *(text_delta(message_id, text, **where) for text in texts),
        message_ended(message_id, "".join(texts), **where),
    ]


def tool_call(call_id: str, *texts: str) -> list[events.Event]:
    return [
        events.ToolExecutionStart(**turn(), tool_call_id=call_id, tool_name="bash", args={}),
        *(
            events.ToolExecutionUpdate(**turn(), tool_call_id=call_id, tool_name="bash", delta=text)
            for text in texts
        ),
        events.ToolExecutionEnd(
            **turn(),
            tool_call_id=call_id,
            tool_name="bash",
            result="".join(texts),
            is_error=False,
            executed=True,
        ),
    ]


def turn_of(*parts: list[events.Event]) -> list[events.Event]:
    """Return the events of a complete run of one turn."""
    inside = [event for part in parts for event in part]
    turn_start, turn_end = events.TurnStart(**turn()), events.TurnEnd(**turn())
    return [created(), run_started(), turn_start, *inside, turn_end, run_ended()]


def old(ended_before: str = CUTOFF, until: int = NO_BOUND) -> OldDeltas:
    return OldDeltas(ended_before, until)


async def prune(store: Store, ended_before: str = CUTOFF, until: int = NO_BOUND) -> int:
    """Prune to the end and return the number of lines removed."""
    gone = 0
    with trio.fail_after(WAIT_SECONDS):
        while True:
            pruned = await store.prune_deltas(old(ended_before, until))
            gone += pruned.deltas
            if not pruned.more:
                return gone


async def numbered_deltas(
    store: Store, wanted: EventFilter = EVERYTHING
) -> list[tuple[int, str, Any]]:
    """Return the number of each event, with the text and the first number of deltas."""
    found = []
    for event in await whole_log(store, wanted):
        payload = json.loads(event.line)["payload"]
        found.append((event.seq, payload.get("delta"), payload.get("joined_from")))
    return found


async def check_replay(store: Store) -> None:
    checker = LifecycleChecker()
    for event in await whole_log(store):
        check_event(event.line)
        checker.feed(event.line)
    checker.finish()


# --- joined deltas -------------------------------------------------------------------------------


async def test_the_deltas_of_a_finished_message_become_one(store: Store) -> None:
    stored = await append(store, *message("m1", "he", "l", "lo"), ts=THEN)
    before = json.loads(stored[3].line)
    assert await prune(store) == 2
    start, update, end = await whole_log(store)
    assert (start, end) == (stored[0], stored[4])
    before["payload"].update(delta="hello", joined_from="evt-2")
    assert json.loads(update.line) == before
    assert update.line.endswith(b"}\n")
    assert msgspec.structs.replace(update, line=b"") == msgspec.structs.replace(stored[3], line=b"")


async def test_deltas_of_each_type_are_joined_separately(store: Store) -> None:
    parts = [
        reasoning_delta("m1", "hm"),
        text_delta("m1", "a"),
        reasoning_delta("m1", "m"),
        text_delta("m1", "b"),
    ]
    await append(store, message_started("m1"), *parts, message_ended("m1", "ab"), ts=THEN)
    await prune(store)
    assert await numbered_deltas(store) == [
        (1, None, None),
        (4, "hmm", "evt-2"),
        (5, "ab", "evt-3"),
        (6, None, None),
    ]


@pytest.mark.parametrize(
    ("streams", "joined"),
    [
        (["stderr", "stderr"], "stderr"),
        (["stdout", "stderr"], None),
        ([UNSET, "stderr"], None),
        ([UNSET, UNSET], None),
    ],
)
async def test_joined_output_has_the_stream_that_all_of_it_has(
    store: Store, streams: list[Any], joined: str | None
) -> None:
    start, *updates, end = tool_call("m1.0", "one\n", "two\n")
    told = [
        msgspec.structs.replace(update, stream=stream)
        for update, stream in zip(updates, streams, strict=True)
    ]
    await append(store, start, *told, end, ts=THEN)
    await prune(store)
    [_, update, _] = [json.loads(event.line)["payload"] for event in await whole_log(store)]
    assert (update["delta"], update.get("stream")) == ("one\ntwo\n", joined)


async def test_tool_output_is_joined(store: Store) -> None:
    await append(store, *tool_call("m1.0", "one\n", "two\n"), ts=THEN)
    await prune(store)
    assert await numbered_deltas(store) == [
        (1, None, None),
        (3, "one\ntwo\n", "evt-2"),
        (4, None, None),
    ]


def client_call(call_id: str, *texts: str) -> list[events.Event]:
    """Return the events of a call made by a client, outside of any run."""
    keys: Any = {"session_id": "s1", "tool_call_id": call_id, "attempt": 1, "tool_name": "bash"}
    return [
        events.ToolCallRequested(**keys, args={}),
        events.ToolCallApproved(**keys, by="policy", reason=""),
        events.ToolCallStarted(**keys),
        *(events.ToolCallOutput(**keys, delta=text) for text in texts),
        events.ToolCallCompleted(**keys, is_error=False, duration_ms=1, result="".join(texts)),
    ]


async def test_the_output_of_each_client_call_is_joined_separately(
    store: Store,
) -> None:
    await append(store, created(), ts=THEN)
    one, other = client_call("call-1", "a", "b"), client_call("call-2", "x", "y", "z")
    mixed = [*one[:4], *other[:5], *one[4:], *other[5:]]
    await append(store, *mixed, ts=THEN)
    assert await prune(store) == 3
    texts = {delta for _, delta, _ in await numbered_deltas(store) if delta}
    assert texts == {"ab", "xyz"}
    await check_replay(store)
    assert await prune(store) == 0


def late_call(call_id: str, *texts: str) -> tuple[list[events.Event], list[events.Event]]:
    """Return the steps of a call that waits for its bracket, and the bracket."""
    keys: Any = {**turn(), "tool_call_id": call_id, "attempt": 1, "tool_name": "bash"}
    result = "".join(texts)
    steps: list[events.Event] = [
        events.ToolCallRequested(**keys, args={}),
        events.ToolCallApproved(**keys, by="policy", reason=""),
        events.ToolCallStarted(**keys),
        *(events.ToolCallOutput(**keys, delta=text) for text in texts),
        events.ToolCallCompleted(**keys, is_error=False, duration_ms=1, result=result),
    ]
    return steps, tool_call(call_id, *texts)


async def test_the_output_of_calls_that_overlap_is_joined_separately(store: Store) -> None:
    one, its_bracket = late_call("m1.0", "a", "b", "c")
    other, other_bracket = late_call("m1.1", "x", "y")
    text = message("m1", "t", "u", "v")
    steps = [*one[:4], *other[:4], one[4], other[4], one[5], *other[5:], one[6]]
    inside = [*text[:2], *steps[:7], text[2], *steps[7:], *text[3:], *its_bracket, *other_bracket]
    await append(store, *turn_of(inside), ts=THEN)
    assert await prune(store) == 2 + 2 + 1 + 2 + 1
    found = [delta for _, delta, _ in await numbered_deltas(store) if delta]
    assert sorted(found) == ["abc", "abc", "tuv", "xy", "xy"]
    await check_replay(store)
    assert await prune(store) == 0


async def test_events_other_than_deltas_stay_unchanged(store: Store) -> None:
    aside = events.Status(**turn(), message="busy")
    stored = await append(
        store,
        message_started("m1"),
        text_delta("m1", "a"),
        aside,
        text_delta("m1", "b"),
        message_ended("m1", "ab"),
        ts=THEN,
    )
    await prune(store)
    after = await whole_log(store)
    assert [event.seq for event in after] == [1, 3, 4, 5]
    assert (after[0], after[1], after[3]) == (stored[0], stored[2], stored[4])


async def test_a_single_delta_is_not_rewritten(store: Store) -> None:
    happened = [*message("m1", "hello"), *tool_call("m1.0", "there"), *message("m2")]
    stored = await append(store, *happened, ts=THEN)
    assert await prune(store) == 0
    assert await whole_log(store) == stored


async def test_deltas_of_different_runs_are_not_joined(store: Store) -> None:
    mixed = [
        message_started("m1"),
        message_started("m2", run_id="r2"),
        text_delta("m1", "a"),
        text_delta("m2", "x", run_id="r2"),
        text_delta("m1", "b"),
        text_delta("m2", "y", run_id="r2"),
        message_ended("m1", "ab"),
        text_delta("m2", "z", run_id="r2"),
        message_ended("m2", "xyz", run_id="r2"),
    ]
    await append(store, *mixed, ts=THEN)
    await prune(store)
    ours, theirs = EventFilter(run_id="r1"), EventFilter(run_id="r2")
    assert await numbered_deltas(store, ours) == [
        (1, None, None),
        (5, "ab", "evt-3"),
        (7, None, None),
    ]
    assert await numbered_deltas(store, theirs) == [
        (2, None, None),
        (8, "xyz", "evt-4"),
        (9, None, None),
    ]


async def test_deltas_of_different_messages_are_not_joined(store: Store) -> None:
    await append(store, *message("m1", "a", "b"), *message("m2", "c", "d"), ts=THEN)
    await prune(store)
    assert [text for _, text, _ in await numbered_deltas(store) if text] == ["ab", "cd"]


TEXTS = ["\u2028", "\U0001f600", '"\\\n', "\x00\x1f", "é", "", "</script>"]


async def test_special_characters_survive_joining(store: Store) -> None:
    await append(store, *message("m1", *TEXTS), ts=THEN)
    await prune(store)
    assert [text for _, text, _ in await numbered_deltas(store) if text] == ["".join(TEXTS)]


# --- deltas that are kept ------------------------------------------------------------------------


async def test_an_unfinished_message_is_not_pruned(store: Store) -> None:
    stored = await append(
        store, message_started("m1"), text_delta("m1", "a"), text_delta("m1", "b"), ts=THEN
    )
    assert await prune(store) == 0
    assert await whole_log(store) == stored
    await append(store, message_ended("m1", "ab"), ts=THEN)
    assert await prune(store) == 1


async def test_a_message_that_ended_at_or_after_the_cutoff_is_not_pruned(store: Store) -> None:
    old = await append(store, *message("m1", "a", "b"), ts=THEN)
    young = await append(store, *message("m2", "c", "d"), ts=CUTOFF)
    assert await prune(store) == 1
    assert (await whole_log(store))[-4:] == young
    assert await prune(store, NOW) == 1
    assert len(await whole_log(store)) == len(old) + len(young) - 2


async def test_the_age_of_a_message_is_that_of_its_end(store: Store) -> None:
    await append(
        store, message_started("m1"), text_delta("m1", "a"), text_delta("m1", "b"), ts=THEN
    )
    await append(store, message_ended("m1", "ab"), ts=NOW)
    assert await prune(store) == 0


async def test_a_message_that_ended_after_the_given_event_is_not_pruned(store: Store) -> None:
    await append(store, *message("m1", "a", "b"), *message("m2", "c", "d"), ts=THEN)
    assert await prune(store, until=3) == 0
    assert await prune(store, until=4) == 1
    assert await prune(store, until=7) == 0
    assert await prune(store, until=8) == 1


async def test_messages_appended_after_a_pruning_are_pruned_by_the_next(store: Store) -> None:
    for number in range(3):
        await append(store, *message(f"m{number}", "a", "b", "c"), ts=THEN)
        assert await prune(store) == 2
    assert await prune(store) == 0


# --- steps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("deltas_per_step", [3, 4, 7, 1000])
async def test_a_long_message_is_joined_in_many_short_steps(
    deltas_per_step: int, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_pruning, "DELTAS_PER_STEP", deltas_per_step)
    pieces: list[events.Event] = []
    for number in range(10):
        pieces += [text_delta("m1", f"{number} "), reasoning_delta("m1", f"({number})")]
    text = "".join(f"{number} " for number in range(10))
    await append(
        store, *turn_of([message_started("m1"), *pieces, message_ended("m1", text)]), ts=THEN
    )
    steps = 0
    more = True
    while more:
        pruned = await store.prune_deltas(old())
        more = pruned.more
        assert 0 < pruned.deltas <= 2 * deltas_per_step
        await check_replay(store)
        steps += 1
    assert steps >= 18 // (2 * deltas_per_step)
    found = [
        (delta_text, first) for _, delta_text, first in await numbered_deltas(store) if delta_text
    ]
    thoughts = "".join(f"({number})" for number in range(10))
    assert found == [(text, "evt-5"), (thoughts, "evt-6")]


async def test_a_step_ends_once_it_has_reached_its_delta_limit(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_pruning, "DELTAS_PER_STEP", 5)
    for number in range(10):
        await append(store, *message(f"m{number}", "a", "b", "c"), ts=THEN)
    assert (await store.prune_deltas(old())).deltas == 6
    assert await prune(store) == 14


async def test_a_step_examines_a_limited_number_of_events(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_pruning, "EVENTS_PER_STEP", 4)
    noise = [events.Status(**turn(), message="busy")] * 8
    await append(store, *noise, *message("m1", "a", "b"), ts=THEN)
    steps = [await store.prune_deltas(old()) for _ in range(4)]
    assert [(step.deltas, step.more) for step in steps] == [
        (0, True),
        (0, True),
        (1, True),
        (0, False),
    ]


async def test_pruning_an_empty_log_does_nothing(store: Store) -> None:
    assert await store.prune_deltas(old(NOW)) == PruneResult(0, more=False)


# --- readers -------------------------------------------------------------------------------------


async def test_a_pruned_run_is_still_a_valid_run_with_the_same_texts(store: Store) -> None:
    happened = turn_of(
        [
            message_started("m1"),
            reasoning_delta("m1", "let "),
            reasoning_delta("m1", "me see"),
            text_delta("m1", "look"),
            text_delta("m1", "ing"),
            message_ended("m1", "looking"),
        ],
        tool_call("m1.0", "a\n", "b\n"),
        message("m2", "done", "."),
    )
    await append(store, *happened, ts=THEN)
    assert await prune(store) == 4
    await check_replay(store)


CURSORS: list[tuple[int, EventFilter, bool]] = [
    (0, EVERYTHING, False),
    (1, EVERYTHING, False),
    (2, EVERYTHING, True),
    (3, EVERYTHING, True),
    (4, EVERYTHING, False),
    (5, EVERYTHING, False),
    (2, EventFilter(session_id="s1"), True),
    (2, EventFilter(session_id="s2"), False),
    (2, EventFilter(run_id="r1"), True),
    (2, EventFilter(run_id="r2"), False),
    (2, EventFilter(types=frozenset({"message_update"})), True),
    (2, EventFilter(types=frozenset({"message_end"})), False),
    (2, EventFilter(types=frozenset()), False),
]


@pytest.mark.parametrize(("cursor", "wanted", "is_pruned"), CURSORS, ids=repr)
async def test_a_cursor_among_joined_deltas_is_reported_to_filters_that_select_them(
    cursor: int, wanted: EventFilter, is_pruned: bool, store: Store
) -> None:
    await append(store, *message("m1", "a", "b", "c"), ts=THEN)
    assert not await store.is_pruned(cursor, wanted)
    await prune(store)
    assert await store.is_pruned(cursor, wanted) is is_pruned


async def test_joined_deltas_are_deleted_with_their_session(store: Store) -> None:
    await append(store, created(), *message("m1", "a", "b"), ts=THEN)
    await prune(store)
    assert await store.is_pruned(3, EVERYTHING)
    await append(store, deleted())
    assert not await store.is_pruned(3, EVERYTHING)
    assert [event.type for event in await whole_log(store)] == ["session_deleted"]


async def test_a_page_begins_after_a_cursor_whose_event_was_joined(store: Store) -> None:
    await append(store, *message("m1", "a", "b", "c"), ts=THEN)
    await prune(store)
    page = await store.events_after(2, EVERYTHING, limit=1, bytes_max=NO_BOUND)
    assert [event.seq for event in page] == [4]


async def test_commits_and_pruning_do_not_disturb_each_other(store: Store) -> None:
    await append(store, *message("m1", *"abcdef"), ts=THEN)
    outcomes = Outcomes()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(prune, store)
        for number in range(20):
            store.submit(outcomes.batch(str(number), [text_delta("m9", "x", run_id="r9")]))
            await trio.lowlevel.checkpoint()
    await store.flush()
    assert outcomes.failed == []
    assert outcomes.names == [str(number) for number in range(20)]
    assert len(await whole_log(store)) == 3 + 20


# --- the file ------------------------------------------------------------------------------------


async def test_pruning_resumes_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_pruning, "DELTAS_PER_STEP", 3)
    path = tmp_path / "log.db"
    async with sqlite.open_store(path) as store:
        await append(store, *turn_of(message("m1", *"abcdefgh"), message("m2", "x", "y")), ts=THEN)
        assert (await store.prune_deltas(old())).more
    async with sqlite.open_store(path) as store:
        assert await store.is_pruned(11, EVERYTHING)
        await prune(store)
        await check_replay(store)
        assert [text for _, text, _ in await numbered_deltas(store) if text] == ["abcdefgh", "xy"]
    async with sqlite.open_store(path) as store:
        assert await prune(store) == 0


FAILING = ["BEGIN", "DELETE FROM events", "UPDATE events", "UPDATE log_state", "COMMIT"]


@pytest.mark.parametrize("statement", FAILING)
async def test_a_failed_step_changes_nothing_and_later_commits_succeed(
    statement: str, watched: Store, watch: Watch
) -> None:
    stored = await append(watched, *message("m1", "a", "b", "c"), ts=THEN)
    watch.fail_at = statement
    with pytest.raises(StoreError):
        await watched.prune_deltas(old())
    assert await whole_log(watched) == stored
    watch.fail_at = None
    await append(watched, text_delta("m9", "x"))
    assert await prune(watched) == 2


async def test_an_unreadable_line_fails_the_step_but_not_later_commits(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log.db"
    async with sqlite.open_store(path) as store:
        await append(store, *message("m1", "a", "b"), ts=THEN)
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("UPDATE events SET line = x'7b7d0a' WHERE seq = 2")
    async with sqlite.open_store(path) as store:
        with pytest.raises(StoreError):
            await store.prune_deltas(old())
        await append(store, text_delta("m9", "x"))
        assert [event.seq for event in await whole_log(store)] == [1, 2, 3, 4, 5]


async def test_commits_around_a_waiting_step_keep_their_order(watched: Store, watch: Watch) -> None:
    outcomes = Outcomes()
    await append(watched, *message("m1", "a", "b"), ts=THEN)
    watch.hold()
    watched.submit(outcomes.batch("before", [text_delta("m9", "x")]))
    await watch.wait_held()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(prune, watched)
        await wait_all_tasks_blocked()
        watched.submit(outcomes.batch("behind", [text_delta("m9", "y")]))
        assert outcomes.received == []
        watch.release()
    await watched.flush()
    assert (outcomes.names, outcomes.failed) == (["before", "behind"], [])


async def test_a_closed_store_refuses_pruning(tmp_path: Path) -> None:
    async with sqlite.open_store(tmp_path / "log.db") as store:
        pass
    with pytest.raises(StoreError, match="the store is closed"):
        await store.prune_deltas(old())


async def test_a_waiting_step_fails_when_the_writer_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(*_: object) -> None:
        raise AssertionError("a fault of ours")

    async def use_the_store() -> None:
        async with sqlite.open_store(tmp_path / "log.db") as store:
            await append(store, *message("m1", "a", "b"), ts=THEN)
            monkeypatch.setattr(_pruning, "join", faulty)
            with (
                trio.fail_after(WAIT_SECONDS),
                pytest.raises(StoreError, match="the log's writer has stopped"),
            ):
                await store.prune_deltas(old())

    with pytest.raises(AssertionError, match="a fault of ours"):
        await use_the_store()
    monkeypatch.undo()
    async with sqlite.open_store(tmp_path / "log.db") as store:
        assert len(await whole_log(store)) == 4


async def test_a_step_whose_caller_is_cancelled_is_still_done(watched: Store, watch: Watch) -> None:
    outcomes = Outcomes()
    await append(watched, *message("m1", "a", "b"), ts=THEN)
    watch.hold()
    watched.submit(outcomes.batch("held", [text_delta("m9", "x")]))
    await watch.wait_held()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(prune, watched)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    watch.release()
    await append(watched, text_delta("m9", "y"))
    assert [event.seq for event in await whole_log(watched)] == [1, 3, 4, 5, 6]


@pytest.fixture
def of_version_1(tmp_path: Path) -> Path:
    path = tmp_path / "old.db"
    with gzip.open(STORES / "schema-1.db.gz") as packed, path.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked)
    return path


async def test_a_log_of_schema_version_1_can_be_pruned(of_version_1: Path) -> None:
    async with sqlite.open_store(of_version_1) as store:
        before = await whole_log(store)
        rows = [await ask(store) for ask in ROWS]
        assert await prune(store, "2100") > 0
        assert texts_of(await whole_log(store)) == texts_of(before)
        assert [await ask(store) for ask in ROWS] == rows
        for event in await whole_log(store):
            check_event(event.line)
    with closing(apsw.Connection(str(of_version_1))) as connection:
        joined = "SELECT count(*) FROM events WHERE joined_from IS NOT NULL"
        assert connection.execute(joined).get > 0


ROWS: list[Callable[[Store], Any]] = [
    lambda store: store.sessions(limit=NO_BOUND, before=None),
    lambda store: store.runs(None, limit=NO_BOUND, before=None),
    lambda store: store.defaults(),
]


def texts_of(log: Any) -> dict[tuple[str, str], str]:
    """Return the joined text of the deltas of each message and call, by its id and their type."""
    texts: dict[tuple[str, str], str] = {}
    for event in log:
        payload = json.loads(event.line)["payload"]
        if "delta" in payload:
            key = (payload.get("message_id") or payload["tool_call_id"], event.type)
            texts[key] = texts.get(key, "") + payload["delta"]
    return texts


@pytest.mark.parametrize(
    ("query", "values"),
    [
        (_pruning_sqlite.POSITIONS, (1, 2, 3)),
        (_pruning_sqlite.LINE, (1,)),
        (_pruning_sqlite.DELTAS, {"block": 0, "run_id": "r1", "seq": 1, "types": "[]"}),
    ],
)
def test_no_pruning_query_sorts_or_scans_a_whole_table(
    tmp_path: Path, query: str, values: Any
) -> None:
    with closing(open_for_writing(tmp_path / "log.db", apsw.Connection).connection) as connection:
        plan = [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + query, values)]
    assert any(step.startswith("SEARCH events USING") for step in plan)
    assert not any("TEMP B-TREE" in step or step.startswith("SCAN events") for step in plan), plan
