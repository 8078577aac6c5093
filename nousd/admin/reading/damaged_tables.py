"""Reads the tables of a damaged database through SQLite, skipping the pages that it cannot read.

SQLite finds a row by descending from the root of its table, and stops at the first damaged page. So
events are read from both ends as far as possible; the rest is halved and read in the same way, until
only the numbers on damaged pages are left. Other tables are small and only read from both ends.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Final, NamedTuple

import apsw

from nousd.admin.reading.lines import STORED_LINE, StoredLine

PROBES_MAX: Final = 100_000
"""Failed reads after which the rest counts as unreadable, about one second."""

SEQ_MAX: Final = 2**63 - 1

_FAILURES: Final = (apsw.Error, UnicodeError)
"""The errors of reading a damaged page; invalid UTF-8 raises Python's own error."""

_FORWARD: Final = f"SELECT {STORED_LINE} FROM events WHERE seq BETWEEN ? AND ? ORDER BY seq"  # noqa: S608
_BACKWARD: Final = f"{_FORWARD} DESC"

Put = Callable[[StoredLine], None]
"""Receives a row as it was read."""


class Stretch(NamedTuple):
    """A range of event numbers, both included, that could not be read; ``last`` may be ``SEQ_MAX``."""

    first: int
    last: int


class EventReader:
    """Reads all reachable events.

    Args:
        highest: the presumed highest number of an event.
    """

    def __init__(self, connection: apsw.Connection, put: Put, highest: int) -> None:
        self.unreadable: list[Stretch] = []
        self._connection = connection
        self._put = put
        self._highest = highest
        self._failures = 0

    def read(self) -> None:
        """Pass every reachable row to ``put``, in no order, and add the others to ``unreadable``."""
        waiting = [Stretch(1, SEQ_MAX)]
        while waiting:
            stretch = waiting.pop()
            unread = self._from_both_ends(stretch)
            if unread is None:
                continue
            first, last = unread.first, min(unread.last, max(self._highest, unread.first))
            if first == last or self._failures >= PROBES_MAX:
                self.unreadable.append(unread)
                continue
            middle = (first + last) // 2
            waiting += [Stretch(middle + 1, unread.last), Stretch(first, middle)]

    def _from_both_ends(self, stretch: Stretch) -> Stretch | None:
        """Read a range from both ends; return the rest that could not be read, or None."""
        first, last = stretch
        try:
            for row in self._connection.execute(_FORWARD, stretch):
                self._put(StoredLine(*row))
                first = max(first, row[0] + 1)
        except _FAILURES:
            self._failures += 1
        else:
            return None
        try:
            for row in self._connection.execute(_BACKWARD, (first, last)):
                self._put(StoredLine(*row))
                last = min(last, row[0] - 1)
        except _FAILURES:
            self._failures += 1
        return Stretch(first, last) if first <= last else None


Types = tuple[type, ...]

_TEXT: Final[Types] = (str,)
_TEXT_OR_NULL: Final[Types] = (str, type(None))
_NUMBER: Final[Types] = (int,)
_BYTES: Final[Types] = (bytes,)

_COLUMNS: Final[dict[str, Types]] = {
    "active_session_id": _TEXT_OR_NULL,
    "artifact_id": _TEXT,
    "body": _BYTES,
    "created_at": _TEXT,
    "data": _BYTES,
    "deleted": _NUMBER,
    "entry_id": _TEXT,
    "error": _TEXT_OR_NULL,
    "idx": _NUMBER,
    "input_id": _TEXT,
    "leaf_id": _TEXT_OR_NULL,
    "media_type": _TEXT,
    "model": _TEXT,
    "next_seq": _NUMBER,
    "parent_id": _TEXT_OR_NULL,
    "position": _NUMBER,
    "request": _TEXT,
    "role": _TEXT,
    "run_id": _TEXT,
    "runtime": _TEXT,
    "seq": _NUMBER,
    "session_id": _TEXT,
    "settings": _TEXT,
    "size_bytes": _NUMBER,
    "snippet": _TEXT,
    "started_at": _TEXT,
    "state": _TEXT,
    "status": _TEXT,
}
"""Column -> its types. SQLite enforces them when it writes, not when it reads."""


class RowReader:
    """Reads rows of the tables other than the events; ``failed`` names those with unreadable rows.

    Args:
        connection: None if SQLite cannot read the database at all; then no table has rows.
    """

    def __init__(self, connection: apsw.Connection | None) -> None:
        self.failed: set[str] = set()
        self._connection = connection

    def has_table(self, name: str) -> bool:
        """Return whether the schema, as far as it can be read, has a table of that name."""
        if self._connection is None:
            return False
        try:
            query = "SELECT 1 FROM sqlite_schema WHERE name = ?"
            return self._connection.execute(query, (name,)).get is not None
        except _FAILURES:
            return False

    def has_column(self, table: str, name: str) -> bool:
        """Return whether a table, as far as the schema can be read, has a column of that name."""
        if self._connection is None:
            return False
        try:
            query = "SELECT 1 FROM pragma_table_info(?) WHERE name = ?"
            return self._connection.execute(query, (table, name)).get is not None
        except _FAILURES:
            return False

    def all(self, table: str, columns: str, order: str) -> Iterator[Sequence[Any]]:
        """Yield every reachable row, some twice.

        Args:
            order: the columns of the table's own b-tree.
        """
        backward = ", ".join(f"{column} DESC" for column in order.split(", "))
        for direction in (order, backward):
            query = f"SELECT {columns} FROM {table} ORDER BY {direction}"  # noqa: S608
            if (yield from self._rows(table, columns, query, ())):
                return

    def one(self, table: str, columns: str, where: str, key: Sequence[Any]) -> Sequence[Any] | None:
        """Return the row with that key, if it exists and can be read."""
        rows = self.some(table, columns, where, key)
        return rows[0] if rows else None

    def some(
        self, table: str, columns: str, where: str, key: Sequence[Any]
    ) -> Sequence[Sequence[Any]]:
        """Return the readable rows for which a condition holds."""
        query = f"SELECT {columns} FROM {table} WHERE {where}"  # noqa: S608
        return list(self._rows(table, columns, query, key))

    def _rows(
        self, table: str, columns: str, query: str, key: Sequence[Any]
    ) -> Generator[Sequence[Any], None, bool]:
        """Yield rows up to the first unreadable one; return whether all could be read."""
        if self._connection is None:
            self.failed.add(table)
            return True
        types = [_COLUMNS[name] for name in columns.split(", ")]
        try:
            for row in self._connection.execute(query, key):
                if all(map(isinstance, row, types)):
                    yield row
                else:
                    self.failed.add(table)
        except _FAILURES:
            self.failed.add(table)
            return False
        return True
