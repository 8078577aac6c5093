"""The rows of a log made again from its events, in a database beside it.

The same changes that the daemon's writer applies (``machine.projection``), by the same statements
(``store._rows_sqlite``). Two things cannot be had from events:

- What a branch shares with a parent that was deleted: the parent's events are gone, so the branch's
  rows are the only place left. ``adopt`` brings them.
- The row that keeps the id of a deleted session from being used again; it is made from the tombstone.
"""

from __future__ import annotations

from collections.abc import Callable

import apsw

from nousd.admin.reading.lines import LoggedEvent
from nousd.machine.projection.row_changes import CopyEntries, ForgetSession
from nousd.machine.projection.row_projection import row_changes
from nousd.store.sqlite import rows as _rows_sqlite

Adopt = Callable[[str, int], None]
"""Called with a branch whose parent is not there, or was adopted itself, and the number of its first
event: brings the rows of what it held from the start."""


class Refold:
    """Applies events, in the order of the log, to the rows of ``connection``.

    Whoever uses it has a transaction open, or makes do with one for each statement.
    """

    def __init__(self, connection: apsw.Connection, adopt: Adopt) -> None:
        self._connection = connection
        self._adopt = adopt
        self._adopted: set[str] = set()

    def apply(self, logged: LoggedEvent) -> None:
        for change in row_changes(logged.event, logged.seq, logged.ts):
            _rows_sqlite.apply(self._connection, (change,))
            if isinstance(change, CopyEntries):
                self._follow_copy(change, logged.seq)
            elif isinstance(change, ForgetSession):
                self._bury(change.session_id, logged)

    def _follow_copy(self, copied: CopyEntries, seq: int) -> None:
        """Adopt what no event tells. When an adopted parent came to each of its artifacts is not told
        either, so what its own branches were given of them cannot be said from its rows.
        """
        if copied.parent_id in self._adopted or not self.has_session(copied.parent_id):
            self._adopted.add(copied.session_id)
            self._adopt(copied.session_id, seq)

    def has_session(self, session_id: str) -> bool:
        query = "SELECT 1 FROM sessions WHERE session_id = ? AND NOT deleted"
        return self._connection.execute(query, (session_id,)).get is not None

    def has_ended(self, run_id: str) -> bool:
        query = "SELECT 1 FROM runs WHERE run_id = ? AND status <> 'running'"
        return self._connection.execute(query, (run_id,)).get is not None

    def _bury(self, session_id: str, logged: LoggedEvent) -> None:
        self._connection.execute(
            """
            INSERT OR IGNORE INTO sessions
                (session_id, created_at, updated_at, updated_seq, settings, deleted)
            VALUES (?, ?, ?, ?, '{}', 1)
            """,
            (session_id, logged.ts, logged.ts, logged.seq),
        )
