"""Rebuilds the rows of a log from its events, in a separate database.

It applies the same changes as the daemon's writer (``machine.projection``), with the same statements
(``store.sqlite.rows``). Two kinds of rows do not follow from events:

- Rows that a branch shares with a deleted parent: the parent's events are gone, so only the branch has
  them. ``adopt`` copies them.
- The row that reserves the id of a deleted session; it is made from the tombstone.
"""

from __future__ import annotations

from collections.abc import Callable

import apsw

from nousd.admin.reading.lines import LoggedEvent
from nousd.machine.projection.row_changes import CopyEntries, ForgetSession
from nousd.machine.projection.row_projection import row_changes
from nousd.store.sqlite import deleting
from nousd.store.sqlite import rows as _rows_sqlite

Adopt = Callable[[str, int], None]
"""Copies the rows that a branch had from the start. Receives the branch, whose parent does not exist or
was adopted itself, and the number of its first event."""


class Refold:
    """Applies events, in the order of the log, to the rows of ``connection``.

    The caller may have a transaction open; otherwise each statement is a transaction.
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
                while deleting.drop_step(self._connection, change.session_id):
                    pass
                self._bury(change.session_id, logged)

    def _follow_copy(self, copied: CopyEntries, seq: int) -> None:
        """Adopt the rows that follow from no event. When an adopted parent got each of its artifacts is
        unknown too, so its rows do not show which of them its own branches inherited.
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
