"""The lifecycle checker finds every kind of imbalance."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.harness.lifecycle import LifecycleChecker

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


def call(kind: str, **more: Any) -> Step:
    payload = {"run_id": "r", "turn_id": "1", "tool_call_id": "c", "tool_name": "read"}
    return kind, payload | {"attempt": 1} | more


ASKED: Step = ("model_input", {"run_id": "r", "turn_id": "1", "omitted_count": 0})
REQUESTED = call("tool_call_requested")
ALLOWED = call("tool_call_policy_evaluated", source="registry", decision="allow")
REFUSED = call("tool_call_policy_evaluated", source="session", decision="deny")
APPROVED = call("tool_call_approved")
DENIED = call("tool_call_denied")
STARTED = call("tool_call_started")
COMPLETED = call("tool_call_completed", duration_ms=1)

USER = [message("start", "u", role="user", text="hi"), message("end", "u", text="hi")]
ASSISTANT = [
    message("start", role="assistant"),
    message("update", delta="a"),
    message("update", delta="b"),
    message("end", text="ab"),
]
TOOL = [tool("start"), tool("update", delta="x"), tool("end", executed=True)]
RAN = [
    TOOL[0],
    REQUESTED,
    ALLOWED,
    APPROVED,
    STARTED,
    TOOL[1],
    COMPLETED,
    TOOL[2],
]
NOT_RUN = [TOOL[0], REQUESTED, ALLOWED, REFUSED, DENIED, TOOL[1], tool("end", executed=False)]
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


def check(steps: list[Step], **options: Any) -> LifecycleChecker:
    checker = LifecycleChecker(**options)
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
        ([START, TURN, TOOL[2]], "no tool call is running"),
        ([START, TURN, TOOL[0], tool("update", "d", delta="")], "c is the running call"),
        ([START, TURN, *TOOL, TOOL[0]], "a tool_call_id was used twice"),
        ([START, TOOL[0]], "outside of a turn"),
        ([START, ("warning", {"run_id": "r", "turn_id": "1"})], "outside of a turn"),
        ([("turn_start", {"turn_id": "1"})], "has no run_id"),
        ([START, ("status", {"run_id": "r", "session_id": "s2"})], "changed its session"),
    ],
)
def test_an_unbalanced_run_is_reported(steps: list[Step], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check(steps)


def in_turn(*steps: Step) -> list[Step]:
    return [START, TURN, *USER, *steps, TURN_END, END]


@pytest.mark.parametrize("calls", [RAN, NOT_RUN], ids=["run", "not run"])
def test_a_complete_call_passes(calls: list[Step]) -> None:
    check(in_turn(ASKED, *ASSISTANT, *calls), complete_after=0)


def test_a_run_of_an_earlier_version_may_lack_events() -> None:
    earlier = [START, TURN, *USER, *ASSISTANT, TOOL[0], STARTED, *TOOL[1:], TURN_END, END]
    check(earlier)
    check(earlier, complete_after=1)
    with pytest.raises(AssertionError, match="an answer without a model_input"):
        check(earlier, complete_after=0)


def test_a_call_without_a_request_is_reported_if_events_must_be_complete() -> None:
    with pytest.raises(AssertionError, match="the call was never requested"):
        check(in_turn(TOOL[0], STARTED, COMPLETED, TOOL[2]), complete_after=0)


NOT_EXECUTED = tool("end", executed=False)


@pytest.mark.parametrize(
    ("steps", "complaint"),
    [
        ([REQUESTED], "no tool call is running"),
        ([TOOL[0], call("tool_call_requested", tool_name="ls")], "the running call is of read"),
        ([TOOL[0], call("tool_call_requested", attempt=0)], "attempts count from 1"),
        ([TOOL[0], REQUESTED, REQUESTED], "requested twice"),
        ([TOOL[0], STARTED, REQUESTED], "requested after it was started"),
        ([TOOL[0], ALLOWED], "was not requested"),
        ([TOOL[0], REQUESTED, call("tool_call_approved", attempt=2)], "attempt 1 is the one"),
        ([TOOL[0], REQUESTED, REFUSED, ALLOWED], "a further source is asked after one denied"),
        ([TOOL[0], REQUESTED, REFUSED, APPROVED], "a call is approved that a source denies"),
        ([TOOL[0], REQUESTED, APPROVED, DENIED], "decided already"),
        ([TOOL[0], REQUESTED, DENIED, DENIED], "decided already"),
        ([TOOL[0], REQUESTED, APPROVED, ALLOWED], "decided already"),
        ([TOOL[0], REQUESTED, APPROVED, call("permission_requested")], "decided already"),
        ([TOOL[0], REQUESTED, STARTED], "that was not approved"),
        ([TOOL[0], REQUESTED, DENIED, STARTED], "that was not approved"),
        ([TOOL[0], REQUESTED, APPROVED, call("tool_call_started", attempt=2)], "attempt 1 is"),
        ([TOOL[0], REQUESTED, APPROVED, STARTED, STARTED], "started twice"),
        ([TOOL[0], REQUESTED, TOOL[1]], "output of a call that does not run"),
        ([TOOL[0], REQUESTED, APPROVED, TOOL[1]], "output of a call that does not run"),
        ([TOOL[0], REQUESTED, APPROVED, COMPLETED], "completed that was not started"),
        ([*RAN[:-1], COMPLETED], "completed twice"),
        ([*RAN[:-1], TOOL[1]], "output of a call that is completed"),
        ([*RAN[:-2], call("tool_call_completed")], "came to its end or was cut off"),
        (
            [*RAN[:-2], call("tool_call_completed", duration_ms=1, stop_reason="aborted")],
            "came to its end or was cut off",
        ),
        (
            [
                *(TOOL[0], REQUESTED, APPROVED),
                call("tool_call_started", executed_by="mcp", permission_mode="ask"),
                call("tool_call_completed", stop_reason="aborted", executed_by="mcp"),
            ],
            "another permission_mode than its start",
        ),
        ([*RAN[:-2], TOOL[2]], "not completed"),
        ([*RAN[:-1], NOT_EXECUTED], "executed is not whether"),
        ([*NOT_RUN[:-1], TOOL[2]], "executed is not whether"),
        ([TOOL[0], REQUESTED, NOT_EXECUTED], "never decided"),
        ([ASKED, ASSISTANT[0], ASKED], "a model is asked while a message is open"),
        ([TOOL[0], ASKED], "a model is asked while a tool runs"),
        ([("model_input", ASKED[1] | {"omitted": [{}]})], "more omitted than counted"),
        ([ASKED, *ASSISTANT, message("start", "m2", role="assistant")], "without a model_input"),
    ],
)
def test_an_invalid_sequence_of_call_events_is_reported(steps: list[Step], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check(in_turn(*steps), complete_after=0)


def of_d(*kinds: Step) -> list[Step]:
    """Return the steps as those of the call d."""
    return [(type_, payload | {"tool_call_id": "d"}) for type_, payload in kinds]


WAITED = of_d(REQUESTED, APPROVED, STARTED)
DONE = of_d(
    call("tool_call_output", delta="x"), call("tool_call_completed", duration_ms=1, result="x")
)
LATE = of_d(*TOOL)


@pytest.mark.parametrize(
    "steps",
    [
        [ASSISTANT[0], *WAITED, *DONE, *ASSISTANT[1:], *LATE],
        [*RAN[:4], *WAITED, *RAN[4:6], *DONE, *RAN[6:], *LATE],
        [*RAN[:4], *WAITED, *RAN[4:], LATE[0], *of_d(TOOL[1]), DONE[1], LATE[2]],
        [*RAN[:4], *of_d(REQUESTED, DENIED), *RAN[4:], LATE[0], *of_d(TOOL[1], NOT_EXECUTED)],
    ],
)
def test_the_steps_of_a_call_may_come_before_its_bracket(steps: list[Step]) -> None:
    check(in_turn(ASKED, *steps), complete_after=0)


@pytest.mark.parametrize(
    ("steps", "complaint"),
    [
        ([ASSISTANT[0], *WAITED, *ASSISTANT[1:]], "calls wait for their bracket"),
        ([ASSISTANT[0], *of_d(STARTED)], "no tool call is running"),
        ([ASSISTANT[0], *of_d(REQUESTED, REQUESTED)], "a tool_call_id was used twice"),
        ([ASSISTANT[0], *WAITED, *of_d(COMPLETED)], "a call has its result here if it had to wait"),
        ([ASSISTANT[0], *WAITED, *DONE, DONE[0]], "output of a call that is completed"),
        ([*RAN[:5], call("tool_call_output", delta="x")], "of a call with a bracket"),
        ([*RAN[:5], *WAITED, *of_d(TOOL[1])], "c is the running call"),
    ],
)
def test_a_call_that_breaks_the_order_while_it_waits_is_reported(
    steps: list[Step], complaint: str
) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check(in_turn(ASKED, *steps))


def joined(text: str, first: int) -> list[Step]:
    """Return a run whose deltas 4 and 5 are followed by a joined delta from ``first`` on."""
    told = [message("update", delta="a"), message("update", delta="b")]
    update = message("update", delta=text, joined_from=f"evt-{first}")
    begin = [START, TURN, message("start", role="assistant"), *told, update]
    return [*begin, message("end", text="abc"), TURN_END, END]


@pytest.mark.parametrize(("text", "first"), [("abc", 4), ("bc", 5)])
def test_a_joined_delta_replaces_its_parts(text: str, first: int) -> None:
    check(joined(text, first))


@pytest.mark.parametrize(("text", "first"), [("abc", 5), ("bc", 4), ("c", 6)])
def test_a_joined_delta_with_another_text_is_reported(text: str, first: int) -> None:
    with pytest.raises(AssertionError, match=r"not what was told|no earlier event"):
        check(joined(text, first))


def test_ids_that_do_not_grow_are_reported() -> None:
    checker = LifecycleChecker()
    checker.feed(lines([START], 7)[0])
    with pytest.raises(AssertionError, match="event ids must grow: 7 after 7"):
        checker.feed(lines([TURN], 7)[0])


def test_the_report_shows_the_event() -> None:
    with pytest.raises(AssertionError, match=r'"type": "turn_end"'):
        check([START, TURN_END])
