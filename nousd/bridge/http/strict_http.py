"""Strict checks of HTTP/1.1 bytes, before h11 sees them.

h11 follows the standard's advice to be lenient in places: it accepts a bare LF as the end of a line,
joins folded header values, and reads trailers the same way. A program between a client and this server
may read such bytes differently, and so see other requests than this server does. They are refused here.

This module does no I/O, and knows no routes.
"""

from __future__ import annotations

import re
import time
from email.utils import formatdate
from functools import lru_cache
from typing import Final

import h11
import msgspec

from nousd.bridge.replies import (
    BAD_REQUEST,
    HEADERS_TOO_LARGE,
    NOT_IMPLEMENTED,
    VERSION_NOT_SUPPORTED,
    Failure,
    envelope,
)
from nousd.wire.limits import HTTP_HEADERS_BYTES_MAX

Fault = tuple[Failure, str]
"""The failure that a refusal reports, and a message for people."""

_VERSIONS: Final = frozenset({b"1.0", b"1.1"})

_END: Final = b"\r\n\r\n"

# A CR or LF without the other, a NUL, or a line that begins with white space (a folded value).
_AMBIGUOUS: Final = re.compile(rb"\r(?!\n)|(?<!\r)\n|\0|\n[ \t]")

_CHUNK_SIZE: Final = re.compile(rb"[0-9A-Fa-f]{1,15}(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?\r\n")

_LINE_BYTES_MAX: Final = HTTP_HEADERS_BYTES_MAX

AMBIGUOUS: Final[Fault] = (BAD_REQUEST, "this is no request of HTTP/1.1")
TOO_LARGE: Final[Fault] = (
    HEADERS_TOO_LARGE,
    f"the head has more than {HTTP_HEADERS_BYTES_MAX} bytes",
)
_CODING: Final[Fault] = (NOT_IMPLEMENTED, "no transfer coding but chunked")


class Refused(Exception):
    """The bytes are not an acceptable request.

    Args:
        fault: the failure that the client receives.
        is_bodiless: whether the response must not have a body.
    """

    def __init__(self, fault: Fault, *, is_bodiless: bool = False) -> None:
        super().__init__(fault[1])
        self.fault = fault
        self.is_bodiless = is_bodiless


def split_head(received: bytes, checked: int = 0) -> tuple[bytes, bytes] | None:
    """Return a request's head and the bytes after it; None while the head is not complete.

    One empty line before the request is ignored, as the standard asks.

    Args:
        checked: the number of bytes that an earlier call has seen, so that a head that arrives in many
            small parts is not searched from its beginning each time.

    Raises:
        Refused: the head is ambiguous or too long.
    """
    start = 2 if received.startswith(b"\r\n") else 0
    begin = max(start, checked - len(_END))
    end = received.find(_END, begin)
    # An incomplete head may end between CR and LF; the CR is checked with the next byte.
    head = received[start:] if end < 0 else received[start : end + len(_END)]
    complete = head[:-1] if end < 0 and head.endswith(b"\r") else head
    if _AMBIGUOUS.search(complete, max(0, begin - start)):
        raise Refused(AMBIGUOUS)
    if len(head) > HTTP_HEADERS_BYTES_MAX:
        raise Refused(TOO_LARGE)
    return None if end < 0 else (head, received[end + len(_END) :])


def fault_of(request: h11.Request) -> Fault | None:
    """Return why a parsed head is refused; None if it is accepted."""
    names = {name for name, _ in request.headers}
    if request.http_version not in _VERSIONS:
        return VERSION_NOT_SUPPORTED, "HTTP/1.1 is spoken here"
    if not request.target.startswith(b"/"):
        # An absolute URL contains a second host, which would override the Host header.
        return BAD_REQUEST, "the target is to be a path"
    if b"transfer-encoding" in names and b"content-length" in names:
        return BAD_REQUEST, "Content-Length and Transfer-Encoding contradict each other"
    if b"transfer-encoding" in names and request.http_version == b"1.0":
        return BAD_REQUEST, "HTTP/1.0 has no Transfer-Encoding"
    return None


def fault_for_status(status: int) -> Fault:
    """Return the refusal for the status that h11 suggests."""
    return {431: TOO_LARGE, 501: _CODING}.get(status, AMBIGUOUS)


class ChunkGuard:
    """Follows a chunked body and refuses framing that h11 would read leniently.

    Invariant: ``_data`` bytes of the current chunk are still to come; ``_line`` is an incomplete line.
    """

    def __init__(self) -> None:
        self._line = b""
        self._data = 0
        self._in_trailer = False
        self._has_ended = False

    def check(self, received: bytes) -> None:
        """Check further bytes of the connection; bytes after the body are ignored.

        Raises:
            Refused: the framing is ambiguous, or a line is too long.
        """
        position = 0
        while position < len(received) and not self._has_ended:
            if self._data:
                skipped = min(self._data, len(received) - position)
                self._data -= skipped
                position += skipped
                continue
            end = received.find(b"\n", position) + 1 or len(received)
            self._line += received[position:end]
            position = end
            if len(self._line) > _LINE_BYTES_MAX:
                raise Refused(TOO_LARGE)
            if self._line.endswith(b"\n"):
                line, self._line = self._line, b""
                self._take(line)

    def _take(self, line: bytes) -> None:
        if self._in_trailer:
            if _AMBIGUOUS.search(line) or line[:1] in b" \t":
                raise Refused(AMBIGUOUS)
            self._has_ended = line == b"\r\n"
            return
        if _CHUNK_SIZE.fullmatch(line) is None:
            raise Refused(AMBIGUOUS)
        size = int(line.rstrip().partition(b";")[0], 16)
        self._in_trailer = size == 0
        # h11 checks the CR LF after the data; it accepts nothing else there.
        self._data = size + 2 if size else 0


@lru_cache(maxsize=2)
def http_date(second: int) -> bytes:
    """Return the value of ``Date`` for a time in whole seconds since the epoch."""
    return formatdate(second, usegmt=True).encode()


def refusal(fault: Fault, *, is_bodiless: bool) -> list[h11.Event]:
    """Return the events of a refusal, after which the connection closes."""
    failure, message = fault
    body = msgspec.json.encode(envelope(failure, message))
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        (b"date", http_date(int(time.time()))),
    ]
    head = h11.Response(status_code=failure.status, headers=headers)
    return [head, *([] if is_bodiless else [h11.Data(data=body)]), h11.EndOfMessage()]
