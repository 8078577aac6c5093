"""Many rows in one statement.

Whoever executes a statement lets go of the interpreter and has to get it back, which the event loop
gives up after half a millisecond when it is busy. Row by row a group of a few dozen inputs would wait
for it a hundred times; here it is written in a handful of statements, of which SQLite knows each size
after a while. What the rows mean is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

import apsw

ROWS_MAX: Final = 64
"""Rows in one statement, a power of two."""

Row = tuple[Any, ...]


class ManyRows:
    """A statement over any number of rows of values, each row of ``columns``.

    Args:
        before, behind: the statement around ``VALUES (...), (...)``.
    """

    def __init__(self, before: str, columns: int, behind: str = "") -> None:
        row = f"({', '.join('?' * columns)})"
        self._statements = {
            count: f"{before} VALUES {', '.join([row] * count)} {behind}" for count in _SIZES
        }

    def execute(self, connection: apsw.Connection, rows: Sequence[Row]) -> None:
        """Executes it for all rows, in their order."""
        for some in _divided(rows):
            connection.execute(self._statements[len(some)], tuple(chain.from_iterable(some)))


_SIZES: Final = tuple(1 << power for power in range(ROWS_MAX.bit_length()))


def _divided(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Yields rows by powers of two, the largest first: so few statements are enough, and stay known."""
    start = 0
    while left := len(rows) - start:
        count = min(ROWS_MAX, 1 << left.bit_length() - 1)
        yield rows[start : start + count]
        start += count
