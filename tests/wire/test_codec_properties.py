"""Properties of the codec: a command or a wire error for any line, and round trips."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nousd.errors import InvalidCommand, InvalidPayload
from nousd.wire.codec.envelope import (
    convert_payload,
    decode_event,
    decode_payload,
    decode_request,
    encode_event_tail,
    encode_response,
    number_event,
)
from nousd.wire.commands import COMMANDS, Command
from nousd.wire.commands.subscribe import Subscribe
from nousd.wire.events import EVENTS
from nousd.wire.responses import RESPONSES
from tests.harness.validation import check_command, check_event, check_response, check_subscription
from tests.wire.strategies import structs

_SLOW: Final = settings(suppress_health_check=[HealthCheck.too_slow])

any_command: Final = st.sampled_from(sorted(COMMANDS)).flatmap(
    lambda type_: structs(COMMANDS[type_]).map(lambda command: (type_, command))
)
any_subscription: Final = structs(Subscribe)


def line_of(type_: str, payload: Command) -> bytes:
    """Return the line that a client sends for a command."""
    fields = msgspec.to_builtins(payload)
    return json.dumps({"v": "1", "id": "a", "type": type_, "payload": fields}).encode()


# --- decoding ------------------------------------------------------------------------------------

pieces: Final = st.sampled_from(
    (
        *(b'{"v":"1"', b'"id":"a"', b'"type":"ping"', b'"payload":', b'"text":"x"', b"{", b"}"),
        *(b"[", b"]", b",", b":", b'"', b"\\", b"null", b"-1", b"1e999", b"NaN", b"\\ud800"),
        *(b"\xff", b" ", b"[" * 300, b"9" * 5000, b"\x00", b"\xef\xbb\xbf", "\u2028".encode()),
    )
)


def refusal_of(decode: Callable[[], object]) -> InvalidCommand | InvalidPayload | None:
    """Return the error that refuses a line; any other exception fails the test."""
    try:
        decode()
    except (InvalidCommand, InvalidPayload) as error:
        return error
    return None


@given(st.binary(max_size=200) | st.lists(pieces, max_size=20).map(b"".join))
def test_any_bytes_are_a_request_or_an_invalid_command(line: bytes) -> None:
    refused = refusal_of(lambda: decode_request(line))
    if refused is None:
        request = decode_request(line)
        assert request.id
        assert isinstance(json.loads(bytes(request.payload)), dict)
    else:
        assert isinstance(refused, InvalidCommand)
        assert isinstance(refused.request_id, str)
        assert refused.message


@_SLOW
@given(any_command)
def test_any_command_is_decoded_to_an_equal_struct(sent: tuple[str, Command]) -> None:
    type_, command = sent
    line = line_of(type_, command)
    check_command(line + b"\n")
    assert decode_payload(decode_request(line)) == command


@_SLOW
@given(any_subscription)
def test_any_subscription_is_decoded_to_an_equal_struct(sent: Subscribe) -> None:
    line = line_of("subscribe", sent)
    check_subscription(line + b"\n")
    assert convert_payload(decode_request(line).payload, Subscribe) == sent


def replace_byte(line: bytes, at: int, byte: int) -> bytes:
    return line[:at] + bytes([byte]) + line[at + 1 :]


def insert_byte(line: bytes, at: int, byte: int) -> bytes:
    return line[:at] + bytes([byte]) + line[at:]


def remove_byte(line: bytes, at: int, _: int) -> bytes:
    return line[:at] + line[at + 1 :]


def truncate(line: bytes, at: int, _: int) -> bytes:
    return line[:at]


@pytest.mark.slow(keep=1)
@_SLOW
@pytest.mark.parametrize("mutate", [replace_byte, insert_byte, remove_byte, truncate])
@given(any_command, st.integers(0, 10**6), st.integers(0, 255))
def test_a_command_changed_at_one_byte_is_decoded_or_refused_with_a_message(
    mutate: Callable[[bytes, int, int], bytes], sent: tuple[str, Command], at: int, byte: int
) -> None:
    line = line_of(*sent)
    changed = mutate(line, at % len(line), byte)
    refused = refusal_of(lambda: decode_payload(decode_request(changed)))
    if refused is None:
        request = decode_request(changed)
        assert type(decode_payload(request)) is COMMANDS[request.type]
    else:
        assert refused.message


# --- encoding ------------------------------------------------------------------------------------

# The response ``events`` holds lines of the log, which the second test covers.


def decode_struct(line: bytes, struct: type[msgspec.Struct]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(json.loads(line)["payload"]), type=struct)


@pytest.mark.slow
@_SLOW
@given(st.data(), st.sampled_from(sorted(RESPONSES.keys() - {"events"})))
def test_any_response_is_a_valid_line_that_decodes_to_an_equal_struct(
    data: st.DataObject, type_: str
) -> None:
    payload = data.draw(structs(RESPONSES[type_]))
    line = encode_response("a", payload)
    check_response(line)
    assert decode_struct(line, RESPONSES[type_]) == payload


@_SLOW
@given(st.data(), st.sampled_from(sorted(EVENTS)), st.integers(1, 10**12))
def test_any_event_is_a_valid_line_that_decodes_to_an_equal_struct(
    data: st.DataObject, type_: str, seq: int
) -> None:
    payload = data.draw(structs(EVENTS[type_]))
    line = number_event(seq, encode_event_tail(payload, "2026-01-01T00:00:00.000000Z"))
    check_event(line)
    event = decode_event(line)
    assert (event.id, event.type) == (f"evt-{seq}", type_)
    assert decode_struct(line, EVENTS[type_]) == payload
