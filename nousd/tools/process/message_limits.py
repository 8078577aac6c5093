"""Limits what a server may send: messages and bytes per second, and JSON values per message, counted
before the message is decoded.

Decoding sixteen megabytes of empty lists takes the SDK six seconds, in which the daemon does nothing
else; counting them takes a hundredth of that. This module does not know what a message means.
"""

from __future__ import annotations

import math
from typing import Final

import trio

from nousd.wire.limits import MCP_MESSAGE_VALUES_MAX

_BEGIN_VALUES: Final = (b",", b"[", b"{")


def values_in(text: bytes) -> int:
    """Return the number of values of a JSON text; an empty list or object counts twice. For a text with
    too many strings, return a number beyond the limit, which may be less than its real number.
    """
    strings_max = 2 * MCP_MESSAGE_VALUES_MAX
    pieces = text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"', 2 * strings_max)
    if len(pieces) > 2 * strings_max:
        return strings_max
    outside = b"".join(pieces[::2])
    return 1 + sum(outside.count(sign) for sign in _BEGIN_VALUES)


class ValuesOfLines:
    """Counts the values of messages that arrive in pieces, each message in one or more lines. A JSON
    string never spans two lines.

    Args:
        is_stream: whether a blank line begins a new message, as in server-sent events.
    """

    def __init__(self, *, is_stream: bool) -> None:
        self._is_stream = is_stream
        self._line = bytearray()
        self._ended_with_cr = False
        self._values = 0
        self.largest = 0
        """The largest number of values in one message so far."""

    def feed(self, chunk: bytes) -> int:
        """Return the number of values in the lines that end in this piece."""
        if self._ended_with_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._ended_with_cr = chunk.endswith(b"\r")
        *ended, rest = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        found = sum(map(self._line_ends, ended))
        self._line += rest
        return found

    def finish(self) -> int:
        """Return the number of values in the last line."""
        return self._line_ends(b"")

    def _line_ends(self, end: bytes) -> int:
        line = bytes(self._line) + end
        self._line.clear()
        if not line and self._is_stream:
            self._values = 0
        found = values_in(line)
        self._values += found
        self.largest = max(self.largest, self._values)
        return found


MESSAGES_PER_SECOND: Final = 500
VALUES_PER_MESSAGE: Final = 100
BYTES_PER_SECOND: Final = 32 * 1024 * 1024


class Pace:
    """Lets the messages and bytes of one second through at once; more of them wait."""

    def __init__(self, messages_per_second: int = MESSAGES_PER_SECOND) -> None:
        self._messages_per_second = messages_per_second
        self._free_at = -math.inf

    async def take(self, size: int, messages: int = 1, values: int = 0) -> None:
        """Wait until this many messages, with this total size, are within the limits. Many values count
        as additional messages, because they take as much time.
        """
        messages += values // VALUES_PER_MESSAGE
        now = trio.current_time()
        self._free_at = max(self._free_at, now - 1) + max(
            messages / self._messages_per_second, size / BYTES_PER_SECOND
        )
        if self._free_at > now:
            await trio.sleep(self._free_at - now)
