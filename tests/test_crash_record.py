"""The checker of crash campaigns finds what a daemon must never do."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.crash_record import CrashRecord, Handed

HANDED = Handed("prompt", "s", "run MARK-1", "m1")
INPUT = {"input_id": "in-1", "kind": "prompt", "text": HANDED.text, "client_message_id": "m1"}
CALL = {"turn_id": "1", "tool_call_id": "t1", "args": {"command": "echo MARK-1"}}
ENDED = {**CALL, "executed": True, "is_error": False}
LOG: list[tuple[str, dict[str, Any]]] = [
    ("queue_update", {"change": "accepted", "inputs": [INPUT]}),
    ("agent_start", {}),
    ("turn_start", {"turn_id": "1"}),
    ("queue_update", {"change": "consumed", "inputs": [INPUT]}),
    ("entry_appended", {"entry": {"role": "user", "text": HANDED.text, "input_ids": ["in-1"]}}),
    ("tool_execution_start", CALL),
    ("tool_execution_end", ENDED),
    ("turn_end", {"turn_id": "1"}),
    ("agent_end", {"status": "interrupted"}),
]

Log = list[tuple[str, dict[str, Any]]]


def lines(log: Log) -> list[bytes]:
    return [
        json.dumps(
            {
                "id": f"evt-{number}",
                "type": type,
                "payload": {"session_id": "s", "run_id": "r", **payload},
                "ts": f"2026-01-01T00:00:{number:02}.000000Z",
            }
        ).encode()
        + b"\n"
        for number, (type, payload) in enumerate(log, 1)
    ]


def violations(log: Log, marks: tuple[str, ...] = ("MARK-1",)) -> list[str]:
    """Returns what is found in a log by those who were told what is in ``LOG``."""
    record = CrashRecord()
    record.told_accepted(HANDED, {"input_id": "in-1", "run_id": "r"})
    for line in lines(LOG)[:4]:
        record.told_event(line)
    record.died("2026-01-01T00:00:08.000000Z")
    for line in lines(log):
        record.read(line)
    record.check(marks)
    record.check_queue("s", [])
    record.check_run({"run_id": "r", "status": "interrupted"})
    record.check_reread(lines(log))
    return record.violations


def test_a_log_that_holds_what_was_told_is_good() -> None:
    assert violations(LOG) == []


def changed(change: Callable[[Log], object]) -> Log:
    log = list(LOG)
    change(log)
    return log


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda log: log.pop(0), "in-1 was accepted and is not in the log"),
        (lambda log: log.insert(1, log[0]), "in-1 is in the log twice"),
        (lambda log: log.insert(4, log[3]), "in-1 was consumed while it was"),
        (lambda log: log.pop(3), "queue of s"),
        (lambda log: log.insert(5, log[4]), "an input is in two entries"),
        (lambda log: log.append(log[-1]), "second agent_end of r"),
        (lambda log: log.pop(), "agent_start without agent_end: r"),
        (lambda log: log.pop(1), "r was acknowledged and never began"),
        (lambda log: log.__setitem__(2, ("turn_start", {"turn_id": "2"})), "seen, but not so"),
        (lambda log: log.__setitem__(8, ("agent_end", {"status": "completed"})), "was cut off"),
    ],
)
def test_a_changed_log_is_found(change: Callable[[Log], object], found: str) -> None:
    assert any(found in violation for violation in violations(changed(change)))


@pytest.mark.parametrize(
    ("marks", "found"),
    [
        (("MARK-1", "MARK-1"), "MARK-1 ran 2 times for 1 begun calls"),
        ((), "MARK-1 is said to have run and has not"),
    ],
)
def test_a_command_that_ran_twice_or_never_is_found(marks: tuple[str, ...], found: str) -> None:
    assert violations(LOG, marks) == [found]


def test_a_call_that_is_said_not_to_have_begun_must_have_left_nothing() -> None:
    skipped = ("tool_execution_end", {**ENDED, "executed": False, "is_error": True})
    log = changed(lambda log: log.__setitem__(6, skipped))
    assert violations(log, ()) == []
    assert violations(log) == ["MARK-1 ran 1 times for 0 begun calls"]


def test_a_log_that_reads_differently_the_second_time_is_found() -> None:
    record = CrashRecord()
    for line in lines(LOG):
        record.read(line)
    record.check_reread(lines(LOG)[:-1])
    assert [v.partition(":")[0] for v in record.violations] == ["evt-9 is not what it was"]


def test_an_input_that_is_accepted_anew_when_sent_again_is_found() -> None:
    record = CrashRecord()
    record.check_resent(HANDED, "in-1", {"input_id": "in-1"})
    assert record.violations == []
    record.check_resent(HANDED, "in-1", {"input_id": "in-2"})
    record.check_resent(HANDED, "in-1", None)
    assert len(record.violations) == 2
