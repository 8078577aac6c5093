"""A page contains as much as fits into one response."""

from __future__ import annotations

from nousd.daemon.commands.pages import page_of
from nousd.wire.limits import PAGE_BYTES_MAX, PAGE_ROWS_MAX

HALF = "x" * (PAGE_BYTES_MAX // 2 - 2)
"""Half of a page's bytes, its quotes included."""


def test_a_page_has_no_more_rows_than_the_bound() -> None:
    rows = list(range(PAGE_ROWS_MAX + 1))
    assert page_of(rows[:-1]) == tuple(rows[:-1])
    assert page_of(rows) == tuple(rows[:-1])


def test_a_page_has_no_more_bytes_than_the_bound() -> None:
    assert page_of([HALF, HALF]) == (HALF, HALF)
    assert page_of([HALF, HALF + "x", "y"]) == (HALF,)
