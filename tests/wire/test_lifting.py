"""Lines of earlier versions are upcast to current ones, and nothing else changes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from nousd.errors import StoreError, StoreTooNew
from nousd.wire.codec.envelope import encode_event_tail, number_event
from nousd.wire.codec.upcasting import EVENT_SCHEMA_VERSION, STEPS, lift
from nousd.wire.events import EVENTS
from tests.harness.validation import check_event
from tests.wire.test_answers import sample

STARTED_1 = (
    b'{"v":"1","id":"evt-85","type":"tool_call_started","payload":{"session_id":"s","run_id":"r",'
    b'"turn_id":"1","tool_call_id":"m.0","tool_name":"read"},"ts":"2026-11-21T09:27:08.028090Z"}\n'
)
UPDATE_1 = (
    b'{"v":"1","id":"evt-86","type":"message_update","payload":{"session_id":"s","run_id":"r",'
    b'"turn_id":"1","message_id":"m","delta":"\xc3\xa4"},"ts":"2026-11-21T09:27:08.028090Z"}\n'
)


def parts(line: bytes) -> Any:
    return json.loads(line)


def test_a_started_call_of_version_1_becomes_the_first_attempt() -> None:
    lifted = check_event(lift(STARTED_1, 1))
    before = parts(STARTED_1)
    assert lifted["payload"] == before["payload"] | {"attempt": 1}
    assert {**lifted, "payload": None} == {**before, "payload": None}
    struct = msgspec.convert(lifted["payload"], EVENTS["tool_call_started"])
    assert struct == EVENTS["tool_call_started"](**lifted["payload"])


def test_an_event_without_a_step_keeps_its_bytes() -> None:
    assert lift(UPDATE_1, 1) is UPDATE_1


@pytest.mark.parametrize("name", EVENTS)
def test_a_line_of_the_current_version_keeps_its_bytes(name: str) -> None:
    event = msgspec.convert(sample(EVENTS[name]), EVENTS[name])
    line = number_event(7, encode_event_tail(event, "2026-11-21T05:13:01.739690Z"))
    assert lift(line, EVENT_SCHEMA_VERSION) is line


def test_a_line_of_a_later_version_is_refused_with_its_id_and_version() -> None:
    later = EVENT_SCHEMA_VERSION + 1
    complaint = f"evt-86 has schema version {later}, this nousd knows up to {EVENT_SCHEMA_VERSION}"
    with pytest.raises(StoreTooNew, match=complaint):
        lift(UPDATE_1, later)


def test_a_line_of_a_version_that_never_existed_is_refused() -> None:
    with pytest.raises(StoreError, match="evt-86 has schema version 0, which there never was"):
        lift(UPDATE_1, 0)


def test_exactly_the_earlier_versions_have_steps() -> None:
    assert list(STEPS) == list(range(1, EVENT_SCHEMA_VERSION))
    assert {name for steps in STEPS.values() for name in steps} <= set(EVENTS)


def test_steps_run_in_order_from_the_version_of_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def append(text: str) -> Any:
        def step(payload: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
            extended = msgspec.json.decode(payload["delta"]) + text
            return {**payload, "delta": msgspec.Raw(msgspec.json.encode(extended))}

        return step

    monkeypatch.setattr("nousd.wire.codec.upcasting.EVENT_SCHEMA_VERSION", 4)
    steps = {version: {"message_update": append(f" {version}")} for version in (1, 2, 3)}
    monkeypatch.setattr("nousd.wire.codec.upcasting.STEPS", steps)
    for version, text in ((1, "ä 1 2 3"), (2, "ä 2 3"), (3, "ä 3"), (4, "ä")):
        assert parts(lift(UPDATE_1, version))["payload"]["delta"] == text


def test_a_step_keeps_the_bytes_of_the_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STEPS, 1, {"status": lambda payload: {**payload, "new": msgspec.Raw(b"1")}})
    exact = b'"a":1.0,"b":123456789012345678901234567890,"c":"\\u00e4\\/","d":[1e2, 2]'
    line = b'{"v":"1","id":"evt-1","type":"status","payload":{%b},"ts":"2026-11-21T05:13:01Z"}\n'
    assert lift(line % exact, 1) == line % (exact + b',"new":1')
