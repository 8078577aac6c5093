"""Checksums that reveal accidental damage to a line, and lost rows (``schema.m007_checksums``).

SQLite does not notice a flipped bit in a text. CRC-32 detects every error within 32 adjacent bits, and
misses one in four billion others. It does not protect against intent: whoever can write the file can
write checksums.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from nousd.store.records import StoredEvent
from nousd.wire.events import DELTA_EVENTS

_SESSIONS_MAX: Final = 4096
"""Number of sessions whose newest checksum is remembered; beyond that, all are forgotten."""


class Checksums:
    """Computes the checksums of events, in the order in which the events are written."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}

    def of(self, event: StoredEvent) -> tuple[int | None, int | None]:
        """Return the checksums of a durable event and of its session's previous one, None if unknown.

        A delta has neither.
        """
        if event.type in DELTA_EVENTS:
            return None, None
        previous = self._newest.get(event.session_id)
        if previous is None and len(self._newest) == _SESSIONS_MAX:
            self._newest.clear()
        checksum = self._newest[event.session_id] = crc32(event.line)
        return checksum, previous

    def forget(self) -> None:
        """Forget the checksums of events that may not have been written."""
        self._newest.clear()
