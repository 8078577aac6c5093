"""The rules of the input queue, one by one and as properties."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nousd.machine.session import queue
from nousd.wire.objects.field_types import QueueMode
from nousd.wire.objects.inputs import PendingCounts
from tests.machine.builders import names, prompt_input, queued

MIXED = (
    queued("f1", "follow_up"),
    queued("s1", "steer"),
    prompt_input("p1"),
    queued("f2", "follow_up"),
    queued("s2", "steer"),
)


def next_turn(
    inputs: queue.Inputs,
    *,
    own_prompt: str | None = None,
    steering: QueueMode = "one-at-a-time",
    follow_up: QueueMode = "one-at-a-time",
) -> queue.Turn | None:
    return queue.next_turn(inputs, own_prompt=own_prompt, steering=steering, follow_up=follow_up)


# --- order -----------------------------------------------------------------------------------


def test_steers_go_before_prompts_and_both_before_follow_ups() -> None:
    assert names(queue.in_order(MIXED)) == ["s1", "s2", "p1", "f1", "f2"]


def test_inputs_of_one_kind_keep_the_order_of_acceptance() -> None:
    assert names(queue.of_kind(MIXED, "follow_up")) == ["f1", "f2"]


def test_a_prompt_does_not_count_as_waiting() -> None:
    assert queue.pending_counts(MIXED) == PendingCounts(steer=2, follow_up=2)


def test_an_empty_queue_has_no_next_turn() -> None:
    assert next_turn(()) is None


def test_a_run_begins_with_its_own_prompt_before_all_queued_inputs() -> None:
    assert next_turn(MIXED, own_prompt="p1") == queue.Turn("prompt", (MIXED[2],))


def test_a_run_continues_with_steers_after_its_prompt() -> None:
    left = queue.without(MIXED, (MIXED[2],))
    assert next_turn(left, own_prompt="p1") == queue.Turn("steer", (MIXED[1],))


def test_a_prompt_of_another_run_goes_after_the_steers() -> None:
    turn = next_turn(MIXED, own_prompt="another")
    assert turn is not None
    assert (turn.kind, names(turn.inputs)) == ("steer", ["s1"])


def test_a_prompt_that_never_began_goes_before_follow_ups() -> None:
    turn = next_turn((queued("f", "follow_up"), prompt_input("p")))
    assert turn is not None
    assert (turn.kind, names(turn.inputs)) == ("prompt", ["p"])


# --- modes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steering", "follow_up", "turns"),
    [
        ("one-at-a-time", "one-at-a-time", [["s1"], ["s2"], ["p1"], ["f1"], ["f2"]]),
        ("all", "one-at-a-time", [["s1", "s2"], ["p1"], ["f1"], ["f2"]]),
        ("one-at-a-time", "all", [["s1"], ["s2"], ["p1"], ["f1", "f2"]]),
        ("all", "all", [["s1", "s2"], ["p1"], ["f1", "f2"]]),
    ],
)
def test_a_queue_mode_applies_only_to_its_own_kind_of_input(
    steering: QueueMode, follow_up: QueueMode, turns: list[list[str]]
) -> None:
    left: queue.Inputs = MIXED
    taken = []
    while (turn := next_turn(left, steering=steering, follow_up=follow_up)) is not None:
        taken.append(names(turn.inputs))
        left = queue.without(left, turn.inputs)
    assert taken == turns


def test_mode_all_never_joins_prompts() -> None:
    prompts = (prompt_input("p1"), prompt_input("p2"))
    turn = next_turn(prompts, steering="all", follow_up="all")
    assert turn is not None
    assert names(turn.inputs) == ["p1"]


def test_the_texts_of_one_turn_are_joined_with_a_line_feed() -> None:
    turn = queue.Turn("steer", (queued("s1"), queued("s2")))
    assert turn.text == "text of s1\ntext of s2"


# --- pending steers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waiting", "is_pending"),
    [
        ((), False),
        ((queued("s", "steer", "run-1"),), True),
        ((queued("s", "steer", "run-0"),), False),
        ((queued("s", "steer", None),), False),
        ((queued("f", "follow_up", "run-1"),), False),
        ((prompt_input("p", "run-1"),), False),
        ((queued("old", "steer", "run-0"), queued("new", "steer", "run-1")), True),
    ],
)
def test_only_a_steer_of_the_same_run_is_a_pending_steer(
    waiting: queue.Inputs, is_pending: bool
) -> None:
    assert queue.has_pending_steer(waiting, "run-1") is is_pending


# --- changing --------------------------------------------------------------------------------


def test_removing_inputs_keeps_the_order_of_the_others() -> None:
    assert names(queue.without(MIXED, (MIXED[0], MIXED[4]))) == ["s1", "p1", "f2"]


def test_inputs_are_removed_by_their_id() -> None:
    assert names(queue.without(MIXED, (queued("f1", "steer", "another-run"),))) == [
        "s1",
        "p1",
        "f2",
        "s2",
    ]


def test_an_input_that_is_put_again_moves_to_the_end() -> None:
    promoted = queued("f1", "steer")
    changed = queue.with_each(MIXED, (promoted,))
    assert names(changed) == ["s1", "p1", "f2", "s2", "f1"]
    assert changed[-1] is promoted


# --- properties ------------------------------------------------------------------------------

KINDS: Sequence[str] = ("steer", "prompt", "follow_up")


@st.composite
def queues(draw: st.DrawFn) -> queue.Inputs:
    drawn = draw(st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(["r1", "r2"]))))
    return tuple(queued(f"i{n}", kind, run) for n, (kind, run) in enumerate(drawn))


MODES: st.SearchStrategy[QueueMode] = st.sampled_from(["one-at-a-time", "all"])


@given(queues(), MODES, MODES, st.none() | st.integers(0, 5).map("i{}".format))
def test_turns_consume_every_input_exactly_once(
    inputs: queue.Inputs, steering: QueueMode, follow_up: QueueMode, own_prompt: str | None
) -> None:
    left = inputs
    taken: list[str] = []
    while left:
        turn = next_turn(
            left,
            own_prompt=own_prompt,
            steering=steering,
            follow_up=follow_up,
        )
        assert turn is not None
        assert turn.inputs
        taken += names(turn.inputs)
        left = queue.without(left, turn.inputs)
    ordered = names(queue.in_order(inputs))
    if own_prompt in ordered:
        ordered = [own_prompt, *(name for name in ordered if name != own_prompt)]
    assert taken == ordered


@given(queues())
def test_order_is_by_kind_then_by_acceptance(inputs: queue.Inputs) -> None:
    ordered = queue.in_order(inputs)
    assert sorted(names(ordered)) == sorted(names(inputs))
    ranks = [(queue.ORDER.index(item.kind), inputs.index(item)) for item in ordered]
    assert ranks == sorted(ranks)
