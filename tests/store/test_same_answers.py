"""For any events both stores give the same results, and so does a store rebuilt from a log."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from nousd.errors import StoreError
from nousd.store.artifacts import Artifact
from nousd.store.interface import Store
from nousd.store.memory import store as memory
from nousd.store.records import Batch, StoredEvent
from nousd.store.session_list import SessionFilter
from nousd.store.sqlite import store as sqlite
from nousd.wire import events
from nousd.wire.codec.envelope import decode_event
from nousd.wire.events import EVENTS
from nousd.wire.objects.entries import Sampling, Usage
from nousd.wire.objects.session_values import SessionRules
from tests.store.helpers import (
    EVERYTHING,
    NO_BOUND,
    Watch,
    append,
    appended,
    created,
    deleted,
    delta,
    queue_update,
    queued,
    record,
    run_ended,
    run_started,
    updated,
    whole_log,
)
from tests.suites import examples

SESSIONS = ("s1", "s2", "s3")
ENTRIES = ("e1", "e2", "e3", "e4")
INPUTS = ("i1", "i2", "i3")
RUNS = ("r1", "r2")
ARTIFACTS = ("sha256:1", "sha256:2")
CALLS = ("call-1", "call-2")

session_ids = st.sampled_from(SESSIONS)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=100)
modes = st.sampled_from(["one-at-a-time", "all"])
counts = st.integers(0, 10**6)
words = st.sampled_from(["chat", "cron"])
workspaces = st.sampled_from(["/w", "/Straße"])

setting_values: dict[str, st.SearchStrategy[Any]] = {
    "name": texts,
    "leaf_id": st.sampled_from(ENTRIES),
    "steering_mode": modes,
    "follow_up_mode": modes,
    "active_tools": st.lists(texts, max_size=3).map(tuple),
    "provider": texts,
    "model": texts,
}
json_objects = st.dictionaries(
    texts, st.none() | texts | st.dictionaries(texts, st.none()), max_size=3
)
own_values: dict[str, st.SearchStrategy[Any]] = {
    "source_metadata": json_objects,
    "sampling": st.builds(Sampling, temperature=st.sampled_from([0.5, UNSET]), top_p=st.just(0.5)),
    "rules": st.builds(SessionRules, deny=st.lists(texts, max_size=2).map(tuple)),
}
first_settings = st.fixed_dictionaries(
    {}, optional={**setting_values, **own_values, "source": words, "workspace": workspaces}
)
later_settings = st.fixed_dictionaries(
    {},
    optional={
        **setting_values,
        **{name: st.none() | values for name, values in own_values.items()},
        "archived": st.booleans(),
    },
)

creations = st.builds(
    lambda session_id, fields: created(session_id, **fields), session_ids, first_settings
)
branches = st.builds(
    lambda session_id, parent_id: created(session_id, parent_id=parent_id), session_ids, session_ids
)
updates = st.builds(
    lambda session_id, fields: updated(session_id, **fields), session_ids, later_settings
)
activations = st.builds(events.SessionActivated, session_id=session_ids)
deletions = st.builds(deleted, session_ids)
entries = st.builds(
    lambda session_id, ids, text, artifact: appended(
        ids[0], ids[1], session_id=session_id, text=text, **artifact
    ),
    session_ids,
    # A parent has a smaller id, so that no path is a cycle.
    st.sampled_from([(child, parent) for child in ENTRIES for parent in ENTRIES if parent < child]),
    texts,
    st.fixed_dictionaries({}, optional={"artifact_id": st.sampled_from(ARTIFACTS)}),
)
inputs = st.builds(
    lambda name, kind, text: queued(name, kind, text, client_message_id="client-" + name),
    st.sampled_from(INPUTS),
    st.sampled_from(["prompt", "steer", "follow_up"]),
    texts,
)
queue_updates = st.builds(
    lambda change, some, session_id, fields: queue_update(
        change, *some, session_id=session_id, **fields
    ),
    st.sampled_from(["accepted", "promoted", "consumed", "cleared", "edited", "moved"]),
    st.lists(inputs, max_size=3, unique_by=lambda queued_input: queued_input.input_id),
    session_ids,
    st.fixed_dictionaries(
        {},
        optional={"queue_revision": counts, "before_input_id": st.sampled_from(INPUTS)},
    ),
)
starts = st.builds(run_started, st.sampled_from(RUNS), session_ids)
ends = st.builds(
    run_ended,
    st.sampled_from(RUNS),
    session_ids,
    st.sampled_from(["completed", "error"]),
)
turns = st.builds(
    events.TurnStart, session_id=session_ids, run_id=st.sampled_from(RUNS), turn_id=st.just("1")
)
usages = st.builds(
    events.UsageReported,
    session_id=session_ids,
    run_id=st.sampled_from([*RUNS, UNSET]),
    model=st.just("mock-1"),
    usage=st.just(UNSET)
    | st.builds(Usage, input=counts, output=counts, total=counts, cache_read=counts),
    cost_usd=st.sampled_from([UNSET, 0.1, 1e-9]),
)
calls = st.fixed_dictionaries(
    {
        "session_id": session_ids,
        "tool_call_id": st.sampled_from(CALLS),
        "attempt": st.integers(1, 2),
        "tool_name": st.just("ls"),
        "run_id": st.sampled_from([*RUNS, UNSET]),
    }
)
asks: dict[str, Any] = {"input_hash": "h", "args": {}, "reason": "", "expires_at": "then"}
says: dict[str, Any] = {"by": "user", "reason": ""}
call_steps = st.builds(
    lambda call, step: step(call),
    calls,
    st.sampled_from(
        [
            lambda call: events.ToolCallRequested(**call, args={}, client_call_id="c-1"),
            lambda call: events.PermissionRequested(**call, **asks),
            lambda call: events.ToolCallApproved(**call, **says),
            lambda call: events.ToolCallDenied(**call, **says),
            lambda call: events.ToolCallStarted(**call),
            lambda call: events.ToolCallOutput(**call, delta="x"),
            lambda call: events.ToolCallCompleted(**call, is_error=False),
            lambda call: events.ToolExecutionEnd(
                **{**call, "run_id": "r1", "turn_id": "1"},
                result="",
                is_error=True,
                executed=False,
            ),
        ]
    ),
)
deltas = st.builds(delta, texts, st.sampled_from(RUNS), session_ids)

lasting = st.one_of(
    creations,
    branches,
    updates,
    activations,
    entries,
    queue_updates,
    starts,
    ends,
    turns,
    usages,
    deltas,
    call_steps,
)
anything = st.one_of(lasting, lasting, lasting, deletions)


def batches(of: st.SearchStrategy[events.Event]) -> st.SearchStrategy[list[list[events.Event]]]:
    return st.lists(st.lists(of, max_size=8), max_size=6)


CONTENT = [Artifact(name, "text/plain", name.encode()) for name in ARTIFACTS]
FIRST = [created("s1"), appended("e1"), appended("e2", "e1")]

LISTS = [
    SessionFilter(workspace="/w", unnamed_workspace="/w"),
    SessionFilter(workspace="/w", archived=False),
    SessionFilter(archived=True, source="cron"),
    SessionFilter(parent_id="s1", children=False),
    SessionFilter(text="STRASSE"),
    SessionFilter(text="a", unnamed_workspace="/A"),
]


async def answers(store: Store) -> dict[str, Any]:
    """Call every query of a store and return the answers."""
    found: dict[str, Any] = {
        "head": store.head,
        "log": await whole_log(store),
        "defaults": await store.defaults(),
        "sessions": await store.sessions(limit=NO_BOUND, before=None),
        "sessions behind s2": await store.sessions(limit=1, before="s2"),
        "sessions wanted": [
            await store.sessions(wanted, limit=2, before=None, offset=offset)
            for wanted in LISTS
            for offset in (0, 1)
        ],
        "runs": await store.runs(None, limit=NO_BOUND, before=None),
        "runs behind r2": await store.runs(None, limit=1, before="r2"),
        "open runs": await store.open_runs(),
        "calls": await store.tool_calls(None, None, limit=NO_BOUND, before=NO_BOUND),
        "calls before": await store.tool_calls(None, "r1", limit=2, before=store.head),
        "attempts": [
            await store.tool_call(call_id, attempt) for call_id in CALLS for attempt in (None, 1, 2)
        ],
        "open calls": await store.open_client_calls(),
        "overridden": await store.list_overridden_sessions(),
        "artifacts": [await store.artifact(name) for name in ARTIFACTS],
    }
    for session_id in SESSIONS:
        found[session_id] = await answers_of_session(store, session_id)
    return found


async def answers_of_session(store: Store, session_id: str) -> list[Any]:
    return [
        await store.session(session_id),
        await store.tree(session_id, after=None, limit=NO_BOUND),
        await store.tree(session_id, after="e2", limit=1),
        [await store.path(session_id, leaf, limit=2, bytes_max=300) for leaf in ENTRIES],
        [await store.entry(session_id, entry_id) for entry_id in ENTRIES],
        await store.pending_inputs(session_id),
        [await store.input_by_client_id(session_id, "client-" + name) for name in INPUTS],
        [await store.input(session_id, name) for name in INPUTS],
        await store.runs(session_id, limit=NO_BOUND, before=None),
        await store.tool_calls(session_id, None, limit=NO_BOUND, before=NO_BOUND),
        await store.tool_call_by_client_id(session_id, "c-1"),
        await whole_log(store, msgspec.structs.replace(EVERYTHING, session_id=session_id)),
    ]


async def fill(store: Store, happened: Sequence[Sequence[events.Event]]) -> None:
    await append(store, *FIRST, artifacts=CONTENT)
    for batch in happened:
        await append(store, *batch)


def in_a_folder(check: Callable[[Path], Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trio.run(check, Path(folder) / "log.db")


thorough = settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@thorough
@given(batches(anything))
def test_both_stores_give_the_same_answers_also_after_a_restart(
    happened: list[list[events.Event]],
) -> None:
    async def check(path: Path) -> None:
        async with memory.open_store() as expected:
            await fill(expected, happened)
            answered = await answers(expected)
        async with sqlite.open_store(path) as store:
            await fill(store, happened)
            assert await answers(store) == answered
        async with sqlite.open_store(path) as store:
            again = await answers(store)
        # The tombstone of a deletion at the end is the head, so this holds too.
        assert again == answered

    in_a_folder(check)


@pytest.mark.slow
@thorough
@given(batches(lasting))
def test_rows_can_be_rebuilt_from_the_log(happened: list[list[events.Event]]) -> None:
    async def check(path: Path) -> None:
        async with sqlite.open_store(path) as store:
            await fill(store, happened)
            answered = await answers(store)
        logged = [decode_event(event.line) for event in answered["log"]]
        decoded = [msgspec.json.decode(line.payload, type=EVENTS[line.type]) for line in logged]
        async with memory.open_store() as rebuilt:
            await append(rebuilt, *decoded, artifacts=CONTENT)
            assert await answers(rebuilt) == answered

    in_a_folder(check)


groups = st.lists(
    st.lists(st.tuples(st.lists(anything, max_size=4), st.booleans()), min_size=1, max_size=8),
    max_size=4,
)
"""Batches that share a transaction, each with or without all artifacts."""


@pytest.mark.slow
@settings(thorough, max_examples=examples(60))
@given(groups)
def test_batches_in_one_transaction_have_the_same_effect_as_one_by_one(
    happened: list[list[tuple[list[events.Event], bool]]],
) -> None:
    seconds = count()
    outcomes: list[tuple[StoredEvent, ...] | StoreError] = []
    submitted = [
        [
            Batch(
                tuple(record(event, f"2026-01-02T03:04:05.{next(seconds):06}Z") for event in batch),
                outcomes.append,
                outcomes.append,
                tuple(CONTENT if has_artifacts else ()),
            )
            for batch, has_artifacts in group
        ]
        for group in happened
    ]

    async def check(path: Path) -> None:
        async with memory.open_store() as expected:
            await fill(expected, [])
            for batch in chain.from_iterable(submitted):
                expected.submit(batch)
                await expected.flush()
            answered, outcomes_one_by_one = await answers(expected), tuple(outcomes)
        outcomes.clear()
        watch = Watch()
        async with sqlite.open_store(path, connect=watch.connect) as store:
            await fill(store, [])
            for group in submitted:
                await submit_together(store, watch, group)
            assert await answers(store) == answered
        assert tuple(outcomes) == outcomes_one_by_one

    in_a_folder(check)


async def submit_together(store: Store, watch: Watch, group: Sequence[Batch]) -> None:
    """Commit batches as one transaction."""
    watch.hold()
    store.submit(Batch((), lambda _: None, lambda _: None))
    await watch.wait_held()
    before = len(watch.commits)
    for batch in group:
        store.submit(batch)
    watch.release()
    await store.flush()
    assert len(watch.commits) == before + 2
