"""The expected responses to a client that sent given bytes: one valid response for each line, in order.

Written from protocol/ alone; it decodes nothing as the daemon does.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from tests.harness.validation import check_event, check_response

_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_ANY: Final = object()


def lines_of(sent: bytes, *, is_all: bool, line_bytes_max: int) -> list[bytes]:
    """Return the lines that have to be answered.

    Args:
        is_all: True if the daemon knows that nothing more comes.
    """
    *lines, rest = sent.split(b"\n")
    # Of a line that is too long the daemon need not see the end.
    if (rest and is_all) or len(rest) > line_bytes_max + 1:
        lines.append(rest)
    return lines


def answer_faults(lines: list[bytes], answers: list[bytes], *, line_bytes_max: int) -> list[str]:
    """Return a line for people for each answer that is missing, too much, out of order or bad."""
    faults = []
    if len(lines) != len(answers):
        faults.append(f"{len(answers)} answers to {len(lines)} lines")
    for line, answer in zip(lines, answers, strict=False):
        id_ = _ANY if len(line) > line_bytes_max else _id_of(line)
        faults += _faults_of(answer, line, id_)
    return faults


def told_faults(line: bytes) -> list[str]:
    """Return the faults of a line of the event socket."""
    try:
        message = check_response(line) if b'"ok":' in line and _is_answer(line) else None
        if message is None:
            check_event(line)
        elif not message["ok"]:
            return _own_fault(message, b"a subscription")
    except AssertionError as error:
        return [str(error)]
    return []


def _is_answer(line: bytes) -> bool:
    return "ok" in json.loads(line)


def _faults_of(answer: bytes, line: bytes, id_: Any) -> list[str]:
    try:
        told = check_response(answer)
    except AssertionError as error:
        return [str(error)]
    faults = [] if told["ok"] else _own_fault(told, line)
    # An id that cannot be read is answered with "".
    if id_ is not _ANY and told["id"] != id_ and (told["id"] or told["ok"]):
        faults.append(f"{line[:300]!r} is answered with id {told['id']!r}")
    return faults


def _own_fault(answer: dict[str, Any], line: bytes) -> list[str]:
    if answer["error"]["code"] not in ("internal_error", "session_error"):
        return []
    return [f"{line[:2000]!r} is answered with {answer['error']}"]


def _id_of(line: bytes) -> Any:
    """Return the request's id if there can be no doubt about it, else ``_ANY``."""
    try:
        request = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return _ANY
    id_ = request.get("id") if isinstance(request, dict) else None
    return _SURROGATES.sub("\ufffd", id_) if isinstance(id_, str) and id_ else _ANY
