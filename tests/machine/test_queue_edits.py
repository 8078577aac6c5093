"""Editing, moving and removing one pending input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from nousd.errors import CommandRejected
from nousd.machine.session import queue, queue_edits
from nousd.machine.session.state import SessionState
from nousd.wire.limits import QUEUED_CHARS_MAX
from nousd.wire.objects.inputs import PendingCounts, QueuedInput
from tests.machine.builders import after, names, prompt_input, queued, running, session

WAITING = (
    queued("f1", "follow_up"),
    queued("s1"),
    queued("f2", "follow_up"),
    queued("m", "message", entry_id="e"),
    prompt_input("old", "run-0"),
    queued("s2"),
    queued("f3", "follow_up"),
)


def edited(name: str, **changed: Any) -> QueuedInput:
    found = next(each for each in WAITING if each.input_id == name)
    return msgspec.structs.replace(found, **changed)


@pytest.mark.parametrize("state", [running(queue=WAITING), session(queue=WAITING)])
@pytest.mark.parametrize("name", ["f2", "s1", "old"])
def test_an_edited_input_keeps_its_place(state: SessionState, name: str) -> None:
    new = edited(name, text="new")
    update = queue_edits.edit_queued(state, new, client_id="c")
    assert (update.change, update.inputs, update.client_id) == ("edited", (new,), "c")
    assert update.pending_counts == PendingCounts(steer=2, follow_up=3)
    left = after(state, (update,)).queue
    assert names(left) == names(WAITING)
    assert [each.text for each in left if each.input_id == name] == ["new"]


@pytest.mark.parametrize(
    ("name", "before", "expected"),
    [
        ("f3", "f1", ["s1", "s2", "old", "f3", "f1", "f2"]),
        ("f1", "f3", ["s1", "s2", "old", "f2", "f1", "f3"]),
        ("f1", None, ["s1", "s2", "old", "f2", "f3", "f1"]),
        ("s2", "s1", ["s2", "s1", "old", "f1", "f2", "f3"]),
        ("old", None, ["s1", "s2", "old", "f1", "f2", "f3"]),
    ],
)
def test_a_moved_input_changes_the_order_of_its_kind(
    name: str, before: str | None, expected: list[str]
) -> None:
    state = running(queue=WAITING)
    update = queue_edits.move_queued(state, name, before)
    assert names(queue.in_order(after(state, (update,)).queue)) == expected


@pytest.mark.parametrize("before", ["s1", "f1", "m", "unknown"])
def test_an_input_moves_only_among_others_of_its_kind(before: str) -> None:
    with pytest.raises(CommandRejected, match="input_not_movable") as refused:
        queue_edits.move_queued(running(queue=WAITING), "f1", before)
    assert refused.value.details == {"kind": "follow_up"}


def test_a_removed_input_is_told_as_cleared() -> None:
    state = running(queue=WAITING)
    (update,), removed = queue_edits.remove_queued(state, "f2", client_id="c")
    assert (update.change, update.client_id) == ("cleared", "c")
    assert names(removed) == ["f2"]
    left = [name for name in names(WAITING) if name != "f2"]
    assert names(after(state, (update,)).queue) == left


CHANGES: list[Callable[[SessionState, str], object]] = [
    lambda state, name: queue_edits.edit_queued(state, queued(name)),
    lambda state, name: queue_edits.move_queued(state, name, None),
    queue_edits.remove_queued,
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("name", "word"), [("unknown", "input_not_found"), ("m", "input_not_found")]
)
def test_what_does_not_wait_is_not_changed(
    change: Callable[[SessionState, str], object], name: str, word: str
) -> None:
    with pytest.raises(CommandRejected, match=word):
        change(running(queue=WAITING), name)


@pytest.mark.parametrize("change", CHANGES)
def test_the_prompt_that_a_run_is_about_to_begin_with_is_not_changed(
    change: Callable[[SessionState, str], object],
) -> None:
    with pytest.raises(CommandRejected, match="input_delivered") as refused:
        change(running(queue=(prompt_input("own"),)), "own")
    assert "steer" in str(refused.value.cause)
    change(session(queue=(prompt_input("own"),)), "own")


@pytest.mark.parametrize("seen", [0, 6, 8])
def test_a_change_of_another_revision_is_refused(seen: int) -> None:
    state = session(queue=WAITING, queue_revision=7)
    with pytest.raises(CommandRejected, match="queue_changed") as refused:
        queue_edits.require_waiting(state, "f1", seen)
    assert refused.value.details == {"queue_revision": 7}
    for known in (7, None):
        assert queue_edits.require_waiting(state, "f1", known).input_id == "f1"


def test_an_edit_counts_for_the_bound_of_the_queue_without_what_it_replaces() -> None:
    nearly = queued("big", "follow_up", text_bytes=QUEUED_CHARS_MAX - 100)
    state = session(queue=(nearly, queued("s", text_bytes=100)))
    queue_edits.edit_queued(state, msgspec.structs.replace(nearly, text_bytes=100))
    queue_edits.edit_queued(state, queued("s", text_bytes=100))
    with pytest.raises(CommandRejected, match="queue_full"):
        queue_edits.edit_queued(state, queued("s", text_bytes=101))


def test_a_change_says_in_which_run_it_happened() -> None:
    during = queue_edits.move_queued(running(queue=WAITING), "f1", None)
    between = queue_edits.move_queued(session(queue=WAITING), "f1", None)
    assert (during.run_id, between.run_id) == ("run-1", UNSET)
