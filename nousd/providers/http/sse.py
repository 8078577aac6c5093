"""Bytes of a server-sent event stream in, payloads out: incremental, bounded, no I/O.

Rules of the file (WHATWG HTML, "Server-sent events"): LF, CRLF and a lone CR end a line; a line that
begins with a colon is a comment; the ``data`` lines of one event are joined by LF; an empty line ends
the event. Two deviations: the last event counts even without an empty line after it, and an ``error``
field is read like ``data``, because llama.cpp reported failures that way until late 2025.

It works on bytes, so a character split over two chunks is not a special case. It deliberately does not
interpret payloads.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from typing import Final

from nousd.errors import ProviderError

EVENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Maximum bytes of one event, and so of the data held between two chunks. Far above any delta, because
some servers send a whole answer as one event."""

_PAYLOAD_FIELDS: Final = (b"data", b"error")


class SseParser:
    """Collects chunks and returns the payloads of complete events.

    Invariants: ``self._rest`` holds no LF; ``len(self._rest) + self._data_bytes <= event_bytes_max``
    between calls.
    """

    def __init__(self, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._event_bytes_max = event_bytes_max
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._after_cr = False
        self._at_start = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the payloads that ``chunk`` completes, in order.

        Raises:
            ProviderError: an event is longer than the limit.
        """
        if self._after_cr or b"\r" in chunk:
            chunk = self._with_lf_only(chunk)
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            self._rest += chunk
            if len(self._rest) + self._data_bytes > self._event_bytes_max:
                raise self._too_long()
            return []
        lines = (bytes(self._rest) + head if self._rest else head).split(b"\n")
        self._rest = bytearray(tail)
        payloads = self._take_lines(lines)
        if len(self._rest) + self._data_bytes > self._event_bytes_max:
            raise self._too_long()
        return payloads

    def end(self) -> list[bytes]:
        """Return the last payload if the input ended in the middle of an event, else nothing."""
        last = bytes(self._rest)
        self._rest.clear()
        return self._take_lines([last, b""])

    def _with_lf_only(self, chunk: bytes) -> bytes:
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._after_cr = False
        if chunk:
            self._after_cr = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _take_lines(self, lines: list[bytes]) -> list[bytes]:
        if self._at_start:
            self._at_start = False
            lines[0] = lines[0].removeprefix(BOM_UTF8)
        payloads: list[bytes] = []
        for line in lines:
            if not line:
                if self._data:
                    payloads.append(b"\n".join(self._data))
                    self._data.clear()
                    self._data_bytes = 0
                continue
            name, _, value = line.partition(b":")
            if name in _PAYLOAD_FIELDS:
                self._data.append(value.removeprefix(b" "))
                self._data_bytes += len(line)
                if self._data_bytes > self._event_bytes_max:
                    raise self._too_long()
        return payloads

    def _too_long(self) -> ProviderError:
        return ProviderError(f"the server sent an event of more than {self._event_bytes_max} bytes")
