"""Messages without a run: appended to the leaf at once, or queued until there is a place."""

from __future__ import annotations

from typing import Any

import pytest

from nousd.machine.session import appending, decisions, queue
from nousd.wire import events
from nousd.wire.objects.entries import Attachment, MessageEntry
from nousd.wire.objects.inputs import QueuedInput
from tests.machine.builders import TS, after, answer, prompt_input, queued, running, session, user

FILE = Attachment(artifact_id="sha256:1", media_type="text/plain", size_bytes=1)
OTHER = Attachment(artifact_id="sha256:2", media_type="text/plain", size_bytes=1)


def held(name: str, **more: Any) -> QueuedInput:
    return queued(name, "message", None, entry_id=f"entry-{name}", accepted_at=TS, **more)


def places(decided: appending.Events) -> list[tuple[str, object]]:
    return [
        (event.entry.id, event.entry.parent_id)
        for event in decided
        if isinstance(event, events.EntryAppended)
    ]


def test_without_a_run_it_is_the_leaf_at_once() -> None:
    state = session(leaf_id="leaf")
    decided = appending.append_message(state, held("a"))
    assert places(decided) == [("entry-a", "leaf")]
    assert after(state, decided).leaf_id == "entry-a"
    assert after(state, decided).queue == ()


def test_during_a_run_it_waits_and_joins_in_order_before_the_next_turn() -> None:
    state = running(leaf_id="leaf", queue=(queued("s1"),))
    for name in ("a", "b"):
        decided = appending.append_message(state, held(name))
        assert places(decided) == []
        state = after(state, decided)
    turn = queue.next_turn(state.queue, own_prompt=None, steering="all", follow_up="all")
    assert turn is not None
    begun = decisions.begin_turn(
        state, turn, run_id="run-1", turn_id="2", message_id="m", created_at=TS
    )
    assert places(begun) == [("entry-a", "leaf"), ("entry-b", "entry-a"), ("m", "entry-b")]
    assert after(state, begun).queue == ()


def test_it_joins_behind_what_the_ends_of_a_run_leave() -> None:
    state = running(leaf_id="leaf", queue=(held("a"),))
    joined = appending.joined(state, run_id="run-1", leaf_id="half-an-answer")
    assert places(joined) == [("entry-a", "half-an-answer")]


def test_an_aborted_run_that_keeps_the_queue_gives_back_its_own_prompt_alone() -> None:
    kept = (queued("s1"), prompt_input("p0", "run-0"), held("a"), queued("f1", "follow_up"))
    own = prompt_input("p1")
    state = running(queue=(*kept, own))
    decided, cleared = decisions.abort_run(state, expected_run_id=None, keep_queue=True)
    assert cleared == (own,)
    assert after(state, decided).queue == kept


def test_an_abort_and_a_cleared_queue_leave_messages() -> None:
    state = running(queue=(queued("s1"), held("a")))
    decided, cleared = decisions.abort_run(state, expected_run_id=None)
    assert cleared == (queued("s1"),)
    assert after(state, decided).queue == (held("a"),)
    assert decisions.clear_queue(state, None)[1] == (queued("s1"),)


@pytest.mark.parametrize(
    ("leaf_id", "run_id", "repeats"),
    [("entry-a", "run-2", False), ("later", "run-2", True), ("later", "run-1", False)],
)
def test_a_text_that_is_there_is_not_repeated_while_it_is_still_to_be_answered(
    leaf_id: str, run_id: str, repeats: bool
) -> None:
    prompt = prompt_input("p1", entry_id="entry-a", leaf_id="entry-a")
    state = running(leaf_id=leaf_id, queue=(prompt,))
    turn = queue.Turn("prompt", (prompt,))
    begun = decisions.begin_turn(
        state, turn, run_id=run_id, turn_id="1", message_id="m", created_at=TS
    )
    assert bool(places(begun)) is repeats
    (start,) = [event for event in begun if isinstance(event, events.MessageStart)]
    assert start.message_id == ("m" if repeats else "entry-a")


def appended(name: str, text: str, **more: Any) -> Any:
    return MessageEntry(
        id=name, role="user", text=text, run_id="", turn_kind="prompt", created_at=TS, **more
    )


@pytest.mark.parametrize(
    ("attachments", "found"), [((), "two"), ((FILE,), "one"), ((OTHER,), None)]
)
def test_the_last_text_that_fits_with_its_files_is_reused(
    attachments: tuple[Attachment, ...], found: str | None
) -> None:
    path = [
        appended("zero", "x"),
        answer("answer"),
        appended("one", "x", attachments=(FILE,)),
        appended("two", "x"),
        appended("three", "y"),
    ]
    there = appending.reusable(path, "x", attachments)
    assert (None if there is None else there.id) == found


def test_what_a_run_said_is_never_reused() -> None:
    assert appending.reusable([user("u1")], "", ()) is None


def test_what_a_resume_goes_on_with_says_whose_options_hold() -> None:
    own = prompt_input("p1", "run-1")
    assert decisions.left_by(session(queue=(held("a"), own)), None) == "run-1"
    assert decisions.left_by(session(), user("u1")) == "run-1"
    assert decisions.left_by(session(), appended("a", "x")) is None
    assert decisions.left_by(session(), None) is None
