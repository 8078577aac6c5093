from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nousd.client.answers import (
    Loads,
    ReceivedEvent,
    decode_answer,
    decode_subscription_line,
    encode_request,
)
from nousd.client.typed import loads
from nousd.errors import AnswerInvalid, Refused
from nousd.wire.codec.envelope import decode_payload, decode_request
from nousd.wire.codec.framing import LINE_TOO_LONG, LineTooLong
from nousd.wire.commands import Prompt


def test_a_request_is_encoded_as_one_line_that_the_daemon_decodes() -> None:
    text = "two\nlines \N{LINE SEPARATOR} and a lone surrogate \udc80"
    line = encode_request("c1", "prompt", {"text": text, "wait": False})
    assert line.count(b"\n") == 1
    request = decode_request(line.removesuffix(b"\n"))
    command = decode_payload(request)
    assert isinstance(command, Prompt)
    assert (request.id, command.text) == ("c1", text.replace("\udc80", "\N{REPLACEMENT CHARACTER}"))


def test_encoding_a_payload_that_json_cannot_represent_raises() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_request("c1", "ping", {"number": float("nan")})


def test_a_refusal_carries_code_message_cause_and_details() -> None:
    error = {"code": "timeout", "message": "too late", "cause": "slow", "details": {"run_id": "r"}}
    line = json.dumps({"id": "c1", "type": "error", "payload": {}, "ok": False, "error": error})
    with pytest.raises(Refused) as caught:
        decode_answer(line.encode()).raise_for_refusal()
    refused = caught.value
    assert (refused.code, refused.message, refused.cause) == ("timeout", "too late", "slow")
    assert refused.details == {"run_id": "r"}
    assert str(refused) == "timeout: too late (slow)"


both_parsers = pytest.mark.parametrize("parser", [json.loads, loads], ids=["json", "msgspec"])


@both_parsers
@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"not json",
        b"[]",
        b"{}",
        b'{"id":"c1","type":"pong","payload":{}}',
        b'{"id":"c1","type":"pong","payload":[],"ok":true}',
        b'{"id":1,"type":"pong","payload":{},"ok":true}',
        b'{"id":"c1","ok":false}',
        b'{"id":"c1","ok":false,"error":"no"}',
        b"\xff",
        b"[" * 100_000,
        LINE_TOO_LONG,
    ],
)
def test_decoding_an_invalid_answer_raises_answer_invalid(
    line: bytes | LineTooLong, parser: Loads
) -> None:
    with pytest.raises(AnswerInvalid, match="the daemon sent a line"):
        decode_answer(line, parser)


@both_parsers
@pytest.mark.parametrize("line", [b"{}", b"x", b'{"id":"evt-1","type":"status","payload":1}'])
def test_decoding_an_invalid_event_raises_answer_invalid(line: bytes, parser: Loads) -> None:
    with pytest.raises(AnswerInvalid, match="the daemon sent a line"):
        decode_subscription_line(line, parser)


def test_a_received_event_keeps_its_original_line() -> None:
    line = b'{"v":"1", "id":"evt-1","type":"status","payload":{"message":"hi"},"ts":"now"}'
    event = decode_subscription_line(line)
    assert isinstance(event, ReceivedEvent)
    assert (event.id, event.type, event.payload, event.line) == (
        "evt-1",
        "status",
        {"message": "hi"},
        line,
    )


def test_the_ok_field_distinguishes_answers_from_events() -> None:
    event = b'{"id":"evt-1","type":"status","payload":{},"ts":"now"}'
    answer = b'{"id":"s1","type":"subscribed","payload":{},"ok":true}'
    assert type(decode_subscription_line(event)).__name__ == "ReceivedEvent"
    assert type(decode_subscription_line(answer)).__name__ == "Answer"


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
LINES = st.fixed_dictionaries(
    {},
    optional={
        "id": st.just("c1") | VALUES,
        "type": st.just("pong") | VALUES,
        "payload": st.just({}) | VALUES,
        "ok": st.booleans() | VALUES,
        "ts": st.just("now") | VALUES,
        "error": st.just({"code": "timeout", "message": "late", "details": {"a": 1}}) | VALUES,
    },
)


@given(fields=LINES, place=st.floats(0, 1) | st.none())
def test_both_parsers_decode_every_line_alike(fields: dict[str, Any], place: float | None) -> None:
    line = json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")
    line = line if place is None else line[: int(len(line) * place)]
    assert outcome(line, json.loads) == outcome(line, loads)


def outcome(line: bytes, parser: Loads) -> object:
    """Return the decoded line or its error in a comparable form."""
    try:
        decoded = decode_subscription_line(line, parser)
    except AnswerInvalid as error:
        return str(error)
    if isinstance(decoded, ReceivedEvent):
        return decoded
    refusal = decoded.refusal
    return (*decoded._replace(refusal=None), refusal and (str(refusal), refusal.details))
