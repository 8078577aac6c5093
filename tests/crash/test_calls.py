"""The checker of calls in crash campaigns finds every forbidden behaviour."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash.calls import CallRecord, Made
from tests.crash.sessions import SessionRecord
from tests.crash.violations import Violations

MADE = Made("s", "bash", "echo MARK-1", "own-1")
CLIENTS = {"session_id": "s", "tool_call_id": "call-1", "attempt": 1}
OF_RUN = {"session_id": "s", "run_id": "r", "tool_call_id": "m.0", "attempt": 1}
AGAIN = {**OF_RUN, "attempt": 2}

Log = list[tuple[str, dict[str, Any]]]

LOG: Log = [
    ("tool_call_requested", {**CLIENTS, "client_call_id": "own-1"}),
    ("permission_requested", CLIENTS),
    ("session_updated", {"session_id": "s", "granted": ["bash(=ls)"]}),
    ("tool_call_approved", {**CLIENTS, "by": "user"}),
    ("tool_call_started", CLIENTS),
    ("tool_call_completed", CLIENTS),
    ("session_updated", {"session_id": "", "granted": ["bash(=pwd)"]}),
    ("session_updated", {"session_id": "", "granted": []}),
    ("tool_call_requested", OF_RUN),
    ("tool_call_approved", {**OF_RUN, "by": "policy"}),
    ("tool_call_started", OF_RUN),
    ("tool_call_completed", OF_RUN),
    ("tool_execution_end", OF_RUN),
    ("tool_call_requested", AGAIN),
    ("permission_requested", AGAIN),
    ("tool_call_approved", {**AGAIN, "by": "user"}),
    ("tool_call_started", AGAIN),
    ("tool_call_completed", AGAIN),
    ("tool_execution_end", AGAIN),
]
RULES = {"pending": [], "granted": ["bash(=ls)"], "granted_everywhere": []}


def violations(log: Log = LOG, **answers: Any) -> list[str]:
    """Return the violations of a log and of answers for clients that were told the events of ``LOG``."""
    found = Violations()
    record = CallRecord(found, SessionRecord(found))
    record.told_accepted(MADE, "call-1")
    record.told_decided(CLIENTS, "approved", "user")
    record.told_decided(AGAIN, "approved", "user")
    record.told_granted("s", "bash(=ls)")
    record.told_revoked("", "bash(=pwd)")
    record.told_record({**CLIENTS, "state": "completed"})
    for type, payload in log:
        record.read(type, payload)
    record.check()
    record.check_rules("s", answers.get("rules", RULES))
    record.check_resent(MADE, answers.get("resent", {"tool_call_id": "call-1"}))
    if "attempt" in answers:
        record.check_attempt(("call-1", 1), answers["attempt"])
    return found


def without(index: int) -> Log:
    return [*LOG[:index], *LOG[index + 1 :]]


def changed(index: int, **changes: Any) -> Log:
    type, payload = LOG[index]
    return [*LOG[:index], (type, {**payload, **changes}), *LOG[index + 1 :]]


def test_a_log_and_answers_that_match_the_acknowledgements_have_no_violations() -> None:
    assert violations(attempt={"state": "completed", "executed": True}) == []


@pytest.mark.parametrize(
    ("log", "found"),
    [
        (without(0), "was told as call-1 and is None"),
        (changed(0, client_call_id="own-2"), "was told as call-1 and is None"),
        ([*LOG, LOG[0]], "('call-1', 1) was requested twice"),
        ([*LOG, LOG[0]], "('s', 'own-1') was made twice"),
        (without(2), "bash(=ls) was told to be granted in 's'"),
        (without(7), "bash(=pwd) was told to be taken back in ''"),
        (changed(3, by="policy"), "was told, by the log it is"),
        ([*LOG[:3], ("tool_call_denied", {**CLIENTS, "by": "user"})], "was told, by the log it is"),
        ([*LOG, LOG[3]], "a second decision about ('call-1', 1)"),
        (without(3), "('call-1', 1) was started while it was"),
        ([*LOG, LOG[4]], "('call-1', 1) was started while it was"),
        (changed(15, by="policy"), "('m.0', 2) ran again, and nobody was asked"),
        (without(10), "('m.0', 1) was completed while it was"),
        (without(5), "was told, by the log it is"),
    ],
)
def test_a_changed_log_is_a_violation(log: Log, found: str) -> None:
    assert any(found in violation for violation in violations(log)), violations(log)


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ({"rules": {**RULES, "pending": [AGAIN]}}, "s: waits by itself"),
        ({"rules": {**RULES, "granted": []}}, "'s': granted []"),
        ({"rules": {**RULES, "granted_everywhere": ["x"]}}, "'': granted ['x']"),
        ({"resent": None}, "is call-1 and, sent again, None"),
        ({"resent": {"tool_call_id": "call-2"}}, "is call-1 and, sent again, call-2"),
        ({"attempt": None}, "('call-1', 1) is told as None"),
        ({"attempt": {"state": "started", "executed": True}}, "('call-1', 1) is told as"),
    ],
)
def test_an_answer_that_differs_from_the_log_is_a_violation(
    answers: dict[str, Any], found: str
) -> None:
    assert [found in violation for violation in violations(**answers)] == [True]


def test_a_call_still_open_after_a_start_is_a_violation() -> None:
    found = violations(LOG[:5], attempt={"state": "started", "executed": True})
    assert any("('call-1', 1) is told as" in violation for violation in found)


def test_two_acknowledgements_of_one_call_are_a_violation() -> None:
    found = Violations()
    record = CallRecord(found, SessionRecord(found))
    record.told_accepted(MADE, "call-1")
    assert found == []
    record.told_accepted(MADE, "call-2")
    assert len(found) == 1
