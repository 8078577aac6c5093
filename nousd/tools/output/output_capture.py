"""Capture a whole output for the artifact store: in memory while it is short, otherwise in a file.

It does not know which part of the output is shown.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nousd.tools.spooled_file import SpooledFile
from nousd.wire.limits import ARTIFACT_BYTES_MAX

SPOOL_PIECE_BYTES: Final = 1024 * 1024
"""Bytes that are buffered in memory before they are written to disk; a shorter output never is."""

END_BYTES: Final = 1024 * 1024
"""Bytes that are kept of the end of an output longer than ``ARTIFACT_BYTES_MAX``."""

_GAP_BYTES_MAX: Final = 128  # Room for the note about the missing bytes.


class OutputCapture:
    """Captures an output as it arrives; of an output larger than the largest artifact, it keeps the
    beginning and the end.

    After ``finish``, ``content`` has the captured bytes, None if they could not be kept, and ``remark``
    a sentence if they are not the whole output.

    Args:
        folder: the directory in which the file is created; None for the default.
        in_memory: whether to use no file, because the output is in memory anyway.
    """

    def __init__(self, folder: Path | None = None, *, in_memory: bool = False) -> None:
        self.content: bytes | SpooledFile | None = None
        self.remark = ""
        self._folder = folder
        self._in_memory = in_memory
        self._bytes = 0
        self._buffer = bytearray()
        self._end = bytearray()
        self._spool: SpooledFile | None = None
        # The beginning is always kept; a part of the end may be dropped once the length is known.
        self._end_bytes_max = END_BYTES + _GAP_BYTES_MAX
        self._begin_bytes_max = ARTIFACT_BYTES_MAX - self._end_bytes_max

    def feed(self, chunk: bytes) -> None:
        """Take a piece. Return at once, without using the disk."""
        begin = chunk[: max(0, self._begin_bytes_max - self._bytes)]
        self._bytes += len(chunk)
        if self.remark:  # the file could not be written
            return
        self._buffer += begin
        if len(begin) < len(chunk):
            self._end += memoryview(chunk)[len(begin) :]
            if len(self._end) > 2 * self._end_bytes_max:
                del self._end[: -self._end_bytes_max]

    @property
    def wants_to_spill(self) -> bool:
        """True if so many bytes are buffered that the caller should call ``spill``."""
        return len(self._buffer) > SPOOL_PIECE_BYTES and not self._in_memory

    @property
    def is_short(self) -> bool:
        """True if ``finish`` will not use the disk."""
        is_in_memory = len(self._buffer) + len(self._end) <= SPOOL_PIECE_BYTES or self._in_memory
        return self._spool is None and is_in_memory

    def spill(self) -> None:
        """Write the buffered bytes to disk; blocks."""
        try:
            self._spool = self._spool or SpooledFile(self._folder)
            self._spool.write(self._buffer)
        except OSError as error:
            self.remark = f" The whole could not be kept: {error.strerror}."
            if self._spool is not None:
                self._spool.close()
            self._end.clear()
        self._buffer.clear()

    def finish(self) -> None:
        """Set ``content`` from the captured bytes; blocks."""
        gap, is_short = 0, self.is_short
        if self._bytes > ARTIFACT_BYTES_MAX:
            gap = self._bytes - self._begin_bytes_max - END_BYTES
            del self._end[:-END_BYTES]
            self._buffer += f"\n[{gap} bytes of the output were not kept]\n".encode()
        self._buffer += self._end
        self._end.clear()
        if not is_short and not self.remark:
            self.spill()
        if self.remark:
            return
        self.content = bytes(self._buffer) if self._spool is None else self._spool
        if gap:
            self.remark = f" It is kept whole but for {gap} bytes in front of its last {END_BYTES}."
