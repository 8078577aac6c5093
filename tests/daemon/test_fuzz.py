"""A short fuzz of the real daemon; ``scripts/fuzz`` runs longer ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.fuzz.fuzz import Fuzz

SECONDS_MAX = 150
"""A bound for a machine that is busy; it takes a few seconds."""


@pytest.mark.parametrize("cases", [40, pytest.param(120, marks=pytest.mark.slow)])
async def test_mutated_conversations_are_answered_line_by_line_and_cause_no_fault(
    cases: int, short_folder: Path
) -> None:
    fuzz = Fuzz(short_folder, seed=1)
    with trio.fail_after(SECONDS_MAX):
        await fuzz.run(cases=cases, seconds=SECONDS_MAX)
    assert fuzz.faults == [], fuzz.report()
    assert fuzz.cases == cases
    assert fuzz.lines > cases
