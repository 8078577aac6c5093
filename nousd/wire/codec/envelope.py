"""Decode lines to commands and events; encode responses and events as lines.

Theory of operation. A line is decoded in two steps: the envelope with its payload left raw, then the
payload into the struct of its type. So the response to a request with an unknown type or an invalid
payload still has the request's id.

The fast path is msgspec on the received bytes. Only if it fails, or misses a key of the envelope, is the
line decoded again on the tolerant path: v1 clients may send keys of the envelope in any case, invalid
UTF-8 and lone surrogates (both become U+FFFD). The tolerant path also produces the error messages
(``validation``), so that no text of a parser reaches a client.

Of duplicate keys, the last one wins. Of keys that differ only in case, the lower-case one wins, so that
both paths agree. Unknown keys are ignored. All three are promises of v1 (protocol/v1.md, "Envelope").

This module makes no ids, reads no clock and does no I/O.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from nousd.errors import InvalidCommand, InvalidCursor, InvalidPayload, WireError
from nousd.wire.codec.decoding import convert, decode_json, json_decoder
from nousd.wire.codec.validation import describe_fault, describe_missing_field, json_type
from nousd.wire.commands import COMMANDS, LENIENT, Command
from nousd.wire.events import EVENT_TYPES, EVENTS, Event
from nousd.wire.limits import NESTING_MAX
from nousd.wire.objects.field_types import OptionalCursor
from nousd.wire.responses import RESPONSE_TYPES, Response

_FAILURES: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""The exceptions that msgspec raises on invalid input, two of them Python's own."""

C = TypeVar("C", bound=Command)


class Request(msgspec.Struct, frozen=True):
    """A decoded envelope; ``payload`` is the raw JSON of an object."""

    id: str
    type: str
    payload: msgspec.Raw


class _Envelope(msgspec.Struct):
    v: str | None = None
    id: str | None = None
    type: str | None = None
    # Not an object, so that the tolerant path looks for the key in another case.
    payload: msgspec.Raw = msgspec.Raw(b"null")


_OBJECT: Final = ord("{")

_envelope_decoder: Final = json_decoder(_Envelope)
_encoder: Final = msgspec.json.Encoder()
_payload_decoders: Final[dict[type[Command], msgspec.json.Decoder[Any]]] = {}


# --- requests --------------------------------------------------------------------------------


def decode_request(line: bytes) -> Request:
    """Decode one line without its LF.

    Raises:
        InvalidCommand: with the request's id if it could be read. The checks run in the order JSON,
            ``v``, ``id``, ``type``; whether the type exists is not checked here.
    """
    if is_nested_too_deep(line):
        raise InvalidCommand(f"invalid_json: nested deeper than {NESTING_MAX} levels")
    try:
        envelope = _envelope_decoder.decode(line)
    except _FAILURES:
        return _decode_tolerantly(line)
    if (
        not envelope.id
        or not envelope.type
        or envelope.v != "1"
        or memoryview(envelope.payload)[0] != _OBJECT
    ):
        return _decode_tolerantly(line)
    return Request(envelope.id, envelope.type, envelope.payload)


def _decode_tolerantly(line: bytes) -> Request:
    """Decode on the tolerant path: accept keys in any case, repair UTF-8, raise errors for clients."""
    value = parse_json(line)
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise InvalidCommand(f"invalid_json: expected an object, got {json_type(value)}")
    fields = {key.lower(): item for key, item in value.items()} | value
    request_id = fields.get("id")
    readable_id = request_id if isinstance(request_id, str) else ""
    for name in ("v", "id", "type"):
        if not isinstance(fields.get(name), str | None):
            raise InvalidCommand(
                f"invalid_json: {name} must be a string, got {json_type(fields[name])}",
                request_id=readable_id,
            )
    payload = fields.get("payload")
    if not isinstance(payload, dict | None):
        raise InvalidCommand(
            f"invalid_json: payload must be an object, got {json_type(payload)}",
            request_id=readable_id,
        )
    version = fields.get("v") or "1"
    if version != "1":
        raise InvalidCommand(
            f"invalid_version: expected 1, got {version[:40]}", request_id=readable_id
        )
    if not readable_id:
        raise InvalidCommand("missing_id")
    if not fields.get("type"):
        raise InvalidCommand("missing_type", request_id=readable_id)
    return Request(readable_id, fields["type"], msgspec.Raw(_encoder.encode(payload or {})))


def parse_json(data: bytes) -> Any:
    """Parse JSON that may hold invalid UTF-8 or lone surrogates; both become U+FFFD.

    Raises:
        InvalidCommand: ``invalid_json: ...`` with the position of the fault.
    """
    text = data.decode("utf-8", "replace")
    if not text.strip():
        raise InvalidCommand("invalid_json: the line is empty")
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise InvalidCommand(f"invalid_json: syntax error at column {error.colno}") from None
    except ValueError as error:
        # An integer of thousands of digits, 1e999, NaN or Infinity.
        raise InvalidCommand("invalid_json: a number is out of range") from error
    return _without_surrogates(value)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse_constant(text)


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, list | tuple):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {scrub(key): _without_surrogates(item) for key, item in value.items()}
    return value


def scrub(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, by U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def utf8_size(text: str) -> int:
    """Return the number of UTF-8 bytes of a text; a lone surrogate counts as its replacement."""
    return len(text) if text.isascii() else len(scrub(text).encode())


# Possessive quantifiers, because backtracking costs a hundred bytes for each byte of a string.
_BRACKETS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]')


def is_nested_too_deep(json: bytes) -> bool:
    """Return whether arrays and objects nest deeper than ``NESTING_MAX``."""
    # Most lines are too short to nest that deep, and most others have too few brackets.
    if len(json) <= NESTING_MAX or json.count(b"[") + json.count(b"{") <= NESTING_MAX:
        return False
    depth = 0
    for match in _BRACKETS.finditer(json):
        token = match.group()
        if token in b"[{":
            depth += 1
            if depth > NESTING_MAX:
                return True
        elif token in b"]}":
            depth -= 1
    return False


# --- payloads --------------------------------------------------------------------------------


def decode_payload(request: Request) -> Command:
    """Decode the payload of a request into the struct of its type.

    Raises:
        InvalidCommand: no command has that type.
        InvalidPayload: with the first invalid field, in the struct's order.
    """
    struct = COMMANDS.get(request.type)
    if struct is None:
        raise InvalidCommand(f"invalid_command: {request.type[:100]}", request_id=request.id)
    return convert_payload(request.payload, struct)


def convert_payload(payload: msgspec.Raw, struct: type[C]) -> C:
    """Decode raw JSON into ``struct``; report faults with the messages that v1 clients know.

    Raises:
        InvalidPayload: with the field and, if there is one, its limit.
        InvalidCursor: the same, if the field is a cursor.
    """
    decoder = _payload_decoders.get(struct)
    if decoder is None:
        decoder = _payload_decoders[struct] = json_decoder(struct)
    try:
        decoded: C = decoder.decode(payload)
    except _FAILURES:
        return _convert_tolerantly(_parse_payload(payload), struct)
    return decoded


def _parse_payload(payload: msgspec.Raw) -> dict[str, Any]:
    """Parse an object again whose unknown fields the fast path accepted without decoding them."""
    try:
        values: dict[str, Any] = parse_json(bytes(payload))
    except InvalidCommand as error:
        raise InvalidPayload(error.message) from None
    return values


def _convert_tolerantly(values: dict[str, Any], struct: type[C]) -> C:
    accepted: dict[str, Any] = {}
    for field in msgspec.structs.fields(struct):
        if field.name not in values:
            if field.required:
                raise InvalidPayload(describe_missing_field(struct, field.name))
            continue
        value = values[field.name]
        try:
            accepted[field.name] = convert(value, field.type)
        except msgspec.ValidationError as error:
            if not _counts_as_absent(value, field, struct):
                fault = InvalidCursor if field.type == OptionalCursor else InvalidPayload
                raise fault(describe_fault(struct, field, value, error)) from None
    return struct(**accepted)


def _counts_as_absent(value: Any, field: msgspec.structs.FieldInfo, struct: type[Command]) -> bool:
    """Return whether v1 treats a value as absent: its clients write an optional id that they do not have
    as "". An empty cursor, which v1 did not have, is an error: as "from now on" it would lose events.
    """
    if value == "" and field.type != OptionalCursor:
        return not field.required and field.default is None
    return (struct, field.name) in LENIENT and not isinstance(value, str)


# --- responses and events --------------------------------------------------------------------


class _Answer(msgspec.Struct, frozen=True, tag_field="v", tag="1"):
    """A whole response with its keys in v1's order, so that one encoder call writes the line."""

    id: str
    type: str
    payload: Any
    ok: bool = True


def encode_response(request_id: str, payload: Response) -> bytes:
    """Return the response line, with its LF, for a payload."""
    return _encode_line(_Answer(request_id, RESPONSE_TYPES[type(payload)], payload))


def encode_plain_response(request_id: str, type_: str, payload: Any) -> bytes:
    """Return the response line for a payload that is not a struct, such as an extension's result."""
    return _encode_line(_Answer(request_id, type_, payload))


def _encode_line(answer: _Answer) -> bytes:
    """Encode JSON and its LF in one step, so that an answer of megabytes is not copied for one byte.

    ``encode_lines`` receives a list: for other iterables, msgspec 0.22 never frees the iterator, 48
    bytes per answer.
    """
    try:
        return _encoder.encode_lines([answer])
    except UnicodeEncodeError:
        return encode_json(answer) + b"\n"


def encode_error(request_id: str, error: WireError) -> bytes:
    """Return the error line, with its LF, that answers a request."""
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.cause is not None:
        body["cause"] = error.cause
    if error.details is not None:
        body["details"] = error.details
    return b'{"v":"1","id":%b,"type":"error","payload":{},"ok":false,"error":%b}\n' % (
        encode_json(request_id),
        encode_json(body),
    )


def encode_json(value: Any) -> bytes:
    """Encode JSON. Models and tools can produce lone surrogates, which become U+FFFD."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_without_surrogates(msgspec.to_builtins(value)))


_EVENT_HEADS: Final = {
    struct: b'","type":"%b","payload":' % name.encode() for struct, name in EVENT_TYPES.items()
}


def encode_event_tail(payload: Event, ts: str) -> bytes:
    """Return the part of an event's line after its sequence number, with its LF.

    The log prepends the number (``number_event``) when it assigns it, so that the body is encoded once,
    and not by the writer.
    """
    try:
        body = _encoder.encode(payload)
    except UnicodeEncodeError:
        body = encode_json(payload)
    return b'%b%b,"ts":"%b"}\n' % (_EVENT_HEADS[type(payload)], body, ts.encode())


def number_event(seq: int, tail: bytes) -> bytes:
    """Return the whole line of the event with that sequence number."""
    return b'{"v":"1","id":"evt-%d%b' % (seq, tail)


class EventLine(msgspec.Struct, frozen=True):
    """A decoded event line; ``payload`` stays raw until ``event_in`` decodes it by its type."""

    id: str
    type: str
    payload: msgspec.Raw
    ts: str


_event_decoder: Final = json_decoder(EventLine)


def decode_event(line: bytes) -> EventLine:
    """Decode an event line that this daemon wrote."""
    return _event_decoder.decode(line)


def event_in(line: EventLine) -> Event:
    """Return the event of a line as its struct."""
    event: Event = decode_json(line.payload, type=EVENTS[line.type])
    return event
