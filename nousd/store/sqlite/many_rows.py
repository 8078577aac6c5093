"""Executes one statement for many rows.

Executing a statement releases the interpreter lock, and getting it back from a busy event loop takes
time. Row by row, a group of a few dozen inputs would wait for it a hundred times; here it waits once per
table.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import apsw

ROWS_MAX: Final = 64
"""Maximum rows in one statement, a power of two."""

Row = tuple[Any, ...]


class ManyRows:
    """A statement over any number of rows of values.

    There is one statement for each power of two, so that they are few and stay prepared. Padding rows up
    to that power contain only nulls, and the statement must skip them.

    Args:
        prefix, suffix: the statement around ``VALUES (...), (...)``.
        columns: number of values in each row.
        insert: the ``INSERT`` clause before ``prefix``, for rows that are inserted unchanged. A single
            row is then inserted without ``prefix`` and ``suffix``: it needs no padding, and a statement
            over many rows makes SQLite prepare for undoing a part of it.
    """

    def __init__(self, prefix: str, columns: int, suffix: str, *, insert: str = "") -> None:
        row = f"({', '.join('?' * columns)})"
        self._nulls = (None,) * columns
        self._statements = {
            count: f"{insert} {prefix} VALUES {', '.join([row] * count)} {suffix}"
            for count in _SIZES
        }
        if insert:
            self._statements[1] = f"{insert} VALUES {row}"

    def execute(self, connection: apsw.Connection, rows: Sequence[Row]) -> None:
        """Execute the statement for all rows, in order."""
        for start in range(0, len(rows), ROWS_MAX):
            chunk = rows[start : start + ROWS_MAX]
            count = 1 << (len(chunk) - 1).bit_length()
            missing = self._nulls * (count - len(chunk))
            connection.execute(self._statements[count], (*chain.from_iterable(chunk), *missing))


_SIZES: Final = tuple(1 << power for power in range(ROWS_MAX.bit_length()))
