"""The default suite and the rest: no test is in both, none in neither."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.suites import SUITES, deselect


class Case:
    """A collected test case with the attributes that the choice of suites uses."""

    def __init__(self, nodeid: str, keep: int | None) -> None:
        self.nodeid = nodeid
        self._keep = keep

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        assert name == "slow"
        return None if self._keep is None else pytest.mark.slow(keep=self._keep).mark


FAMILIES = st.lists(
    st.tuples(st.integers(1, 7), st.none() | st.integers(0, 9)), min_size=1, max_size=8
)
"""Test functions: the number of cases of each, and its ``keep``, None if it is not marked."""


def cases_of(families: list[tuple[int, int | None]]) -> list[Case]:
    return [
        Case(f"test_file.py::test_{family}[{number}]", keep)
        for family, (count, keep) in enumerate(families)
        for number in range(count)
    ]


def run(cases: list[Case], suite: str) -> list[str]:
    """Return the cases that a suite runs, and check that it deselects the others."""
    items: Any = list(cases)
    left_out: Any = deselect(cast("list[pytest.Item]", items), suite)
    assert {*items, *left_out} == {*cases}
    assert len(items) + len(left_out) == len(cases)
    return [item.nodeid for item in items]


@given(FAMILIES)
def test_default_and_rest_are_disjoint_and_together_all(
    families: list[tuple[int, int | None]],
) -> None:
    cases = cases_of(families)
    default, rest, every = (run(cases, suite) for suite in SUITES)
    assert every == [case.nodeid for case in cases]
    assert sorted(default + rest) == sorted(every)


@given(FAMILIES)
def test_default_keeps_as_many_slow_cases_as_the_mark_says(
    families: list[tuple[int, int | None]],
) -> None:
    default = run(cases_of(families), "default")
    for family, (count, keep) in enumerate(families):
        kept = [name for name in default if f"::test_{family}[" in name]
        assert len(kept) == (count if keep is None else min(count, keep))
