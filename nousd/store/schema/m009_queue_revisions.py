"""Version 9: a session has the revision of its queue.

It counts the changes whose events have a ``queue_revision``; earlier versions logged none, so in their
It counts the changes whose events have a ``queue_revision``; earlier versions logged none, so in their
"""

from __future__ import annotations

from typing import Final

STATEMENTS: Final = ("ALTER TABLE sessions ADD COLUMN queue_revision INTEGER NOT NULL DEFAULT 0",)
