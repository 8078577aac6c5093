"""Calls that overlap: brackets in order, nothing lost, and balanced ends at every moment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from nousd.machine.context import text_offload
from nousd.machine.session.appending import leaf_after
from nousd.machine.session.brackets import HELD_OUTPUT_BYTES_MAX, Brackets
from nousd.machine.session.closing_events import (
    closing_events,
    message_of,
    open_ends,
    tool_result_entry,
)
from nousd.machine.session.lifecycle import LOGGED, WAITING, LifecycleTracker, Phase
from nousd.machine.session.queue_updates import build_removal_updates
from nousd.machine.session.state import apply
from nousd.wire import events
from nousd.wire.codec.envelope import encode_event_tail, number_event
from nousd.wire.events import Event
from nousd.wire.events.base import EndStatus
from nousd.wire.objects.entries import MessageEntry, ToolCall
from nousd.wire.objects.inputs import QueuedInput
from tests.harness.lifecycle import LifecycleChecker
from tests.machine.builders import TS, queued, running

TURN: Any = {"session_id": "s", "run_id": "run-1", "turn_id": "1"}

Batches = list[list[Event]]


class Run:
    """A run as the daemon follows it, without the daemon."""

    def __init__(self, **state: Any) -> None:
        self.tracker = LifecycleTracker("s", "run-1")
        self.state = running(leaf_id="root", **state)
        self.brackets = Brackets()
        self.log: Batches = []
        self.decide(
            events.AgentStart(session_id="s", run_id="run-1", runtime="agent", model="the-model"),
        )
        self.decide(events.TurnStart(**TURN))

    def decide(self, *decided: Event) -> list[Event]:
        out = self.brackets.order(decided, self.tracker, self.state, TS)
        for event in out:
            self.tracker.note(event)
            self.state = apply(self.state, event, TS)
        self.log.append(out)
        return out

    def stop(self, status: EndStatus = "cancelled") -> None:
        while self.brackets.is_holding:
            self.decide(
                *open_ends(self.tracker, status, leaf_id=self.state.leaf_id, now=TS, error=None)
            )
        self.decide(*closing_events(self.tracker, status, leaf_id=self.state.leaf_id, now=TS))

    def complete(self) -> None:
        self.decide(
            events.TurnEnd(**TURN),
            events.AgentEnd(session_id="s", run_id="run-1", status="completed"),
        )

    @property
    def events(self) -> list[Event]:
        return [event for batch in self.log for event in batch]


def keys(call_id: str) -> Any:
    return TURN | {"tool_call_id": call_id, "tool_name": "read", "attempt": 1}


def begun(call_id: str) -> list[Event]:
    own: Any = {"args": {"path": call_id}, "runtime_tool_call_id": f"own-{call_id}"}
    return [
        events.ToolExecutionStart(**keys(call_id), **own),
        events.ToolCallRequested(**keys(call_id), **own),
    ]


def started(call_id: str) -> list[Event]:
    return [
        events.ToolCallApproved(**keys(call_id), by="policy", reason="r"),
        events.ToolCallStarted(**keys(call_id)),
    ]


def update(call_id: str, delta: str) -> Event:
    return events.ToolExecutionUpdate(**keys(call_id), delta=delta)


def ended(call_id: str, result: str, *, executed: bool) -> list[Event]:
    end = events.ToolExecutionEnd(
        **keys(call_id), result=result, is_error=not executed, executed=executed
    )
    entry = tool_result_entry(end, parent_id="stale", turn_kind="prompt", text=result, now=TS)
    return [end, events.EntryAppended(session_id="s", run_id="run-1", entry=entry)]


def completed(call_id: str, result: str = "result") -> list[Event]:
    done = events.ToolCallCompleted(**keys(call_id), is_error=False, duration_ms=1)
    return [done, *ended(call_id, result, executed=True)]


def call(call_id: str, *deltas: str) -> Batches:
    updates = [[update(call_id, delta)] for delta in deltas]
    result = f"result of {call_id}"
    return [begun(call_id), started(call_id), *updates, completed(call_id, result)]


def denied(call_id: str) -> Batches:
    refused = events.ToolCallDenied(**keys(call_id), by="policy", reason="r")
    return [
        [
            *begun(call_id),
            refused,
            update(call_id, "no"),
            *ended(call_id, f"result of {call_id}", executed=False),
        ]
    ]


def message_entry(message_id: str, text: str, calls: Sequence[str] = ()) -> events.EntryAppended:
    entry = MessageEntry(
        id=message_id,
        parent_id="stale",
        role="assistant",
        text=text,
        run_id="run-1",
        turn_kind="prompt",
        created_at=TS,
        tool_calls=tuple(
            ToolCall(tool_call_id=each, runtime_tool_call_id="", name="read", args={})
            for each in calls
        )
        or UNSET,
    )
    return events.EntryAppended(session_id="s", run_id="run-1", entry=entry)


def message(message_id: str, *deltas: str, calls: Sequence[str] = ()) -> Batches:
    text = "".join(deltas)
    where: Any = TURN | {"message_id": message_id}
    updates: Batches = [[events.MessageUpdate(**where, delta=delta)] for delta in deltas]
    return [
        [events.MessageStart(**where, role="assistant")],
        *updates,
        [events.MessageEnd(**where, text=text), message_entry(message_id, text, calls)],
    ]


def delivered(run: Run, steer: QueuedInput) -> list[Event]:
    """Return the events of a user's message that is consumed in the run."""
    own: Any = TURN | {"message_id": "u"}
    text = f"text of {steer.input_id}"
    entry = message_entry("u", text).entry
    assert isinstance(entry, MessageEntry)
    return [
        events.MessageStart(**own, role="user", text=text, input_ids=(steer.input_id,)),
        *build_removal_updates(run.state, "consumed", (steer,), "run-1"),
        events.EntryAppended(
            session_id="s", run_id="run-1", entry=msgspec.structs.replace(entry, role="user")
        ),
        events.MessageEnd(**own, text=text),
    ]


def names(decided: Iterable[Event]) -> list[str]:
    return [events.EVENT_TYPES[type(event)] for event in decided]


def entries(decided: Iterable[Event]) -> list[MessageEntry]:
    found = [event.entry for event in decided if isinstance(event, events.EntryAppended)]
    return [entry for entry in found if isinstance(entry, MessageEntry)]


def check_balance(happened: Iterable[Event]) -> None:
    checker = LifecycleChecker(complete_after=0)
    for seq, event in enumerate(happened, 1):
        checker.feed(number_event(seq, encode_event_tail(event, TS)))
    checker.finish()
    assert checker.ended_runs == 1


def check_transcript(happened: Sequence[Event]) -> None:
    """Assert that each entry follows the one before it, and each result its announced call."""
    parent, announced = "root", set[str]()
    for entry in entries(happened):
        assert entry.parent_id == parent, entry
        parent = entry.id
        announced |= {call.tool_call_id for call in entry.tool_calls or ()}
        assert entry.role != "tool" or entry.tool_call_id in announced, entry


# --- examples ----------------------------------------------------------------------------------


def test_a_call_that_begins_beside_another_has_its_bracket_after_it() -> None:
    run = Run()
    first, second = call("a.0", "A"), call("b.0", "B")
    run.log.clear()
    for batch in (first[0], second[0], first[1], second[1], second[2], second[3], first[3]):
        run.decide(*batch)
    assert [names(batch) for batch in run.log] == [
        [
            *("message_start", "message_end", "entry_appended"),
            *("tool_execution_start", "tool_call_requested"),
        ],
        ["tool_call_requested"],
        ["tool_call_approved", "tool_call_started"],
        ["tool_call_approved", "tool_call_started"],
        ["tool_call_output"],
        ["tool_call_completed"],
        [
            *("tool_call_completed", "tool_execution_end", "entry_appended"),
            *("message_start", "message_end", "entry_appended"),
            *("tool_execution_start", "tool_execution_update"),
            *("tool_execution_end", "entry_appended"),
        ],
    ]
    held = run.log[5][0]
    assert isinstance(held, events.ToolCallCompleted)
    assert held.result == "result of b.0"


def test_a_call_of_an_announced_message_gets_no_message_of_its_own() -> None:
    run = Run()
    for batch in [*message("m", "text", calls=("m.0", "m.1")), *call("m.0"), *call("m.1")]:
        run.decide(*batch)
    run.complete()
    assert names(run.events).count("message_start") == 1
    check_balance(run.events)


def test_a_call_that_waits_may_go_on_inside_its_bracket() -> None:
    run = Run()
    text, other = message("m", "text"), call("a.0", "one", "two")
    for batch in (text[0], *other[:3], *text[1:], *other[3:]):
        run.decide(*batch)
    run.complete()
    check_balance(run.events)
    check_transcript(run.events)
    updates = [each for each in run.events if isinstance(each, events.ToolExecutionUpdate)]
    assert [each.delta for each in updates] == ["one", "two"]
    outputs = [each for each in run.events if isinstance(each, events.ToolCallOutput)]
    assert [each.delta for each in outputs] == ["one"]


def test_held_deltas_become_few_events_with_the_same_text() -> None:
    run = Run()
    first, text = call("a.0"), message("m", *"abcdef" * 100)
    for batch in (first[0], *text, *first[1:]):
        run.decide(*batch)
    run.complete()
    check_balance(run.events)
    assert names(run.events).count("message_update") == 1


def test_the_bracket_of_a_held_call_repeats_a_bounded_part_of_its_output() -> None:
    run = Run()
    first, second = call("a.0"), call("b.0", *["x" * 8000] * 20)
    for batch in (first[0], *second, *first[1:]):
        run.decide(*batch)
    run.complete()
    check_balance(run.events)
    updates = [each for each in run.events if isinstance(each, events.ToolExecutionUpdate)]
    assert 0 < sum(len(each.delta) for each in updates) <= HELD_OUTPUT_BYTES_MAX
    outputs = [each for each in run.events if isinstance(each, events.ToolCallOutput)]
    assert sum(len(each.delta) for each in outputs) == 160_000


def test_the_message_of_a_user_is_consumed_when_its_bracket_goes_out() -> None:
    steer, later = queued("in-1"), queued("in-2")
    run = Run(queue=(steer,))
    first = call("a.0")
    run.decide(*first[0])
    told = run.decide(*delivered(run, steer))
    assert told == []
    accepted = events.QueueUpdate(
        session_id="s",
        change="accepted",
        inputs=(later,),
        pending_counts=run.state.pending_counts,
        queue_revision=run.state.queue_revision + 1,
    )
    assert run.decide(accepted) == [accepted]
    assert [each.input_id for each in run.state.queue] == ["in-1", "in-2"]
    for batch in first[1:]:
        run.decide(*batch)
    assert [each.input_id for each in run.state.queue] == ["in-2"]
    update_ = next(each for each in run.log[-1] if isinstance(each, events.QueueUpdate))
    assert (update_.change, update_.inputs, update_.queue_revision) == ("consumed", (steer,), 2)
    run.complete()
    check_balance(run.events)
    check_transcript(run.events)


def test_a_stop_keeps_the_message_of_a_user_that_was_held() -> None:
    steer = queued("in-1")
    run = Run(queue=(steer,))
    run.decide(*call("a.0")[0])
    run.decide(*delivered(run, steer))
    run.decide(*message("m", "held")[0])
    run.stop()
    assert run.state.queue == ()
    check_balance(run.events)
    check_transcript(run.events)
    assert [each.id for each in entries(run.events)] == ["a", "a.0.result", "u", "m"]


def test_a_kill_keeps_the_long_result_of_a_call_that_waited() -> None:
    run, result = Run(), "x" * 100_000
    run.decide(*call("a.0")[0])
    for batch in (begun("b.0"), started("b.0"), completed("b.0", result)):
        run.decide(*batch)
    logged = text_offload.cut_long_texts(run.events)
    killed = LifecycleTracker("s", "run-1", LOGGED)
    for event in logged.events:
        killed.note(event)
    ends = closing_events(killed, "interrupted", leaf_id=run.state.leaf_id, now=TS)
    *_, entry = entries(ends)
    assert (entry.tool_call_id, entry.is_error, entry.executed) == ("b.0", False, True)
    wholes = {name: data for name, (_, data) in logged.artifacts.items()}
    restored = text_offload.whole_entry(entry, wholes)
    assert isinstance(restored, MessageEntry)
    assert restored.text == result


STEPS: dict[str, Event] = {
    "tool_call_policy_evaluated": events.ToolCallPolicyEvaluated(
        **keys("a.0"), source="mode", decision="allow", reason="r"
    ),
    "tool_call_denied": events.ToolCallDenied(**keys("a.0"), by="policy", reason="r"),
    "tool_call_approved": started("a.0")[0],
    "tool_call_started": started("a.0")[1],
    "tool_call_output": events.ToolCallOutput(**keys("a.0"), delta="x"),
    "tool_call_completed": completed("a.0")[0],
    "tool_execution_update": update("a.0", "x"),
    "tool_execution_end": ended("a.0", "x", executed=True)[0],
}

WAYS: dict[Phase, list[str]] = {
    Phase.REQUESTED: [],
    Phase.APPROVED: ["tool_call_approved"],
    Phase.DENIED: ["tool_call_denied"],
    Phase.EXECUTING: ["tool_call_approved", "tool_call_started"],
    Phase.COMPLETED_EARLIER: ["tool_call_approved", "tool_call_started", "tool_call_completed"],
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("phase", WAITING)
def test_a_waiting_call_takes_only_the_steps_of_its_phase(phase: Phase, name: str) -> None:
    tracker = LifecycleTracker("s", "run-1")
    tracker.note(events.AgentStart(session_id="s", run_id="run-1", runtime="a", model="m"))
    tracker.note(events.TurnStart(**TURN))
    tracker.note(message("m")[0][0])
    tracker.note(begun("a.0")[1])
    for step in WAYS[phase]:
        tracker.note(STEPS[step])
    assert tracker.tools["a.0"].phase is phase
    after = WAITING[phase].get(type(STEPS[name]))
    if after is None:
        with pytest.raises(AssertionError, match=type(STEPS[name]).__name__):
            tracker.note(STEPS[name])
    else:
        tracker.note(STEPS[name])
        assert tracker.tools["a.0"].phase is after
    assert tracker.phase is Phase.MESSAGE


def test_a_turn_does_not_end_while_a_call_waits() -> None:
    tracker = LifecycleTracker("s", "run-1")
    tracker.note(events.AgentStart(session_id="s", run_id="run-1", runtime="a", model="m"))
    tracker.note(events.TurnStart(**TURN))
    for event in (message("m")[0][0], begun("a.0")[1], *message("m")[1]):
        tracker.note(event)
    with pytest.raises(AssertionError, match=r"a\.0"):
        tracker.note(events.TurnEnd(**TURN))


# --- any interleaving --------------------------------------------------------------------------

texts = st.lists(st.text("ab", max_size=3), max_size=3)


@st.composite
def interleaved(draw: st.DrawFn, *threads: Batches) -> Batches:
    """Draw an order of all batches in which those of each thread keep theirs."""
    left = [list(thread) for thread in threads]
    order = draw(st.permutations([i for i, thread in enumerate(left) for _ in thread]))
    return [left[i].pop(0) for i in order]


@st.composite
def interleavings(draw: st.DrawFn) -> Batches:
    """Draw messages and calls, each in its own order, in any interleaving."""
    kinds = st.sampled_from(["call", "denied", "message", "pair"])
    threads: list[Batches] = []
    for number, kind in enumerate(draw(st.lists(kinds, min_size=1, max_size=4))):
        name, deltas = f"m{number}", draw(texts)
        if kind == "call":
            threads.append(call(f"{name}.0", *deltas))
        elif kind == "denied":
            threads.append(denied(f"{name}.0"))
        elif kind == "message":
            threads.append(message(name, *deltas))
        else:
            # Its calls may begin while it is still open.
            first, *rest = message(name, *deltas, calls=(f"{name}.0", f"{name}.1"))
            calls = call(f"{name}.0", *deltas), call(f"{name}.1", *deltas)
            threads.append([first, *draw(interleaved(rest, *calls))])
    return draw(interleaved(*threads))


def brackets_of(happened: Iterable[Event]) -> list[str]:
    """Return what has a bracket, in order; assert that none overlaps another."""
    found: list[str] = []
    open_: str | None = None
    for event in happened:
        if isinstance(event, events.MessageStart | events.ToolExecutionStart):
            assert open_ is None
            open_ = getattr(event, "message_id", None) or getattr(event, "tool_call_id", None)
            assert open_ is not None
            found.append(open_)
        elif isinstance(event, events.MessageEnd | events.ToolExecutionEnd):
            open_ = None
    return found


def check_order(batches: Batches, happened: Sequence[Event]) -> None:
    begun_ = [
        getattr(event, "message_id", None) or getattr(event, "tool_call_id", None)
        for batch in batches
        for event in batch
        if isinstance(event, events.MessageStart | events.ToolExecutionStart)
    ]
    announcing = {message_of(each) for each in begun_ if each and "." in each} - set(begun_)
    told = brackets_of(happened)
    assert [each for each in told if each not in announcing] == begun_
    for each in announcing:
        assert told[told.index(each) + 1] == f"{each}.0"


def check_nothing_is_lost(batches: Batches, happened: Sequence[Event]) -> None:
    decided = [event for batch in batches for event in batch]
    texts_of = {entry.id: (entry.text, entry.tool_call_id) for entry in entries(decided)}
    told = {entry.id: (entry.text, entry.tool_call_id) for entry in entries(happened)}
    assert texts_of.items() <= told.items()
    assert len(entries(happened)) == len(told)


@given(interleavings())
def test_brackets_are_ordered_balanced_and_complete_in_any_interleaving(batches: Batches) -> None:
    run = Run()
    for batch in batches:
        run.decide(*batch)
    assert not run.brackets.is_holding
    run.complete()
    check_balance(run.events)
    check_order(batches, run.events)
    check_transcript(run.events)
    check_nothing_is_lost(batches, run.events)


@given(interleavings(), st.data())
def test_a_stop_at_any_moment_closes_everything_and_loses_no_text(
    batches: Batches, data: st.DataObject
) -> None:
    run = Run()
    batches = batches[: data.draw(st.integers(0, len(batches)))]
    for batch in batches:
        run.decide(*batch)
    run.stop()
    check_balance(run.events)
    check_order(batches, run.events)
    check_transcript(run.events)
    check_nothing_is_lost(batches, run.events)


@given(interleavings())
def test_a_kill_at_any_moment_closes_everything_and_loses_no_result(batches: Batches) -> None:
    run = Run()
    for batch in batches:
        run.decide(*batch)
    for cut in range(1, len(run.log) + 1):
        happened = [event for batch in run.log[:cut] for event in batch]
        killed = LifecycleTracker("s", "run-1", LOGGED)
        for event in happened:
            killed.note(event)
        leaf_id = leaf_after(happened, "root")
        ends = closing_events(killed, "interrupted", leaf_id=leaf_id, now=TS)
        for event in ends:
            killed.note(event)
        whole = [*happened, *ends]
        check_balance(whole)
        check_transcript(whole)
        results = {entry.tool_call_id: entry.text for entry in entries(whole) if entry.tool_call_id}
        asked = [each for each in whole if isinstance(each, events.ToolCallRequested)]
        assert list(results) == [each.tool_call_id for each in asked]
        for done in happened:
            if isinstance(done, events.ToolCallCompleted):
                assert results[done.tool_call_id] == f"result of {done.tool_call_id}"
