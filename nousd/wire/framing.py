"""Bytes in, lines out: the bounded line splitter of both sockets.

Rules of the file (protocol/v1.md, "Framing"): only LF ends a line, because U+2028 and a lone CR may
stand inside a JSON string; one trailing CR is dropped; a line over the limit is reported once,
skipped to its LF and costs no memory; what stands before the end of input without an LF is a line.

It deliberately does not know what a line means, and does no I/O.
"""

from __future__ import annotations

from typing import Final

from nousd.wire.limits import LINE_BYTES_MAX


class LineTooLong:
    """Stands in the list of lines where a line was longer than the limit."""

    __slots__ = ()


LINE_TOO_LONG: Final = LineTooLong()


class LineSplitter:
    """Collects chunks and gives back complete lines.

    Args:
        line_bytes_max: the longest line, in bytes, without its LF.

    Invariant: between calls ``self._rest`` holds no LF and at most ``line_bytes_max + 1`` bytes (one of
    grace for the CR of a CRLF line).
    """

    def __init__(self, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._line_bytes_max = line_bytes_max
        self._rest = bytearray()
        self._skipping = False

    def feed(self, chunk: bytes | bytearray) -> list[bytes | LineTooLong]:
        """Returns the lines that ``chunk`` completes, in order, without LF and trailing CR."""
        head, newline, tail = bytes(chunk).partition(b"\n")
        lines: list[bytes | LineTooLong] = []
        if newline:
            self._extend(head, lines)
            self._finish_line(lines)
            *whole, rest = tail.split(b"\n")
            lines.extend(self._checked(line) for line in whole)
        else:
            rest = head
        self._extend(rest, lines)
        return lines

    def end(self) -> list[bytes | LineTooLong]:
        """Returns the last line if the input ended without an LF, else nothing."""
        lines: list[bytes | LineTooLong] = []
        if self._rest:
            self._finish_line(lines)
        return lines

    def _extend(self, piece: bytes, lines: list[bytes | LineTooLong]) -> None:
        if self._skipping:
            return
        if len(self._rest) + len(piece) > self._line_bytes_max + 1:
            self._rest.clear()
            self._skipping = True
            lines.append(LINE_TOO_LONG)
            return
        self._rest += piece

    def _finish_line(self, lines: list[bytes | LineTooLong]) -> None:
        if self._skipping:
            self._skipping = False
            return
        lines.append(self._checked(bytes(self._rest)))
        self._rest.clear()

    def _checked(self, line: bytes) -> bytes | LineTooLong:
        line = line.removesuffix(b"\r")
        return line if len(line) <= self._line_bytes_max else LINE_TOO_LONG
