"""The validators accept valid lines and report every kind of fault."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.harness.validation import check_command, check_event, check_response

PONG = {"v": "1", "id": "a", "type": "pong", "payload": {"message": "pong"}, "ok": True}
REFUSED = {
    "v": "1",
    "id": "",
    "type": "error",
    "payload": {},
    "ok": False,
    "error": {"code": "timeout", "message": "command timed out"},
}
ENDED = {
    "v": "1",
    "id": "evt-7",
    "type": "agent_end",
    "payload": {"session_id": "s", "run_id": "r", "status": "completed"},
    "ts": "2026-11-21T05:13:01.739690Z",
}


def line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


@pytest.mark.parametrize("answer", [PONG, REFUSED, PONG | {"more": 1}])
def test_a_valid_answer_is_returned(answer: dict[str, Any]) -> None:
    assert check_response(line(answer)) == answer


def test_a_valid_event_is_returned() -> None:
    assert check_event(line(ENDED)) == ENDED


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (line(PONG)[:-1], "does not end with an LF"),
        (line(PONG) + line(PONG), "more than one line"),
        (b"{\n", "not JSON"),
        (b'{"id":"\xff"}\n', "not JSON in UTF-8"),
        (b"[]\n", "not an object"),
        (line(PONG | {"type": "pang"}), "have no type 'pang'"),
        (line(PONG | {"v": 1}), "responses: v: "),
        (line(PONG | {"id": ""}), "responses: id: "),
        (line(PONG | {"ok": False}), "responses: ok: "),
        (line(PONG | {"payload": {}}), '"message" is a required property'),
        (line(PONG | {"payload": {"message": "pang"}}), "responses: payload.message: "),
        (line(REFUSED | {"error": {"code": "oops", "message": "m"}}), "responses: error.code: "),
        (line(REFUSED | {"error": {"code": "timeout"}}), '"message" is a required property'),
        (line({key: PONG[key] for key in ("v", "id", "type", "payload")}), '"ok" is a required'),
    ],
)
def test_an_invalid_answer_is_reported(raw: bytes, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_response(raw)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"id": "7"}, "events: id: "),
        ({"ts": "2026-11-21 05:13:01"}, "events: ts: "),
        ({"ts": "2026-11-21T05:13:01+01:00"}, "events: ts: "),
        ({"payload": {"run_id": "r", "status": "completed"}}, '"session_id" is a required'),
        (
            {"payload": {"session_id": "s", "run_id": "r", "status": "fine"}},
            "events: payload.status",
        ),
        ({"type": "agent_stop"}, "have no type 'agent_stop'"),
    ],
)
def test_an_invalid_event_is_reported(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_event(line(ENDED | change))


def test_a_command_may_omit_optional_fields() -> None:
    assert check_command(line({"id": "a", "type": "ping"})) == {"id": "a", "type": "ping"}


@pytest.mark.parametrize("payload", [{}, None, {"text": ""}, {"text": "a", "wait": None}])
def test_a_command_with_an_invalid_payload_is_reported(payload: Any) -> None:
    with pytest.raises(AssertionError, match="commands: payload"):
        check_command(line({"id": "a", "type": "prompt", "payload": payload}))
