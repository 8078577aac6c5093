"""The table of the matrix: what is written is read again, and columns of other programs stay."""

from __future__ import annotations

from scripts.matrix.table import PAGE, Cell, cells_in, merge_cells, with_cells
from tests.runtimes.real_programs import PROGRAMS
from tests.runtimes.rows import ROWS

PAGE_OF_NOTHING = "# Before\n<!-- generated: scripts/runtimes -->\n<!-- end -->\nafter\n"
COLUMNS = ["one 1.0", "two 2.0"]


def test_a_table_is_read_as_it_was_written() -> None:
    cells = {
        "steer": {"one 1.0": Cell("passed"), "two 2.0": Cell("cannot", "it takes none: one")},
        "usage": {"two 2.0": Cell("failed")},
    }
    page = with_cells(PAGE_OF_NOTHING, cells, COLUMNS)
    assert page.startswith("# Before\n")
    assert page.endswith("<!-- end -->\nafter\n")
    assert cells_in(page) == cells
    assert with_cells(page, cells, COLUMNS) == page


def test_columns_of_other_programs_stay_and_those_of_other_versions_do_not() -> None:
    old = {"steer": {"one 0.9": Cell("passed"), "two 2.0": Cell("passed")}}
    new = {"steer": {"one 1.0": Cell("failed")}, "usage": {"one 1.0": Cell("passed")}}
    both = merge_cells(old, new, COLUMNS)
    assert both["steer"] == {"one 1.0": Cell("failed"), "two 2.0": Cell("passed")}
    assert both["usage"] == {"one 1.0": Cell("passed")}
    assert list(both) == list(ROWS)


def test_the_page_has_a_cell_of_each_row_for_each_program_and_none_failed() -> None:
    cells = cells_in(PAGE.read_text(encoding="utf-8"))
    assert list(cells) == list(ROWS)
    for row, found in cells.items():
        assert len(found) == len(PROGRAMS), row
        assert {cell.outcome for cell in found.values()} <= {"passed", "cannot"}, row
