"""Tries the contract of agent programs with the vendors' own programs, against a model of ours.

scripts/runtimes                    all of them; writes the table in protocol/runtimes/README.md
scripts/runtimes claude codex       these; the columns of the others stay
scripts/runtimes --quick claude     only the rows that scripted programs fulfil as well; writes nothing
scripts/runtimes --record claude    records what it says (fixtures/runtimes), for the tests
scripts/runtimes --install claude   only installs: the exit code says whether it could

The programs are installed with npm into ${XDG_CACHE_HOME:-~/.cache}/nousd/runtimes.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from itertools import product
from typing import Final

import pytest
import trio

from scripts.matrix.installing import NotInstalled, install
from scripts.matrix.table import PAGE, Cell, Cells, cells_in, merge_cells, with_cells
from tests.runtimes.real_programs import PROGRAMS
from tests.runtimes.recordings import SCENES, record
from tests.runtimes.rows import VENDOR_CANNOT

KILLS: Final = "5"
"""Kills of each program, and of the daemon with each."""


def column_of(name: str) -> str:
    """Return the head of a program's column."""
    return f"{name} {PROGRAMS[name].version}"


class Outcomes:
    """A plugin that keeps the outcomes of the rows."""

    def __init__(self) -> None:
        self.cells: Cells = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = dict(report.user_properties)
        if "row" not in told or not (report.when == "call" or report.outcome != "passed"):
            return
        cells = self.cells.setdefault(str(told["row"]), {})
        column = column_of(str(told["program"]))
        earlier = cells.get(column)
        cell = _cell(report)
        if earlier is None or cell.outcome == "failed" or earlier.outcome == "cannot":
            cells[column] = cell


def _cell(report: pytest.TestReport) -> Cell:
    if not report.skipped:
        return Cell(report.outcome)
    why = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    _, found, reason = why.partition(VENDOR_CANNOT)
    return Cell("cannot", reason) if found else Cell("", why)


def _run_tests(names: Sequence[str], *, is_quick: bool) -> tuple[int, Cells]:
    """Return the exit code of the tests, and the cells."""
    os.environ.setdefault("NOUSD_TEST_KILLS", KILLS)
    outcomes = Outcomes()
    tests = "tests/runtimes/test_agent_contract.py" if is_quick else "tests/runtimes"
    words = [tests, "--programs", *names, "-q", "--numprocesses", "auto", "--dist", "worksteal"]
    return int(pytest.main(words, plugins=[outcomes])), outcomes.cells


def main() -> int:
    """Installs, tries, and writes the table; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/runtimes", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PROGRAMS))
    parser.add_argument("--install", action="store_true", help="only install")
    parser.add_argument("--record", action="store_true", help="record, and try nothing")
    parser.add_argument("--quick", action="store_true", help="fewer rows, and no table")
    args = parser.parse_args()
    names = args.names or list(PROGRAMS)
    if unknown := sorted(set(names) - set(PROGRAMS)):
        parser.error(f"no such program: {', '.join(unknown)}")
    try:
        for name in names:
            install(PROGRAMS[name])
    except NotInstalled as error:
        print(error, file=sys.stderr)
        return 1
    if args.install:
        return 0
    if args.record:
        for name, scene in product(names, SCENES):
            print(f"recording {name}: {scene} ...", file=sys.stderr, flush=True)
            trio.run(record, PROGRAMS[name], scene)
        return 0
    code, cells = _run_tests(names, is_quick=args.quick)
    if not args.quick:
        page, columns = PAGE.read_text(encoding="utf-8"), [column_of(name) for name in PROGRAMS]
        PAGE.write_text(with_cells(page, merge_cells(cells_in(page), cells, columns), columns))
    return code


if __name__ == "__main__":
    sys.exit(main())
