"""No test fails because the machine is slow: what it waits for may take a minute."""

from __future__ import annotations

import re
from pathlib import Path

from tests.harness.daemon import WAIT_SECONDS

TESTS = Path(__file__).parent

BOUND = re.compile(r"\bfail_after\(([\d.]+)\)")
"""A time limit whose end fails a test."""


def bounds_in(source: str) -> list[float]:
    return [float(found[1]) for found in BOUND.finditer(source)]


def test_no_wait_has_a_smaller_bound_than_the_harness() -> None:
    short = {
        str(path.relative_to(TESTS)): bounds
        for path in sorted(TESTS.rglob("*.py"))
        if (bounds := [each for each in bounds_in(path.read_text("utf-8")) if each < WAIT_SECONDS])
    }
    assert not short, f"use WAIT_SECONDS of tests/harness/daemon.py: {short}"


def test_bounds_are_found() -> None:
    assert bounds_in(f"with trio.{'fail_after'}(5), anyio.{'fail_after'}(0.5):") == [5, 0.5]
