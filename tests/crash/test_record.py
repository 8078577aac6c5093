"""The checker of crash campaigns finds every forbidden behaviour."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.crash.inputs import Handed
from tests.crash.record import CrashRecord

HANDED = Handed("prompt", "s", "run MARK-1", "m1")
LATER = Handed("follow_up", "s", "later", "m2")
INPUT = {"input_id": "in-1", "kind": "prompt", "text": HANDED.text, "client_message_id": "m1"}
QUEUED = {"input_id": "in-2", "kind": "follow_up", "text": "later", "client_message_id": "m2"}
STEER = {**QUEUED, "kind": "steer"}
CALL = {
    "turn_id": "1",
    "tool_call_id": "t1",
    "tool_name": "bash",
    "args": {"command": "echo MARK-1"},
}
ENDED = {**CALL, "executed": True, "is_error": False}
MESSAGE = {"turn_id": "1", "message_id": "e2"}
ENTRY = {"id": "e1", "role": "user", "text": HANDED.text, "input_ids": ["in-1"]}
ANSWER = {"id": "e2", "parent_id": "e1", "role": "assistant", "text": "hello"}

Log = list[tuple[str, dict[str, Any]]]

LOG: Log = [
    ("session_created", {"created_at": "now", "name": "first"}),
    ("session_activated", {}),
    ("queue_update", {"change": "accepted", "inputs": [INPUT]}),
    ("agent_start", {"run_id": "r"}),
    ("turn_start", {"run_id": "r", "turn_id": "1"}),
    ("queue_update", {"change": "consumed", "inputs": [INPUT]}),
    ("entry_appended", {"entry": ENTRY}),
    ("message_start", {"run_id": "r", **MESSAGE, "role": "assistant"}),
    ("message_update", {"run_id": "r", **MESSAGE, "delta": "hello"}),
    ("message_end", {"run_id": "r", **MESSAGE, "text": "hello"}),
    ("entry_appended", {"entry": ANSWER}),
    ("tool_execution_start", {"run_id": "r", **CALL}),
    ("tool_execution_end", {"run_id": "r", **ENDED}),
    ("queue_update", {"change": "accepted", "inputs": [QUEUED]}),
    ("queue_update", {"change": "promoted", "inputs": [STEER]}),
    ("session_updated", {"model": "m"}),
    ("session_updated", {"active_tools": ["bash"]}),
    ("session_updated", {"leaf_id": "e1"}),
    ("turn_end", {"run_id": "r", "turn_id": "1"}),
    ("agent_end", {"run_id": "r", "status": "interrupted"}),
    ("session_created", {"session_id": "b", "created_at": "now", "parent_id": "s"}),
    ("session_activated", {"session_id": "b"}),
    ("session_activated", {"session_id": "s"}),
    ("session_created", {"session_id": "d", "created_at": "now"}),
    ("session_updated", {"session_id": "d", "name": "gone"}),
    ("session_deleted", {"session_id": "d"}),
]
"""The log of a good daemon, except that it should have forgotten what ``d`` was."""

KEPT = [item for item in LOG if item[1].get("session_id") != "d" or item[0] == "session_deleted"]
DIED = "2026-01-01T00:03:10.000000Z"


def numbers(log: Log) -> list[int]:
    """Number the events of ``LOG`` in tens, wherever they stand; added events get numbers between."""
    number, given = 0, []
    for item in log:
        own = (LOG.index(item) + 1) * 10 if item in LOG else 0
        number = own if own > number else number + 1
        given.append(number)
    return given


def line(number: int, type: str, payload: Mapping[str, Any]) -> bytes:
    event = {
        "id": f"evt-{number}",
        "type": type,
        "payload": {"session_id": "s", **payload},
        "ts": f"2026-01-01T00:{number // 60:02}:{number % 60:02}.000000Z",
    }
    return json.dumps(event).encode() + b"\n"


def lines(log: Log) -> list[bytes]:
    return [line(number, *item) for number, item in zip(numbers(log), log, strict=True)]


def told(record: CrashRecord) -> None:
    """Tell the record everything that clients of that daemon can have been told."""
    sessions, inputs, runs = record.sessions, record.inputs, record.runs
    sessions.told_created({"session_id": "s", "name": "first"})
    sessions.told_created({"session_id": "b", "parent_id": "s"})
    sessions.told_set("s", "active", value=True)
    sessions.told_exists("s")
    sessions.asked_to_delete("d")
    sessions.told_deleted("d")
    inputs.told_accepted(HANDED, {"input_id": "in-1", "run_id": "r"})
    inputs.told_accepted(LATER, {"input_id": "in-2", "run_id": "r"})
    inputs.told_refused(Handed("prompt", "s", "no", "m3"))
    inputs.told_changed("promoted", "s", ["in-2"])
    runs.asked("s", HANDED.text)
    runs.told_result({"run_id": "r", "session_id": "s", "status": "interrupted", "output": "hello"})
    sessions.told_set("s", "model", "m")
    sessions.told_set("s", "active_tools", ["bash"])
    sessions.told_set("s", "leaf_id", "e1")
    sessions.told_entries("s", [ENTRY, ANSWER])
    record.told_event(lines(LOG)[3])
    record.told_read_event(json.loads(lines(LOG)[4]))
    record.told_cursor("evt-200")
    runs.died(DIED)


STATE = {
    "run_state": "idle",
    "name": "first",
    "leaf_id": "e1",
    "steering_mode": "one-at-a-time",
    "follow_up_mode": "one-at-a-time",
    "permission_mode": "yolo",
    "model": "m",
}
TOOLS = [{"name": "bash", "active": True}, {"name": "read", "active": False}]


def violations(log: Log = KEPT, marks: tuple[str, ...] = ("MARK-1",), **answers: Any) -> list[str]:
    """Return the violations of a log and of answers for clients that were told the events of ``LOG``."""
    record = CrashRecord()
    told(record)
    for each in lines(log):
        record.read(each)
    record.check(marks, head=answers.get("head", 260))
    record.inputs.check_queue("s", answers.get("queue", [STEER]))
    again = {"input_id": "in-1", "run_id": "r", "repeated": True}
    record.inputs.check_resent(HANDED, answers.get("resent", again))
    record.runs.check_run({"run_id": "r", "status": answers.get("status", "interrupted")})
    if "s" not in record.sessions.deleted:
        record.sessions.check_state("s", answers.get("state", STATE))
        record.sessions.check_tools("s", answers.get("tools", TOOLS))
        record.sessions.check_messages("s", answers.get("messages", _page(ENTRY)))
    record.sessions.check_state("d", answers.get("deleted"))
    record.sessions.check_active(answers.get("active", "s"))
    record.check_reread(lines(log))
    return record.violations


def _page(*entries: Mapping[str, Any]) -> dict[str, Any]:
    return {"messages": list(entries), "has_more": False}


def test_a_log_and_answers_that_match_the_acknowledgements_have_no_violations() -> None:
    assert violations() == []


def at(type: str, **fields: Any) -> int:
    """Return the index of the first event of the log with these fields."""
    return next(
        index
        for index, (other, payload) in enumerate(KEPT)
        if other == type and fields.items() <= payload.items()
    )


def without(type: str, **fields: Any) -> Log:
    index = at(type, **fields)
    return [*KEPT[:index], *KEPT[index + 1 :]]


def again(type: str, **fields: Any) -> Log:
    index = at(type, **fields)
    return [*KEPT[: index + 1], (type, {**KEPT[index][1], "again": 1}), *KEPT[index + 1 :]]


def changed(type: str, changes: Mapping[str, Any], **fields: Any) -> Log:
    index = at(type, **fields)
    return [*KEPT[:index], (type, {**KEPT[index][1], **changes}), *KEPT[index + 1 :]]


@pytest.mark.parametrize(
    ("log", "found"),
    [
        (without("queue_update", change="accepted"), "was accepted and is not in the log"),
        (again("queue_update", change="accepted"), "in-1 is in the log twice"),
        (again("queue_update", change="accepted"), "('s', 'm1') was accepted twice"),
        (again("queue_update", change="consumed"), "in-1 was consumed while it was"),
        (without("queue_update", change="consumed"), "queue of s"),
        (without("queue_update", change="promoted"), "in-2 was told to be promoted"),
        (
            [*KEPT, ("queue_update", {"change": "cleared", "inputs": [STEER]})],
            "queue of s",
        ),
        (
            changed("queue_update", {"inputs": [{**INPUT, "text": "other"}]}, change="consumed"),
            "the text of in-1 changed as it was consumed",
        ),
        (
            changed("queue_update", {"inputs": [{**INPUT, "text": "other"}]}, change="accepted"),
            "the text of in-1 has changed",
        ),
        (
            changed("queue_update", {"inputs": [{**INPUT, "client_message_id": "m3"}]}),
            "was refused and is in the log",
        ),
        (again("entry_appended", entry=ENTRY), "an input is in two entries"),
        (again("entry_appended", entry=ENTRY), "entry e1 is in the log twice"),
        (without("entry_appended", entry=ANSWER), "an entry was told and is not in the log"),
        (
            changed("entry_appended", {"entry": {**ANSWER, "text": "x"}}, entry=ANSWER),
            "an entry was told as",
        ),
        (again("agent_end"), "second agent_end of r"),
        (without("agent_end"), "agent_start without agent_end: r"),
        (changed("agent_end", {"status": "completed"}), "was cut off"),
        (changed("agent_end", {"status": "error"}), "r was told to be interrupted"),
        (without("agent_start"), "r was acknowledged and never began"),
        (without("agent_start"), "seen, but not so"),
        (changed("turn_start", {"extra": 1}), "read, but not so"),
        (changed("message_end", {"text": "other"}), "the result"),
        (without("session_created", name="first"), "was told, by the log it is None"),
        (without("session_created", name="first"), "s was listed and is not in the log"),
        (changed("session_created", {"parent_id": "d"}, session_id="b"), "was told, by the log"),
        (again("session_created", name="first"), "s was created twice"),
        (without("session_updated", model="m"), "'model', 'm') was told 1 times, the log has 0"),
        (without("session_updated", leaf_id="e1"), "'leaf_id', 'e1') was told 1 times"),
        (without("session_activated"), "'active', True) was told 2 times, the log has 1"),
        (without("session_deleted"), "d was told to be deleted and is not"),
        ([*KEPT, ("session_deleted", {})], "s is deleted and nobody asked for it"),
        ([*KEPT, LOG[-2]], "d is deleted, or not created, and has a"),
    ],
)
def test_a_changed_log_is_a_violation(log: Log, found: str) -> None:
    assert any(found in violation for violation in violations(log)), violations(log)


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ({"head": 199}, "evt-200 was told, the log ends at evt-199"),
        ({"queue": []}, "queue of s"),
        ({"queue": [QUEUED]}, "queue of s"),
        ({"resent": None}, "and, sent again, None"),
        ({"resent": {"input_id": "in-9", "run_id": "r"}}, "and, sent again"),
        ({"resent": {"input_id": "in-1", "run_id": "r9", "repeated": True}}, "and, sent again"),
        ({"resent": {"input_id": "in-1", "run_id": "r"}}, "and, sent again"),
        ({"status": "completed"}, "by its events interrupted"),
        ({"state": {**STATE, "run_state": "running"}}, "s runs by itself"),
        ({"state": {**STATE, "name": "other"}}, "s: name other, by events first"),
        ({"state": {**STATE, "leaf_id": "e2"}}, "s: leaf_id e2, by events e1"),
        ({"state": {**STATE, "model": "mock"}}, "s: model mock, by events m"),
        ({"state": None}, "s: state None"),
        ({"deleted": STATE}, "d: state"),
        ({"tools": [{**tool, "active": True} for tool in TOOLS]}, "s: tools ['bash', 'read']"),
        ({"messages": _page()}, "s: messages []"),
        ({"messages": _page(ENTRY, ANSWER)}, "s: messages"),
        ({"active": "b"}, "active is 'b'"),
    ],
)
def test_an_answer_that_differs_from_the_log_is_a_violation(
    answers: dict[str, Any], found: str
) -> None:
    assert [found in violation for violation in violations(**answers)] == [True]


@pytest.mark.parametrize(
    ("marks", "found"),
    [
        (("MARK-1", "MARK-1"), "MARK-1 ran 2 times for 1 begun calls"),
        ((), "MARK-1 is said to have run and has not"),
    ],
)
def test_a_command_that_ran_twice_or_never_is_a_violation(
    marks: tuple[str, ...], found: str
) -> None:
    assert violations(KEPT, marks) == [found]


def test_a_mark_of_a_call_reported_as_not_started_is_a_violation() -> None:
    log = changed("tool_execution_end", {"executed": False, "is_error": True})
    assert violations(log, ()) == []
    assert violations(log) == ["MARK-1 ran 1 times for 0 begun calls"]


def test_a_log_that_reads_differently_the_second_time_is_a_violation() -> None:
    record = CrashRecord()
    for each in lines(LOG[:9]):
        record.read(each)
    record.check_reread(lines(LOG[:8]))
    assert [v.partition(":")[0] for v in record.violations] == ["evt-90 is not what it was"]


def test_content_of_a_deleted_session_in_the_log_is_a_violation() -> None:
    record = CrashRecord()
    record.sessions.asked_to_delete("d")
    for each in lines(LOG):
        record.read(each)
    record.check_reread(lines(LOG))
    assert [v.partition(":")[0] for v in record.violations] == [
        "evt-240 is not what it was",
        "evt-250 is not what it was",
    ]


def test_two_acknowledgements_of_one_input_are_a_violation() -> None:
    record = CrashRecord()
    record.inputs.told_accepted(HANDED, {"input_id": "in-1", "run_id": "r"})
    record.inputs.told_accepted(HANDED, {"input_id": "in-1", "run_id": "r"})
    assert record.violations == []
    record.inputs.told_accepted(HANDED, {"input_id": "in-2", "run_id": "r"})
    assert len(record.violations) == 1


Cut = Callable[[list[bytes]], list[bytes]]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda got: got, []),
        (lambda got: got[:-3], []),
        (lambda got: [*got[:2], *got[3:]], ["in the log only"]),
        (lambda got: [*got[:2], line(55, "turn_end", {}), *got[3:]], ["only", "only"]),
        (lambda got: [*got[:3], *got[2:]], ["another order or duplicates"]),
        (lambda got: [got[1], got[0], *got[2:]], ["another order or duplicates"]),
    ],
)
def test_a_stream_with_a_gap_a_duplicate_or_other_bytes_is_a_violation(
    change: Cut, found: list[str]
) -> None:
    record = CrashRecord()
    for each in lines(LOG[:12]):
        record.read(each)
    record.check_stream(20, change(lines(LOG[:12])[2:]), None)
    assert len(record.violations) == len(found)
    assert all(a in b for a, b in zip(found, record.violations, strict=True)), record.violations


def test_a_filtered_stream_is_compared_with_its_types_only() -> None:
    record = CrashRecord()
    for each in lines(LOG[:12]):
        record.read(each)
    wanted = frozenset({"message_start", "message_end"})
    record.check_stream(0, [lines(LOG)[7], lines(LOG)[9]], wanted)
    assert record.violations == []
    record.check_stream(0, [lines(LOG)[9]], wanted)
    assert len(record.violations) == 1


def test_events_of_a_deleted_session_may_be_missing() -> None:
    record = CrashRecord()
    record.sessions.asked_to_delete("d")
    handed = Handed("prompt", "d", "MARK-9", "m9")
    record.inputs.told_accepted(handed, {"input_id": "in-9", "run_id": "r9"})
    record.runs.asked("d", handed.text)
    record.runs.told_started("r9", "d")
    record.sessions.told_set("d", "name", "x")
    record.sessions.told_deleted("d")
    record.told_event(line(2, "agent_start", {"session_id": "d", "run_id": "r9"}))
    record.read(line(3, "session_deleted", {"session_id": "d"}))
    record.check(["MARK-9"], head=3)
    record.inputs.check_resent(handed, None)
    record.sessions.check_state("d", None)
    record.sessions.check_active("")
    assert record.violations == []


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_branch_may_have_a_message_accepted_by_its_deleted_parent(
    is_deleted: bool,
) -> None:
    record = CrashRecord()
    record.sessions.asked_to_delete("p")
    branch = {"session_id": "b", "created_at": "now", "parent_id": "p"}
    placed = {"id": "e9", "role": "user", "text": "by the way", "run_id": ""}
    record.read(line(1, "session_created", branch))
    record.read(line(2, "entry_appended", {"session_id": "b", "entry": placed}))
    if is_deleted:
        record.read(line(3, "session_deleted", {"session_id": "p"}))
    record.check([], head=3)
    assert any("no message" in found for found in record.violations) is not is_deleted
