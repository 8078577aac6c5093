"""The protocol of both clients: encoding requests as lines, decoding lines as answers and events.

Only this module decides whether a line is an answer or an event. JSON is parsed by the standard library
unless the caller passes a faster parser, whose import would take too long for a single request. This
module does no I/O and does not know which requests are waiting.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from nousd.errors import AnswerInvalid, Refused
from nousd.wire.codec.framing import LineSplitter, LineTooLong

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""The longest line that a client accepts. A page of entries is far shorter; the longest answer is the
``result`` of a long run with its events."""

REQUEST_TIMEOUT_SECONDS: Final = 30.0
"""The default time-out of a request."""


Loads = Callable[[bytes], Any]
"""Parses JSON in UTF-8. Raises ValueError if the bytes are not JSON, or RecursionError."""


class Answer(NamedTuple):
    """One line from the command socket.

    Args:
        id: the request's id; "" if the daemon could not read the request.
        type: ``pong``, ``accepted``, ...; ``error`` if the request was refused.
        refusal: the error, if the request was refused.
        line: the line as received, without its LF.
    """

    id: str
    type: str
    payload: dict[str, Any]
    refusal: Refused | None
    line: bytes = b""

    def raise_for_refusal(self) -> Answer:
        """Return the answer unchanged.

        Raises:
            Refused: the daemon answered with an error.
        """
        if self.refusal is not None:
            raise self.refusal
        return self


class ReceivedEvent(NamedTuple):
    """One event from the event socket; ``line`` is the line as received, without its LF."""

    id: str
    type: str
    payload: dict[str, Any]
    ts: str
    line: bytes


def encode_request(request_id: str, type_: str, payload: Mapping[str, Any]) -> bytes:
    """Return the line, with its LF, of a request of that type.

    Raises:
        ValueError: the payload has a value that JSON cannot represent, such as NaN.
    """
    envelope = {"v": "1", "id": request_id, "type": type_, "payload": payload}
    return json.dumps(envelope, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def decode_answer(line: bytes | LineTooLong, loads: Loads = json.loads) -> Answer:
    """Decode one line from the command socket.

    Raises:
        AnswerInvalid: the line is not an answer of v1.
    """
    line = whole_line(line)
    return _to_answer(_decode_object(line, loads), line)


def decode_subscription_line(
    line: bytes | LineTooLong, loads: Loads = json.loads
) -> Answer | ReceivedEvent:
    """Decode a line from the event socket: an event, the answer to ``subscribe`` or a keep-alive.

    Raises:
        AnswerInvalid: the line is neither an answer nor an event.
    """
    line = whole_line(line)
    fields = _decode_object(line, loads)
    return _to_answer(fields, line) if "ok" in fields else _to_event(fields, line)


def whole_line(line: bytes | LineTooLong) -> bytes:
    """Return the line unchanged.

    Raises:
        AnswerInvalid: the line was longer than ``ANSWER_BYTES_MAX``.
    """
    if isinstance(line, LineTooLong):
        raise AnswerInvalid(f"the daemon sent a line of more than {ANSWER_BYTES_MAX} bytes")
    return line


def _to_answer(fields: dict[str, Any], line: bytes) -> Answer:
    match fields:
        case {"id": str(id), "type": str(type_), "ok": True, "payload": dict(payload)}:
            return Answer(id, type_, payload, None, line)
        case {"id": str(id), "ok": False, "error": {"code": str(code), "message": str(message)}}:
            error = fields["error"]
            refusal = Refused(code, message, error.get("cause"), error.get("details"))
            return Answer(id, "error", {}, refusal, line)
    raise AnswerInvalid("the daemon sent a line that is no answer of v1")


def _to_event(fields: dict[str, Any], line: bytes) -> ReceivedEvent:
    match fields:
        case {"id": str(id), "type": str(type_), "payload": dict(payload), "ts": str(ts)}:
            return ReceivedEvent(id, type_, payload, ts, line)
        case {"seq": int(seq), "type": str(type_), "payload": dict(payload), "time": str(ts)}:
            # An event in a view.
            return ReceivedEvent(str(seq), type_, payload, ts, line)
    raise AnswerInvalid("the daemon sent a line that is no event of v1")


def _decode_object(line: bytes, loads: Loads) -> dict[str, Any]:
    try:
        value = loads(line)
    except (ValueError, RecursionError):
        raise AnswerInvalid("the daemon sent a line that is not JSON") from None
    if not isinstance(value, dict):
        raise AnswerInvalid("the daemon sent a line that is no JSON object")
    return value


def new_splitter() -> LineSplitter:
    """Return a splitter for the lines that a daemon sends."""
    return LineSplitter(ANSWER_BYTES_MAX)
