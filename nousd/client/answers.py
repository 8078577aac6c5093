"""The protocol of both clients: requests to lines, lines to answers and events.

What is an answer, and what an event, is decided here for all of the client. JSON is parsed by the
standard library unless a faster parser is handed in: one request must not cost the import of one.
No I/O is done here, and nothing is known of which requests are waiting.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from nousd.errors import AnswerInvalid, Refused
from nousd.wire.codec.framing import LineSplitter, LineTooLong

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""The longest line a client takes. A page of entries is far below it; the ``result`` of a long run with
its events is the biggest answer there is."""

REQUEST_TIMEOUT_SECONDS: Final = 30.0
"""How long an answer is waited for unless the caller says otherwise."""


Loads = Callable[[bytes], Any]
"""Parses JSON in UTF-8; raises ValueError if it is none, or RecursionError."""


class Answer(NamedTuple):
    """One line from the command socket.

    Args:
        id: the request's id; "" where the daemon could not read it.
        type: ``pong``, ``accepted``, ...; ``error`` if it was refused.
        refusal: why not, if it was refused.
        line: it as it came, without its LF.
    """

    id: str
    type: str
    payload: dict[str, Any]
    refusal: Refused | None
    line: bytes = b""

    def raise_for_refusal(self) -> Answer:
        """Return the answer itself.

        Raises:
            Refused: the daemon answered with an error.
        """
        if self.refusal is not None:
            raise self.refusal
        return self


class ReceivedEvent(NamedTuple):
    """One line from the event socket; ``line`` is it as it came, without its LF."""

    id: str
    type: str
    payload: dict[str, Any]
    ts: str
    line: bytes


def encode_request(request_id: str, type_: str, payload: Mapping[str, Any]) -> bytes:
    """Return the line, with its LF, that asks for ``type_``.

    Raises:
        ValueError: the payload holds what is no JSON, such as NaN.
    """
    envelope = {"v": "1", "id": request_id, "type": type_, "payload": payload}
    return json.dumps(envelope, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def decode_answer(line: bytes | LineTooLong, loads: Loads = json.loads) -> Answer:
    """Decode one line from the command socket.

    Raises:
        AnswerInvalid: it is no answer of v1.
    """
    line = whole_line(line)
    return _to_answer(_decode_object(line, loads), line)


def decode_subscription_line(
    line: bytes | LineTooLong, loads: Loads = json.loads
) -> Answer | ReceivedEvent:
    """Decode a line from the event socket: an event, the answer to ``subscribe`` or a keep-alive.

    Raises:
        AnswerInvalid: it is neither an answer nor an event.
    """
    line = whole_line(line)
    fields = _decode_object(line, loads)
    return _to_answer(fields, line) if "ok" in fields else _to_event(fields, line)


def whole_line(line: bytes | LineTooLong) -> bytes:
    """Return the line.

    Raises:
        AnswerInvalid: it was longer than ``ANSWER_BYTES_MAX``.
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
            # An event of a view.
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
    """Return the line splitter for a daemon's lines."""
    return LineSplitter(ANSWER_BYTES_MAX)
