"""Encoding of responses and events: one line each, valid against the schema, with any text."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nousd.errors import WIRE_ERROR_CODES, CommandRejected, InvalidCommand, WireError
from nousd.wire.codec.envelope import (
    decode_event,
    encode_error,
    encode_event_tail,
    encode_json,
    encode_plain_response,
    encode_response,
    number_event,
    scrub,
)
from nousd.wire.commands.subscribe import cursor, cursor_seq
from nousd.wire.events import EVENTS, Event, MessageUpdate, Status
from nousd.wire.responses import RESPONSES, Accepted, Pong, Response
from tests.harness.validation import check_event, check_response

TS = "2026-11-21T05:13:01.739690Z"


def sample(type_: Any) -> Any:
    """Return an example value of a type, made from its JSON Schema."""
    (schema,), components = msgspec.json.schema_components([type_], ref_template="{name}")
    return _sample(schema, components)


def convert(values: Any, type_: Any) -> Any:
    """Return a struct of these values, converted through JSON because some fields are raw JSON."""
    return msgspec.json.decode(msgspec.json.encode(values), type=type_)


def _sample(schema: dict[str, Any], components: dict[str, Any]) -> Any:
    if "$ref" in schema:
        return _sample(components[schema["$ref"]], components)
    if "anyOf" in schema:
        return _sample(schema["anyOf"][0], components)
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("contentEncoding") == "base64":
        return "eA=="
    match schema.get("type"):
        case "object":
            properties = schema.get("properties", {})
            return {key: _sample(properties[key], components) for key in properties}
        case "array":
            return [_sample(schema["items"], components)] if "items" in schema else []
        case kind:
            samples = {"string": "x", "integer": 1, "boolean": True, "number": 0.5}
            return samples.get(kind or "")


def event_line(event: Event, seq: int = 7) -> bytes:
    return number_event(seq, encode_event_tail(event, TS))


@pytest.mark.parametrize("name", RESPONSES)
def test_every_response_is_one_line_that_matches_the_schema(name: str) -> None:
    payload = convert(sample(RESPONSES[name]), RESPONSES[name])
    line = encode_response("r-1", payload)
    answer = check_response(line)
    assert list(answer) == ["v", "id", "type", "payload", "ok"]
    assert (answer["v"], answer["id"], answer["type"], answer["ok"]) == ("1", "r-1", name, True)
    assert convert(answer["payload"], RESPONSES[name]) == payload


@pytest.mark.parametrize("name", EVENTS)
def test_every_event_is_one_line_that_matches_the_schema(name: str) -> None:
    event = msgspec.convert(sample(EVENTS[name]), EVENTS[name])
    line = event_line(event)
    envelope = check_event(line)
    assert list(envelope) == ["v", "id", "type", "payload", "ts"]
    decoded = decode_event(line)
    assert (decoded.id, decoded.type, decoded.ts) == ("evt-7", name, TS)
    assert msgspec.json.decode(decoded.payload, type=EVENTS[name]) == event


@pytest.mark.parametrize("name", [*RESPONSES, *EVENTS])
def test_required_keys_are_never_omitted(name: str) -> None:
    struct: type[Any] = {**EVENTS, **RESPONSES}[name]
    required = {field.name for field in msgspec.structs.fields(struct) if field.required}
    values = sample(struct)
    least = convert({key: values[key] for key in required}, struct)
    encoded = msgspec.json.decode(msgspec.json.encode(least))
    assert set(encoded) == required


def all_errors(root: type[WireError] = WireError) -> list[type[WireError]]:
    return [root, *[deeper for child in root.__subclasses__() for deeper in all_errors(child)]]


@pytest.mark.parametrize("error", all_errors())
def test_every_error_is_one_line_that_matches_the_schema(error: type[WireError]) -> None:
    answer = check_response(encode_error("r-1", error("words")))
    assert answer["error"] == {"code": error.code, "message": "words"}
    assert answer["payload"] == {}
    assert list(answer) == ["v", "id", "type", "payload", "ok", "error"]


def test_every_error_code_belongs_to_an_error() -> None:
    assert {error.code for error in all_errors()} == set(WIRE_ERROR_CODES)


def test_an_error_carries_its_cause_and_details() -> None:
    error = CommandRejected("run_in_progress", cause="why", details={"run_id": "run-1"})
    assert check_response(encode_error("a", error))["error"] == {
        "code": "command_rejected",
        "message": "run_in_progress",
        "cause": "why",
        "details": {"run_id": "run-1"},
    }


def test_an_extension_may_answer_with_any_object() -> None:
    line = encode_plain_response("a", "extension_result", {"echo": ["\ud800", 2**70]})
    assert check_response(line)["payload"] == {"echo": ["\ufffd", 2**70]}


def test_lone_surrogates_are_replaced_in_nested_tuples_and_objects() -> None:
    assert (
        encode_json((("\ud800",), {"a": ("\udfff",)})) == '[["\ufffd"],{"a":["\ufffd"]}]'.encode()
    )


any_text = st.text(st.characters(codec=None, exclude_categories=()), max_size=60)


@given(any_text)
def test_any_text_except_lone_surrogates_survives_in_a_response(text: str) -> None:
    line = encode_response(scrub(text) or "a", Accepted(command=text))
    assert check_response(line)["payload"] == {"command": scrub(text)}


@given(any_text)
def test_any_text_except_lone_surrogates_survives_in_an_error(text: str) -> None:
    line = encode_error(text, InvalidCommand(text or "a"))
    assert check_response(line)["error"]["message"] == scrub(text or "a")


@given(any_text)
def test_any_text_except_lone_surrogates_survives_in_an_event(text: str) -> None:
    event = MessageUpdate(session_id="s", run_id="r", turn_id="1", message_id="m", delta=text)
    assert check_event(event_line(event))["payload"]["delta"] == scrub(text)


def test_a_line_holds_one_lf_and_leaves_other_separators_raw() -> None:
    line = event_line(Status(session_id="s", run_id="r", message="a\nb\u2028c\rd"))
    assert line.count(b"\n") == 1
    assert b"\r" not in line
    assert "\u2028".encode() in line


@pytest.mark.parametrize("text", ["", "plain", "\U0001f600", "a\u2028"])
def test_scrub_does_not_change_valid_unicode(text: str) -> None:
    assert scrub(text) == text


@pytest.mark.parametrize("seq", [0, 1, 10**17])
def test_cursors_round_trip(seq: int) -> None:
    assert cursor_seq(cursor(seq)) == seq


@pytest.mark.parametrize(
    "text", ["", "evt-", "evt-x", "evt--1", "7", "evt-1\n", "evt-\u0967", "e-1"]
)
def test_a_malformed_cursor_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a cursor"):
        cursor_seq(text)


def test_the_payload_of_pong_is_fixed() -> None:
    pong: Response = Pong(message="pong")
    assert json.loads(encode_response("a", pong))["payload"] == {"message": "pong"}


def test_encoding_a_response_leaves_nothing_in_memory() -> None:
    encode_response("c1", Pong(message="pong"))
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(1000):
        encode_response("c1", Pong(message="pong"))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 10_000, "bytes for a thousand responses"
