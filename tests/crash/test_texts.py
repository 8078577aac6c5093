"""The checker of crash campaigns compares long texts by hash, and partial texts."""

from __future__ import annotations

import pytest

from tests.crash.inputs import Handed, InputRecord
from tests.crash.sessions import SessionRecord
from tests.crash.texts import comparable, handed_as, is_whole, told_as
from tests.crash.violations import Violations

LONG = "ä" * 5000
REF = handed_as(LONG)
LOGGED = {"text": LONG[:4096], "text_ref": REF, "text_bytes": 10_000}
WHOLE = {**LOGGED, "text": LONG}


def test_a_text_up_to_8_kib_is_compared_itself_and_a_longer_one_by_its_hash() -> None:
    assert handed_as("x" * 8192) == "x" * 8192
    assert handed_as("x" * 8193).startswith("sha256:")
    assert (told_as({"text": "short"}), told_as(LOGGED)) == ("short", REF)


@pytest.mark.parametrize(
    "part",
    [LOGGED, {**WHOLE, "text": LONG + "x"}, {**WHOLE, "text_bytes": 9_999}],
    ids=["a beginning", "more than it", "another size"],
)
def test_an_answer_must_contain_all_of_a_long_text(part: dict[str, object]) -> None:
    assert is_whole(WHOLE)
    assert is_whole({"text": "short"})
    assert not is_whole(part)


def test_entries_of_log_and_answer_are_equal_if_they_name_the_same_text() -> None:
    assert comparable(LOGGED) == comparable(WHOLE)
    assert comparable({**LOGGED, "text_ref": "sha256:other"}) != comparable(WHOLE)


def found(item: dict[str, object], queue: dict[str, object]) -> list[str]:
    """Return the violations if the log has ``item`` of a long text, and the queue shows ``queue``."""
    violations = Violations()
    record = InputRecord(violations, SessionRecord(violations))
    about = {"input_id": "in-1", "kind": "prompt", "client_message_id": "m"}
    record.told_accepted(Handed("prompt", "s", LONG, "m"), {"input_id": "in-1"})
    change = {"session_id": "s", "change": "accepted", "inputs": [{**about, **item}]}
    record.read("queue_update", change)
    record.check()
    record.check_queue("s", [{**about, **queue}])
    return list(violations)


def test_a_changed_or_partial_long_text_is_a_violation() -> None:
    assert not found(LOGGED, WHOLE)
    assert found({**LOGGED, "text_ref": "sha256:other"}, WHOLE)
    assert found(LOGGED, LOGGED)
    assert found(LOGGED, {**WHOLE, "text": LONG[:-1] + "o"})
