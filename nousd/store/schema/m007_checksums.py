"""Version 7: each durable event has a checksum.

``line_crc`` is the CRC-32 of a row's line. ``previous_crc`` repeats that of the session's previous
durable event, so that a missing row can be detected. Both are null where they are unknown: for deltas,
which are joined and deleted, and for lines that an earlier version wrote. ``previous_crc`` is also null
where the daemon does not remember that event (``nousd.store.sqlite.checksums``).
"""

from __future__ import annotations

from typing import Final

STATEMENTS: Final = (
    "ALTER TABLE events ADD COLUMN line_crc INTEGER",
    "ALTER TABLE events ADD COLUMN previous_crc INTEGER",
)
