"""Version 7: each durable event has a checksum.

``line_crc`` is the CRC-32 of a row's line. ``previous_crc`` repeats that of the session's durable event
before it, so that a row that is gone leaves it behind. Both are null where they are unknown: for deltas,
which are joined and deleted, and for lines that an earlier version wrote; the second also for the first
event of a session, or the first that a daemon writes of it.
"""

from __future__ import annotations

from typing import Final

STATEMENTS: Final = (
    "ALTER TABLE events ADD COLUMN line_crc INTEGER",
    "ALTER TABLE events ADD COLUMN previous_crc INTEGER",
)
