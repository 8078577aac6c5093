"""The queue as a state reports it, after any history."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from nousd.machine.session import appending, decisions, queue, queue_edits, queue_updates
from nousd.machine.session.state import SessionState, queue_fields
from nousd.wire import events
from nousd.wire.limits import QUEUED_INPUTS_MAX
from nousd.wire.objects.entries import TurnKind
from nousd.wire.objects.inputs import PendingCounts
from tests.machine.builders import after, prompt_input, queued, running, session

Events = tuple[events.Event, ...]
Step = Callable[[SessionState, int], Events]


def accept(kind: str) -> Step:
    def step(state: SessionState, number: int) -> Events:
        text_bytes = {"text_bytes": 9000} if number % 3 == 0 else {}
        taken = queued(f"i{number}", kind, None, **text_bytes)
        return (decisions.accept_input(state, taken, expected_run_id=None),)

    return step


def prompt(state: SessionState, number: int) -> Events:
    return (
        queue_updates.build_accepted_update(state, prompt_input(f"i{number}", f"earlier-{number}")),
    )


def append(state: SessionState, number: int) -> Events:
    message = queued(f"i{number}", "message", None, entry_id=f"m{number}", accepted_at="")
    return appending.append_message(state, message)


def promote(state: SessionState, _: int) -> Events:
    follow_ups = queue.of_kind(state.queue, "follow_up")
    return decisions.promote(state, follow_ups[-1].input_id) if follow_ups else ()


def consume(state: SessionState, number: int) -> Events:
    kind: TurnKind = "steer" if number % 2 else "follow_up"
    turn = queue.Turn(kind, queue.of_kind(state.queue, kind)[: 1 + number % 4])
    return decisions.begin_turn(
        state, turn, run_id="run-1", turn_id="1", message_id=f"m{number}", created_at=""
    )


def clear(state: SessionState, number: int) -> Events:
    decided, _ = decisions.clear_queue(state, (None, "steer", "follow_up")[number % 3])
    return decided


def edit(state: SessionState, number: int) -> Events:
    waiting = [queued for queued in state.queue if queued.kind != "message"]
    if not waiting:
        return ()
    chosen = waiting[number % len(waiting)]
    longer = {"text": f"text {number}", "text_bytes": 9000 if number % 2 else UNSET}
    return (queue_edits.edit_queued(state, msgspec.structs.replace(chosen, **longer)),)


def move(state: SessionState, number: int) -> Events:
    follow_ups = queue.of_kind(state.queue, "follow_up")
    if len(follow_ups) < 2:
        return ()
    before = None if number % 3 == 0 else follow_ups[0].input_id
    return (queue_edits.move_queued(state, follow_ups[-1].input_id, before),)


def remove(state: SessionState, number: int) -> Events:
    waiting = [queued for queued in state.queue if queued.kind == "steer"]
    if not waiting:
        return ()
    decided, _ = queue_edits.remove_queued(state, waiting[number % len(waiting)].input_id)
    return decided


STEPS: tuple[Step, ...] = (
    accept("steer"),
    accept("follow_up"),
    prompt,
    append,
    promote,
    edit,
    move,
    remove,
    consume,
    clear,
)


@given(st.lists(st.sampled_from(STEPS), max_size=40))
def test_the_queue_counters_of_a_state_match_its_queue(steps: list[Step]) -> None:
    state = running()
    for number, step in enumerate(steps):
        state = after(state, step(state, number))
        counters = {name: getattr(state, name) for name in queue_fields(())}
        assert counters == queue_fields(state.queue)


@given(st.lists(st.sampled_from(STEPS), max_size=40))
def test_the_revision_rises_by_one_with_each_change_that_clients_see(steps: list[Step]) -> None:
    state = running()
    for number, step in enumerate(steps):
        before = state
        for event in step(state, number):
            state = after(state, (event,))
            if isinstance(event, events.QueueUpdate):
                is_seen = any(queued.kind != "message" for queued in event.inputs)
                assert event.queue_revision == before.queue_revision + is_seen
            assert state.queue_revision >= before.queue_revision
            seen = [[q for q in each.queue if q.kind != "message"] for each in (before, state)]
            assert seen[0] == seen[1] or state.queue_revision > before.queue_revision
            before = state


def test_an_event_of_an_earlier_version_leaves_the_revision() -> None:
    state = running(queue_revision=7)
    (update,) = accept("steer")(state, 1)
    assert isinstance(update, events.QueueUpdate)
    unset = msgspec.structs.replace(update, queue_revision=UNSET)
    assert after(state, (unset,)).queue_revision == 7


def test_accepting_an_input_does_not_iterate_over_the_queue() -> None:
    class Unread(tuple[object, ...]):
        """A queue that raises if it is iterated over."""

        __slots__ = ()

        def __iter__(self) -> None:  # type: ignore[override]
            raise AssertionError("the queue was iterated over")

    state = running(queue=(queued("a", "follow_up"), queued("b")))
    unread = SessionState(
        session_id="s",
        run=state.run,
        queue=Unread(state.queue),  # type: ignore[arg-type]
        queued_chars=state.queued_chars,
        pending_counts=state.pending_counts,
    )
    update = decisions.accept_input(unread, queued("c", "follow_up", None), expected_run_id=None)
    assert update.pending_counts == PendingCounts(steer=1, follow_up=2)


def test_a_message_appended_at_once_ignores_the_queue_limit() -> None:
    full = session(queue=tuple(queued(f"i{number}") for number in range(QUEUED_INPUTS_MAX)))
    message = queued("m", "message", None, entry_id="e", accepted_at="")
    taken, consumed, appended = appending.append_message(full, message)
    assert isinstance(taken, events.QueueUpdate)
    assert (taken.change, taken.pending_counts) == ("accepted", full.pending_counts)
    assert isinstance(consumed, events.QueueUpdate)
    assert isinstance(appended, events.EntryAppended)
