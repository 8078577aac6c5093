"""The checksums of events: accidents to a line, or to a row, show in them (``schema.m007_checksums``).

SQLite does not notice a bit that flips in a text. CRC-32 finds every accident of up to 32 neighbouring
bits, and misses one of four billion others. It does not protect from intent: who may write the file may
write checksums.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from nousd.store.records import StoredEvent
from nousd.wire.events import DELTA_EVENTS

_SESSIONS_MAX: Final = 4096
"""Sessions whose newest checksum is remembered; beyond that all are forgotten."""


class Checksums:
    """Computes the checksums of events in the order in which they are written."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}

    def of(self, event: StoredEvent) -> tuple[int | None, int | None]:
        """Return the checksum of an event and that of the one before it, if it is durable."""
        if event.type in DELTA_EVENTS:
            return None, None
        previous = self._newest.get(event.session_id)
        if previous is None and len(self._newest) == _SESSIONS_MAX:
            self._newest.clear()
        checksum = self._newest[event.session_id] = crc32(event.line)
        return checksum, previous

    def forget(self) -> None:
        """Forget what may not have been written."""
        self._newest.clear()
