"""Messages without a run: appended to the leaf at once, or queued until the next turn."""

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


def queued_message(name: str, **more: Any) -> QueuedInput:
    return queued(name, "message", None, entry_id=f"entry-{name}", accepted_at=TS, **more)


def appended_entries(decided: appending.Events) -> list[tuple[str, object]]:
    return [
        (event.entry.id, event.entry.parent_id)
        for event in decided
        if isinstance(event, events.EntryAppended)
    ]


def test_a_message_without_a_run_becomes_the_leaf_at_once() -> None:
    state = session(leaf_id="leaf")
    decided = appending.append_message(state, queued_message("a"))
    assert appended_entries(decided) == [("entry-a", "leaf")]
    assert after(state, decided).leaf_id == "entry-a"
    assert after(state, decided).queue == ()


def test_messages_during_a_run_join_the_tree_in_order_before_the_next_turn() -> None:
    state = running(leaf_id="leaf", queue=(queued("s1"),))
    for name in ("a", "b"):
        decided = appending.append_message(state, queued_message(name))
        assert appended_entries(decided) == []
        state = after(state, decided)
    turn = queue.next_turn(state.queue, own_prompt=None, steering="all", follow_up="all")
    assert turn is not None
    begun = decisions.begin_turn(
        state, turn, run_id="run-1", turn_id="2", message_id="m", created_at=TS
    )
    assert appended_entries(begun) == [
        ("entry-a", "leaf"),
        ("entry-b", "entry-a"),
        ("m", "entry-b"),
    ]
    assert after(state, begun).queue == ()


def test_a_queued_message_joins_the_tree_after_the_leaf_of_the_ended_run() -> None:
    state = running(leaf_id="leaf", queue=(queued_message("a"),))
    joined = appending.append_waiting(state, run_id="run-1", leaf_id="half-an-answer")
    assert appended_entries(joined) == [("entry-a", "half-an-answer")]


def test_an_abort_that_keeps_the_queue_clears_only_the_prompt_of_its_run() -> None:
    kept = (
        queued("s1"),
        prompt_input("p0", "run-0"),
        queued_message("a"),
        queued("f1", "follow_up"),
    )
    own = prompt_input("p1")
    state = running(queue=(*kept, own))
    decided, cleared = decisions.abort_run(state, expected_run_id=None, keep_queue=True)
    assert cleared == (own,)
    assert after(state, decided).queue == kept


def test_neither_abort_nor_clear_queue_removes_queued_messages() -> None:
    state = running(queue=(queued("s1"), queued_message("a")))
    decided, cleared = decisions.abort_run(state, expected_run_id=None)
    assert cleared == (queued("s1"),)
    assert after(state, decided).queue == (queued_message("a"),)
    assert decisions.clear_queue(state, None)[1] == (queued("s1"),)


@pytest.mark.parametrize(
    ("leaf_id", "run_id", "repeats"),
    [("entry-a", "run-2", False), ("later", "run-2", True), ("later", "run-1", False)],
)
def test_a_reused_prompt_is_appended_again_only_in_another_run_after_the_leaf_moved(
    leaf_id: str, run_id: str, repeats: bool
) -> None:
    prompt = prompt_input("p1", entry_id="entry-a", leaf_id="entry-a")
    state = running(leaf_id=leaf_id, queue=(prompt,))
    turn = queue.Turn("prompt", (prompt,))
    begun = decisions.begin_turn(
        state, turn, run_id=run_id, turn_id="1", message_id="m", created_at=TS
    )
    assert bool(appended_entries(begun)) is repeats
    (start,) = [event for event in begun if isinstance(event, events.MessageStart)]
    assert start.message_id == ("m" if repeats else "entry-a")


def appended_message(name: str, text: str, **more: Any) -> Any:
    return MessageEntry(
        id=name, role="user", text=text, run_id="", turn_kind="prompt", created_at=TS, **more
    )


@pytest.mark.parametrize(
    ("attachments", "found"), [((), "two"), ((FILE,), "one"), ((OTHER,), None)]
)
def test_the_newest_appended_message_with_equal_text_and_files_is_reused(
    attachments: tuple[Attachment, ...], found: str | None
) -> None:
    path = [
        appended_message("zero", "x"),
        answer("answer"),
        appended_message("one", "x", attachments=(FILE,)),
        appended_message("two", "x"),
        appended_message("three", "y"),
    ]
    there = appending.reusable(path, "x", attachments)
    assert (None if there is None else there.id) == found


def test_a_message_of_a_run_is_never_reused() -> None:
    assert appending.reusable([user("u1", "x")], "x", ()) is None


def test_the_options_of_a_resume_come_from_the_run_of_its_prompt_or_leaf() -> None:
    own = prompt_input("p1", "run-1")
    assert decisions.find_run_to_resume(session(queue=(queued_message("a"), own)), None) == "run-1"
    assert decisions.find_run_to_resume(session(), user("u1")) == "run-1"
    assert decisions.find_run_to_resume(session(), appended_message("a", "x")) is None
    assert decisions.find_run_to_resume(session(), None) is None
