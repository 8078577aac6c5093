"""Split bytes into lines of bounded length, for both sockets.

The rules (protocol/v1.md, "Framing"): only LF ends a line, because U+2028 and a lone CR may occur inside
a line; one trailing CR is dropped; a line over the limit is reported once, skipped to its LF and costs
no memory; a final line without LF is a line. A long line that does not fit into the budget shared by all
connections is treated like one over the limit.

This module does not interpret lines and does no I/O.
"""

from __future__ import annotations

from typing import Final

from nousd.wire.limits import LINE_BYTES_MAX, LONG_LINE_BYTES, LONG_LINES_BYTES_MAX


class LineTooLong:
    """Placeholder in the list of lines for a line that was longer than the limit."""

    __slots__ = ()


class NoRoomForLine(LineTooLong):
    """Placeholder for a line that did not fit into the rest of the shared budget."""

    __slots__ = ()


LINE_TOO_LONG: Final = LineTooLong()
NO_ROOM_FOR_LINE: Final = NoRoomForLine()


class LineBudget:
    """The bytes that the long lines of all connections may hold together.

    Without it, each connection could hold an incomplete line of the maximum length. A line up to
    ``LONG_LINE_BYTES`` takes nothing from the budget, so it does not affect ordinary clients.
    """

    def __init__(self, bytes_max: int = LONG_LINES_BYTES_MAX) -> None:
        self.left = bytes_max

    def take(self, wanted: int) -> bool:
        """Take bytes from the budget; return False, and take none, if it has fewer."""
        if wanted > self.left:
            return False
        self.left -= wanted
        return True

    def give_back(self, taken: int) -> None:
        """Give taken bytes back to the budget."""
        self.left += taken


class LineSplitter:
    """Collect chunks and return complete lines.

    Args:
        line_bytes_max: bound of a line in bytes, without its LF.
        budget: shared with other splitters; without one, each line is bounded alone.

    Invariant: between calls ``self._rest`` holds no LF and at most ``line_bytes_max + 1`` bytes (one
    more for the CR of a CRLF line). The budget of a line is given back in the call after the one that
    returned the line, because the caller works on it until then.
    """

    def __init__(
        self, line_bytes_max: int = LINE_BYTES_MAX, budget: LineBudget | None = None
    ) -> None:
        self._line_bytes_max = line_bytes_max
        self._at_once_max = min(line_bytes_max, LONG_LINE_BYTES)
        self._budget = budget
        self._taken = 0
        self._rest = bytearray()
        self._skipping = False

    def feed(self, chunk: bytes | bytearray) -> list[bytes | LineTooLong]:
        """Return the lines that ``chunk`` completes, in order, without LF and trailing CR."""
        # A client that waits for each response sends one whole line at a time.
        is_one_line = 0 <= chunk.find(b"\n") == len(chunk) - 1 < self._at_once_max
        if is_one_line and not (self._rest or self._skipping or self._taken):
            return [bytes(chunk[:-1]).removesuffix(b"\r")]
        self._give_back_surplus()
        head, newline, tail = bytes(chunk).partition(b"\n")
        lines: list[bytes | LineTooLong] = []
        if newline:
            self._extend(head, lines)
            self._finish_line(lines)
            *whole, rest = tail.split(b"\n")
            needs_no_check = len(tail) <= self._line_bytes_max and b"\r" not in tail
            lines += whole if needs_no_check else map(self._check_length, whole)
        else:
            rest = head
        self._extend(rest, lines)
        return lines

    def end(self) -> list[bytes | LineTooLong]:
        """Return the last line if the input ended without an LF, else nothing."""
        lines: list[bytes | LineTooLong] = []
        if self._rest:
            self._finish_line(lines)
        return lines

    def close(self) -> None:
        """Discard an incomplete line and give its budget back. Call it when the connection ends."""
        self._rest.clear()
        self._give_back_surplus()

    def _extend(self, piece: bytes, lines: list[bytes | LineTooLong]) -> None:
        if self._skipping:
            return
        length = len(self._rest) + len(piece)
        if length > self._line_bytes_max + 1:
            self._skip(LINE_TOO_LONG, lines)
        elif not self._has_room(length):
            self._skip(NO_ROOM_FOR_LINE, lines)
        else:
            self._rest += piece

    def _skip(self, reason: LineTooLong, lines: list[bytes | LineTooLong]) -> None:
        self._rest.clear()
        self._skipping = True
        lines.append(reason)

    def _has_room(self, length: int) -> bool:
        """Take the bytes that a line of that length still needs from the budget, if it has them."""
        lacking = length - LONG_LINE_BYTES - self._taken
        if self._budget is None or lacking <= 0:
            return True
        if not self._budget.take(lacking):
            return False
        self._taken += lacking
        return True

    def _give_back_surplus(self) -> None:
        """Give back the budget of the handled lines, and keep that of the incomplete one."""
        surplus = self._taken - max(0, len(self._rest) - LONG_LINE_BYTES)
        if self._budget is not None and surplus > 0:
            self._budget.give_back(surplus)
            self._taken -= surplus

    def _finish_line(self, lines: list[bytes | LineTooLong]) -> None:
        if self._skipping:
            self._skipping = False
            return
        lines.append(self._check_length(bytes(self._rest)))
        self._rest.clear()

    def _check_length(self, line: bytes) -> bytes | LineTooLong:
        line = line.removesuffix(b"\r")
        return line if len(line) <= self._line_bytes_max else LINE_TOO_LONG
