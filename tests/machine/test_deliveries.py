"""Inputs that are consumed when they are delivered, beside those that a turn consumes at once."""

from __future__ import annotations

from typing import Any

import pytest

from nousd.errors import CommandRejected
from nousd.machine.session import decisions, queue, queue_edits
from nousd.machine.session.state import SessionState, apply
from nousd.wire import events
from nousd.wire.events.base import TurnKey
from tests.machine.builders import TS, after, names, prompt_input, queued, running

WHERE: TurnKey = {"session_id": "s", "run_id": "run-1", "turn_id": "1"}

PROMPT = prompt_input(entry_id="entry-1")
FIRST, SECOND = queued("a"), queued("b")
WAITING = queued("m", kind="message", entry_id="msg-0", accepted_at=TS)


def offer(state: SessionState, turn: queue.Turn) -> decisions.Events:
    return decisions.offer_turn(state, turn, run_id="run-1", turn_id="1")


def deliver(state: SessionState, turn: queue.Turn) -> decisions.Events:
    return decisions.deliver(state, turn, turn_key=WHERE, message_id="msg-1", created_at=TS)


def offered(turn: queue.Turn, **fields: Any) -> SessionState:
    state = running(leaf_id="leaf", **fields)
    return after(state, offer(state, turn))


@pytest.mark.parametrize(
    ("turn", "fields"),
    [
        (queue.Turn("prompt", (prompt_input(),)), {"queue": (prompt_input(), FIRST)}),
        (queue.Turn("prompt", (PROMPT,)), {"queue": (PROMPT,)}),
        (queue.Turn("steer", (FIRST, SECOND)), {"queue": (FIRST, WAITING, SECOND)}),
        (queue.Turn("steer", (FIRST,)), {"queue": (FIRST, SECOND)}),
        (queue.Turn("resume", ()), {}),
    ],
    ids=["prompt", "appended before", "two and a waiting message", "one of two", "resume"],
)
def test_a_delivered_turn_says_what_one_says_that_consumes_at_once(
    turn: queue.Turn, fields: dict[str, Any]
) -> None:
    state = running(leaf_id="leaf", **fields)
    at_once = decisions.begin_turn(
        state, turn, run_id="run-1", turn_id="1", message_id="msg-1", created_at=TS
    )
    first = offer(state, turn)
    then = deliver(after(state, first), turn) if turn.inputs else ()
    marks = [
        event
        for event in first
        if isinstance(event, events.QueueUpdate) and event.change == "delivering"
    ]
    assert [names(mark.inputs) for mark in marks] == ([names(turn.inputs)] if turn.inputs else [])
    assert (*(event for event in first if event not in marks), *then) == at_once
    assert after(state, (*first, *then)).queue == after(state, at_once).queue


def test_an_abort_gives_back_what_is_being_delivered_even_if_the_queue_is_kept() -> None:
    state = offered(queue.Turn("steer", (FIRST,)), queue=(FIRST, SECOND))
    _, cleared = decisions.abort_run(state, expected_run_id=None, keep_queue=True)
    assert names(cleared) == ["a"]
    _, cleared = decisions.abort_run(state, expected_run_id=None)
    assert names(cleared) == ["a", "b"]


def test_no_command_changes_what_is_being_delivered() -> None:
    state = offered(queue.Turn("steer", (FIRST,)), queue=(FIRST, SECOND))
    with pytest.raises(CommandRejected, match="input_delivered"):
        queue_edits.require_waiting(state, "a")
    assert queue_edits.require_waiting(state, "b") == SECOND
    assert names(decisions.clear_queue(state, None)[1]) == ["b"]


def test_what_is_being_delivered_still_waits_in_the_queue_as_it_was() -> None:
    before = running(leaf_id="leaf", queue=(FIRST, SECOND), queue_revision=4)
    state = after(before, offer(before, queue.Turn("steer", (FIRST,))))
    assert (state.queue, state.queue_revision) == (before.queue, 4)
    assert state.pending_counts == before.pending_counts


def test_a_steer_is_taken_once_and_pending_again_after_the_turn() -> None:
    state = running(leaf_id="leaf", queue=(FIRST, SECOND))

    def next_of(state: SessionState) -> queue.Turn | None:
        return queue.next_steer(
            state.queue, "run-1", delivering=state.delivering, steering="one-at-a-time"
        )

    for name in ("a", "b"):
        steer = next_of(state)
        assert steer is not None
        assert names(steer.inputs) == [name]
        state = after(state, decisions.take_steer(state, steer, "run-1"))
    assert next_of(state) is None
    assert not queue.has_pending_steer(state.queue, "run-1", state.delivering)
    state = apply(state, events.TurnEnd(**WHERE), TS)
    again = next_of(state)
    assert again is not None
    assert names(again.inputs) == ["a"]
