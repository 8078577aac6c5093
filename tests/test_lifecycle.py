"""The lifecycle checker finds every kind of imbalance; a checker that finds nothing is worth nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.lifecycle import LifecycleChecker

Step = tuple[str, dict[str, Any]]

START: Step = ("agent_start", {"run_id": "r"})
END: Step = ("agent_end", {"run_id": "r"})
TURN: Step = ("turn_start", {"run_id": "r", "turn_id": "1"})
TURN_END: Step = ("turn_end", {"run_id": "r", "turn_id": "1"})


def message(kind: str, id_: str = "m", **more: Any) -> Step:
    return f"message_{kind}", {"run_id": "r", "turn_id": "1", "message_id": id_, **more}


def tool(kind: str, id_: str = "c", **more: Any) -> Step:
    payload = {"run_id": "r", "turn_id": "1", "tool_call_id": id_, "tool_name": "read"}
    return f"tool_execution_{kind}", payload | more


USER = [message("start", "u", role="user", text="hi"), message("end", "u", text="hi")]
ASSISTANT = [
    message("start", role="assistant"),
    message("update", delta="a"),
    message("update", delta="b"),
    message("end", text="ab"),
]
TOOL = [tool("start"), tool("update", delta="x"), tool("end")]
WHOLE = [START, TURN, *USER, *ASSISTANT, *TOOL, TURN_END, END]


def lines(steps: list[Step], first_id: int = 1) -> list[bytes]:
    return [
        json.dumps(
            {
                "v": "1",
                "id": f"evt-{number}",
                "type": type_,
                "payload": {"session_id": "s"} | payload,
            }
        ).encode()
        + b"\n"
        for number, (type_, payload) in enumerate(steps, first_id)
    ]


def check(steps: list[Step]) -> LifecycleChecker:
    checker = LifecycleChecker()
    for line in lines(steps):
        checker.feed(line)
    checker.finish()
    return checker


def without(step: Step) -> list[Step]:
    return [other for other in WHOLE if other is not step]


def test_a_balanced_run_passes() -> None:
    assert check(WHOLE).ended_runs == 1


def test_runs_may_be_interleaved() -> None:
    other: list[Step] = [
        (type_, payload | {"run_id": "other", "session_id": "s2"}) for type_, payload in WHOLE
    ]
    mixed = [step for pair in zip(WHOLE, other, strict=True) for step in pair]
    assert check(mixed).ended_runs == 2


def test_events_outside_of_runs_pass() -> None:
    check([("session_created", {}), *WHOLE, ("queue_update", {"run_id": "r"})])


def test_gaps_in_the_ids_pass() -> None:
    checker = LifecycleChecker()
    for line in lines([START], 5) + lines([END], 900):
        checker.feed(line)
    checker.finish()


@pytest.mark.parametrize(
    ("steps", "complaint"),
    [
        (without(END), "agent_start without agent_end: r"),
        (without(START), "outside of its run"),
        ([*WHOLE, START], "second agent_start"),
        ([*WHOLE, END], "outside of its run"),
        ([*WHOLE, ("status", {"run_id": "r", "message": "late"})], "outside of its run"),
        (without(TURN_END), "agent_end while turn 1 is open"),
        (without(TURN), "outside of a turn"),
        ([START, TURN, TURN], "turn_start while turn 1 is open"),
        ([START, ("turn_start", {"run_id": "r", "turn_id": "2"})], "expected turn_id 1"),
        ([START, TURN, ("turn_end", {"run_id": "r", "turn_id": "2"})], "turn 1 is the open one"),
        ([START, TURN, ASSISTANT[0], TURN_END], "turn_end while a message is open"),
        ([START, TURN, ASSISTANT[0], USER[0]], "message_start while a message is open"),
        ([START, TURN, ASSISTANT[1]], "no message is open"),
        (
            [START, TURN, ASSISTANT[0], message("update", "x", delta="")],
            "message m is the open one",
        ),
        ([START, TURN, ASSISTANT[0], message("end", text="else")], "not what was told"),
        ([START, TURN, USER[0], message("end", "u", text="")], "not what was told"),
        ([START, TURN, USER[0], message("update", "u", delta="a")], "of a user message"),
        ([START, TURN, message("start", role="user")], "has no text"),
        ([START, TURN, *ASSISTANT, ASSISTANT[0]], "a message_id was used twice"),
        ([START, TURN, ASSISTANT[0], TOOL[0]], "a tool starts while a message is open"),
        ([START, TURN, TOOL[0], tool("start", "d")], "tool call c is still running"),
        ([START, TURN, TOOL[0], ASSISTANT[0]], "message_start while a tool runs"),
        ([START, TURN, TOOL[0], TURN_END], "turn_end while a tool runs"),
        ([START, TURN, TOOL[2]], "None is the running call"),
        ([START, TURN, TOOL[0], tool("update", "d", delta="")], "c is the running call"),
        ([START, TURN, *TOOL, TOOL[0]], "a tool_call_id was used twice"),
        ([START, TOOL[0]], "outside of a turn"),
        ([START, ("warning", {"run_id": "r", "turn_id": "1"})], "outside of a turn"),
        ([("turn_start", {"turn_id": "1"})], "has no run_id"),
        ([START, ("status", {"run_id": "r", "session_id": "s2"})], "changed its session"),
    ],
)
def test_an_imbalance_is_named(steps: list[Step], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check(steps)


def test_ids_must_grow() -> None:
    checker = LifecycleChecker()
    checker.feed(lines([START], 7)[0])
    with pytest.raises(AssertionError, match="event ids must grow: 7 after 7"):
        checker.feed(lines([TURN], 7)[0])


def test_the_complaint_shows_the_event() -> None:
    with pytest.raises(AssertionError, match=r'"type": "turn_end"'):
        check([START, TURN_END])
