"""Requests: the tolerance promised to v1 clients, and a clear error for everything else."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nousd.errors import InvalidCommand, InvalidPayload
from nousd.wire.codec.envelope import decode_payload, decode_request
from nousd.wire.commands import COMMANDS, Ping, Prompt
from nousd.wire.limits import NESTING_MAX
from tests.wire.request_lines import decode

# --- lines that are refused ----------------------------------------------------------------------


MALFORMED: list[tuple[bytes, str, str]] = [
    # line, readable id, message
    (b"not json", "", "invalid_json: syntax error at column 1"),
    (b"", "", "invalid_json: the line is empty"),
    (b"   ", "", "invalid_json: the line is empty"),
    (b"{}", "", "missing_id"),
    (b"null", "", "missing_id"),
    (b'{"v":"1","type":"ping","payload":{}}', "", "missing_id"),
    (b'{"v":"1","id":"","type":"ping"}', "", "missing_id"),
    (b'{"v":"1","id":null,"type":"ping"}', "", "missing_id"),
    (b'{"v":"1","id":"m4","payload":{}}', "m4", "missing_type"),
    (b'{"v":"1","id":"m4","type":""}', "m4", "missing_type"),
    (b'{"v":"1","id":"m4","type":null}', "m4", "missing_type"),
    (b'{"v":"2","id":"m1","type":"ping"}', "m1", "invalid_version: expected 1, got 2"),
    (b'{"v":1,"id":"m2","type":"ping"}', "m2", "invalid_json: v must be a string, got number"),
    (b'{"v":"1","id":7,"type":"ping"}', "", "invalid_json: id must be a string, got number"),
    (b'{"v":"1","id":true,"type":"ping"}', "", "invalid_json: id must be a string, got boolean"),
    (b'{"v":"1","id":"m5","type":3}', "m5", "invalid_json: type must be a string, got number"),
    (b'{"v":"1","id":"m5","type":{}}', "m5", "invalid_json: type must be a string, got object"),
    (b'{"v":"1","id":"m3","type":"frobnicate"}', "m3", "invalid_command: frobnicate"),
    (b'{"v":"1","id":"m3","type":"Ping"}', "m3", "invalid_command: Ping"),
    (
        b'{"v":"1","id":"m6","type":"ping","payload":"str"}',
        "m6",
        "invalid_json: payload must be an object, got string",
    ),
    (
        b'{"v":"1","id":"m7","type":"ping","payload":[1]}',
        "m7",
        "invalid_json: payload must be an object, got array",
    ),
    (b"[]", "", "invalid_json: expected an object, got array"),
    (b'"str"', "", "invalid_json: expected an object, got string"),
    (b"123", "", "invalid_json: expected an object, got number"),
    (b"true", "", "invalid_json: expected an object, got boolean"),
    (b'{"v":"1","id":"m8","type":"ping"} trailing', "", "invalid_json: syntax error at column 35"),
    (b'{"id":"m9","type":"ping"}{"id":"m10"}', "", "invalid_json: syntax error at column 26"),
    (b'{"v":"1","id":"cut', "", "invalid_json: syntax error at column 15"),
    (
        b'\xef\xbb\xbf{"v":"1","id":"bom","type":"ping"}',
        "",
        "invalid_json: syntax error at column 1",
    ),
    (
        b'{"v":"1","id":"nul\x00","type":"ping"}',
        "",
        "invalid_json: syntax error at column 19",
    ),
    (b'{"v":"1","id":"a","type":"ping","x":NaN}', "", "invalid_json: a number is out of range"),
    (
        b'{"id":"a","type":"ping","payload":{"n":1e999}}',
        "",
        "invalid_json: a number is out of range",
    ),
]


@pytest.mark.behaviour("errors_echo_readable_ids")
@pytest.mark.behaviour("malformed_lines_are_invalid_command")
@pytest.mark.parametrize(("line", "request_id", "message"), MALFORMED)
def test_a_malformed_line_is_refused_with_its_id_and_a_message(
    line: bytes, request_id: str, message: str
) -> None:
    with pytest.raises(InvalidCommand) as caught:
        decode(line)
    assert (caught.value.request_id, caught.value.message) == (request_id, message)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"v":"2","id":"","type":""}', "invalid_version"),
        ('{"v":"2","id":7,"type":"nope"}', "invalid_json: id"),
        ('{"v":7,"id":7,"type":7,"payload":7}', "invalid_json: v"),
        ('{"v":"2","id":"a","type":"nope","payload":[]}', "invalid_json: payload"),
        ('{"id":"","type":""}', "missing_id"),
        ('{"id":"a","type":"","payload":{"text":7}}', "missing_type"),
        ('{"id":"a","type":"nope","payload":{"text":7}}', "invalid_command: nope"),
    ],
)
def test_the_first_fault_in_a_fixed_order_is_reported(line: str, message: str) -> None:
    with pytest.raises(InvalidCommand, match=message):
        decode(line)


@pytest.mark.behaviour("nesting_is_limited")
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[{"\\"[":', "}]")])
def test_only_nesting_beyond_the_limit_is_refused(opening: str, closing: str) -> None:
    per_level = opening.count("{") + (opening[0] == "[")
    levels = (NESTING_MAX - 2) // per_level

    def line(count: int) -> str:
        nested = opening * count + "0" + closing * count
        return f'{{"v":"1","id":"a","type":"ping","payload":{{"a":{nested}}}}}'

    assert isinstance(decode(line(levels)), Ping)
    with pytest.raises(
        InvalidCommand, match=f"invalid_json: nested deeper than {NESTING_MAX} levels"
    ):
        decode(line(levels + 1))


def test_brackets_inside_strings_do_not_count_as_nesting() -> None:
    text = '[{"' * 1000 + "\\"
    decoded = decode(json.dumps({"id": "a", "type": "prompt", "payload": {"text": text}}))
    assert isinstance(decoded, Prompt)
    assert decoded.text == text


def test_decoding_a_line_with_a_long_string_takes_bounded_memory() -> None:
    line = b'{"v":"1","id":"a","type":"ping","payload":{"a":"%b","b":[%b]}}' % (
        b"x" * 2_000_000,
        b",".join([b"{}"] * 1000),
    )
    tracemalloc.start()
    try:
        decode(line)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(line)


# --- lines that are accepted ---------------------------------------------------------------------


TOLERATED: list[tuple[bytes, str]] = [
    (b'{"v":"1","id":"a","type":"ping","payload":{}}', "a"),
    (b'{"v":"1","id":"a","type":"ping"}', "a"),
    (b'{"v":"1","id":"a","type":"ping","payload":null}', "a"),
    (b'{"id":"a","type":"ping"}', "a"),
    (b'{"v":null,"id":"a","type":"ping"}', "a"),
    (b'{"v":"","id":"a","type":"ping"}', "a"),
    (b'{"V":"1","Id":"caps","TYPE":"ping"}', "caps"),
    (b' \t{ "id" : "a" , "type" : "ping" } ', "a"),
    (
        b'{"v":"1","id":"a","type":"ping","payload":{"x":1},"ts":"t","meta":{"a":1},"extra":"y"}',
        "a",
    ),
    (b'{"v":"1","id":"dup1","id":"dup2","type":"ping"}', "dup2"),
    (b'{"v":"1","id":"exact","ID":"other","type":"ping"}', "exact"),
    (b'{"v":"1","ID":"other","id":"exact","TYPE":"nope","type":"ping","payload":null}', "exact"),
    (b'{"v":"1","id":"utf\xff\xfe","type":"ping"}', "utf\ufffd\ufffd"),
    (b'{"v":"1","id":"sur\\ud800","type":"ping"}', "sur\ufffd"),
    (b'{"v":"1","id":"pair\\ud83d\\ude00","type":"ping"}', "pair\U0001f600"),
    ('{"v":"1","id":"<&>\u2028","type":"ping"}'.encode(), "<&>\u2028"),
    (b'{"v":"1","id":"big","type":"ping","payload":{"n":123456789012345678901234567890}}', "big"),
    (b'{"v":"1","id":"big","type":"ping","payload":{"n":%b}}' % (b"9" * 5000), "big"),
]


@pytest.mark.behaviour("the_envelope_is_tolerant")
@pytest.mark.parametrize(("line", "request_id"), TOLERATED)
def test_a_tolerated_line_is_decoded_as_a_ping(line: bytes, request_id: str) -> None:
    decoded = decode_request(line)
    assert (decoded.id, decoded.type) == (request_id, "ping")
    assert decode_payload(decoded) == Ping()


@pytest.mark.parametrize("payload_key", ["payload", "Payload", "PAYLOAD"])
def test_the_payload_key_ignores_case(payload_key: str) -> None:
    decoded = decode(f'{{"v":"1","id":"a","type":"prompt","{payload_key}":{{"text":"hi"}}}}')
    assert decoded == Prompt(text="hi")


def test_the_version_key_ignores_case() -> None:
    with pytest.raises(InvalidCommand, match="invalid_version"):
        decode('{"V":"2","id":"a","type":"ping","payload":{}}')


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"a\xffb", "a\ufffdb"),
        (b"a\\ud800b", "a\ufffdb"),
        (b"\\udc00\\ud800", "\ufffd\ufffd"),
        (b"\\ud83d\\ude00", "\U0001f600"),
        (b"\\u0000\\n", "\x00\n"),
    ],
)
def test_invalid_unicode_in_a_text_is_replaced(raw: bytes, text: str) -> None:
    line = b'{"v":"1","id":"a","type":"prompt","payload":{"text":"x%b"}}' % raw
    assert decode(line) == Prompt(text="x" + text)


def test_unknown_payload_keys_are_ignored_and_the_last_duplicate_counts() -> None:
    line = '{"id":"a","type":"prompt","payload":{"text":"one","more":[1],"text":"two"}}'
    assert decode(line) == Prompt(text="two")


# --- arbitrary input -----------------------------------------------------------------------------


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_raise_only_wire_errors(line: bytes) -> None:
    try:
        decode(line)
    except (InvalidCommand, InvalidPayload):
        return


@given(json_values)
def test_any_json_raises_only_wire_errors(value: Any) -> None:
    try:
        decode(json.dumps(value).encode())
    except (InvalidCommand, InvalidPayload):
        return


field_names = sorted({name for struct in COMMANDS.values() for name in struct.__struct_fields__})


@given(
    st.sampled_from(sorted(COMMANDS)), st.dictionaries(st.sampled_from(field_names), json_values)
)
def test_any_payload_gives_the_struct_or_invalid_payload(
    type_: str, payload: dict[str, Any]
) -> None:
    text = json.dumps(payload).replace("NaN", "1").replace("Infinity", "1e9")
    line = f'{{"v":"1","id":"a","type":"{type_}","payload":{text}}}'
    try:
        assert type(decode(line)) is COMMANDS[type_]
    except InvalidPayload as error:
        named = error.message.split(" ")[0]
    else:
        return
    assert named in (*COMMANDS[type_].__struct_fields__, "an")


@given(st.text(min_size=1, max_size=50), st.text(max_size=50))
def test_any_id_and_text_are_decoded_unchanged(request_id: str, text: str) -> None:
    line = json.dumps(
        {"v": "1", "id": request_id, "type": "prompt", "payload": {"text": "." + text}}
    )
    decoded = decode_request(line.encode("utf-8"))
    assert (decoded.id, decode_payload(decoded)) == (request_id, Prompt(text="." + text))


@given(st.binary(max_size=40))
def test_any_bytes_inside_a_text_are_decoded_or_raise_invalid_command(raw: bytes) -> None:
    line = b'{"v":"1","id":"a","type":"prompt","payload":{"text":"' + raw + b'"}}'
    try:
        decoded = decode_request(line)
    except InvalidCommand:
        return
    assert isinstance(decoded.id, str)
