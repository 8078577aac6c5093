"""The matrix as a table: rows of the contract, a column for each program, and why some cannot."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.runtimes.rows import ROWS

PAGE: Final = Path(__file__).resolve().parents[2] / "protocol" / "runtimes" / "README.md"

_BEGIN: Final = "<!-- generated: scripts/runtimes -->\n"
_END: Final = "<!-- end -->\n"
_NOTE: Final = re.compile(r"- `(?P<column>[^`]+)`, (?P<row>[^:]+): (?P<why>.+)")


class Cell(NamedTuple):
    """What came of one row with one program.

    Args:
        outcome: ``passed``, ``failed``, ``cannot``, or an empty text for what was not tried.
        why: for ``cannot``.
    """

    outcome: str
    why: str = ""


Cells = dict[str, dict[str, Cell]]
"""By row, then by program with its version."""


def cells_in(page: str) -> Cells:
    """Return the cells of the page's table."""
    lines = page[slice(*_bounds(page))].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    if not rows:
        return {}
    head, _, *rest = rows
    notes = {(note["row"], note["column"]): note["why"] for note in map(_NOTE.match, lines) if note}
    return {
        row: {
            column: Cell(cell, notes.get((row, column), ""))
            for column, cell in zip(head[2:], cells, strict=True)
            if cell
        }
        for row, _, *cells in rest
    }


def merge_cells(old: Cells, new: Cells, columns: Sequence[str]) -> Cells:
    """Return the new cells, and of the old ones those of other programs that are still there."""
    both = {row: {**old.get(row, {}), **new.get(row, {})} for row in ROWS}
    return {
        row: {column: cells[column] for column in columns if column in cells}
        for row, cells in both.items()
    }


def with_cells(page: str, cells: Cells, columns: Sequence[str]) -> str:
    """Return the page with these cells in its table."""
    begin, end = _bounds(page)
    table = "".join(f"{line}\n" for line in _lines(cells, columns))
    return f"{page[:begin]}{table}{page[end:]}"


def _bounds(page: str) -> tuple[int, int]:
    return page.index(_BEGIN) + len(_BEGIN), page.index(_END)


def _lines(cells: Mapping[str, Mapping[str, Cell]], columns: Sequence[str]) -> Iterator[str]:
    yield _line(["row", "what is seen", *columns])
    yield _line(["---"] * (len(columns) + 2))
    for row, found in cells.items():
        yield _line([row, ROWS[row], *(found.get(column, Cell("")).outcome for column in columns)])
    notes = [
        f"- `{column}`, {row}: {found[column].why}"
        for row, found in cells.items()
        for column in columns
        if column in found and found[column].why
    ]
    if notes:
        yield from ("", "What the programs cannot, and why:", "", *notes)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
