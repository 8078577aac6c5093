"""Version 2: old deltas are joined, and event lines have a second version (``wire.codec.upcasting``).

``joined_from`` is set where a line replaces several: the number of the first event that it replaces.
``pruned_seq`` is the position that the joining has reached. This upgrade changes no line.
"""

from __future__ import annotations

from typing import Final

STATEMENTS: Final = (
    "ALTER TABLE events ADD COLUMN joined_from INTEGER",
    "CREATE INDEX events_joined ON events (seq, joined_from) WHERE joined_from IS NOT NULL",
    "ALTER TABLE log_state ADD COLUMN pruned_seq INTEGER NOT NULL DEFAULT 0",
)
