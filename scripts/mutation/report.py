"""Results: which faults were found, by which suite, and which tests found none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from .operators import Fault

REACHED_MIN: Final = 8
"""A test that reaches fewer faults than this may find nothing by chance."""


class Outcome(NamedTuple):
    """The outcome of one test with no fault switched on."""

    seconds: float
    passed: bool


class Results(NamedTuple):
    """Everything measured on one copy.

    Args:
        faults: by their numbers.
        outcomes: suite -> test -> how it ended without a fault.
        reached: suite -> number of a fault -> the tests that reach it.
        runs: one object for each fault and stage: ``fault``, ``failed``, ``passed``.
    """

    faults: Sequence[Fault]
    outcomes: Mapping[str, Mapping[str, Outcome]]
    reached: Mapping[str, Mapping[int, set[str]]]
    runs: Sequence[Mapping[str, Any]]

    def reaching(self, number: int, suite: str) -> set[str]:
        """Return the tests of a suite that reach a fault, and pass without it."""
        outcomes = self.outcomes[suite]
        reached = self.reached[suite].get(number, set())
        return {test for test in reached if test in outcomes and outcomes[test].passed}

    def finders(self, number: int) -> set[str]:
        """Return the tests that failed with a fault."""
        return {test for run in self.runs if run["fault"] == number for test in run["failed"]}

    def cost(self, test: str) -> float:
        """Return the seconds that a test takes."""
        outcome = self.outcomes["default"].get(test) or self.outcomes["all"].get(test)
        return 0.0 if outcome is None else outcome.seconds

    def idle_tests(self) -> Iterator[tuple[str, list[int]]]:
        """Yield the cheapest test of each function of the default suite that has found nothing, with
        the faults that it reaches and others have found.
        """
        useful = {test.partition("[")[0] for run in self.runs for test in run["failed"]}
        reaches: defaultdict[str, list[int]] = defaultdict(list)
        for number in range(len(self.faults)):
            if self.finders(number):
                for test in self.reaching(number, "default"):
                    reaches[test].append(number)
        cheapest: dict[str, str] = {}
        for test in sorted(reaches, key=self.cost):
            cheapest.setdefault(test.partition("[")[0], test)
        yield from ((test, reaches[test]) for name, test in cheapest.items() if name not in useful)

    def in_default(self, tests: set[str]) -> set[str]:
        """Return those of the tests that the default suite has."""
        return tests & self.outcomes["default"].keys()

    def print_comparison(
        self, kept: Mapping[str, set[str]], found_again: Mapping[str, set[int]]
    ) -> bool:
        """Print what smaller suites find of what was found; return whether it is enough."""
        numbers = [number for number in range(len(self.faults)) if self.finders(number)]
        missed = {
            suite: [
                number
                for number in numbers
                if not self.finders(number) & kept[suite] and number not in found_again[suite]
            ]
            for suite in kept
        }
        for suite, which in missed.items():
            share = 1 - len(which) / len(numbers)
            print(f"{suite}: finds {len(numbers) - len(which)} of {len(numbers)} ({share:.1%})")
            for number in which:
                print(f"  missed  {_format_fault(self.faults[number])}")
        return not missed["all"] and len(missed["default"]) <= len(numbers) * 0.1


def print_report(results: Results) -> None:
    """Print a table by area, and each fault that no test found."""
    print("| area | faults | reached | found by default | only by the rest | not found |")
    print("|---|---|---|---|---|---|")
    totals = [0] * 5
    for area in dict.fromkeys(fault.area for fault in results.faults):
        counts = _counts(results, area)
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        print(f"| {area} | {' | '.join(map(str, counts))} |")
    print(f"| all | {' | '.join(map(str, totals))} |\n")
    for number, fault in enumerate(results.faults):
        if not results.finders(number):
            reached = len(results.reaching(number, "all"))
            print(f"not found by {reached:5} tests: {_format_fault(fault)}")


def _counts(results: Results, area: str) -> list[int]:
    numbers = [number for number, fault in enumerate(results.faults) if fault.area == area]
    found = [number for number in numbers if results.finders(number)]
    default = [number for number in found if results.in_default(results.finders(number))]
    return [
        len(numbers),
        sum(bool(results.reaching(number, "all")) for number in numbers),
        len(default),
        len(found) - len(default),
        len(numbers) - len(found),
    ]


def print_idle_tests(results: Results) -> None:
    """Print the functions whose tests reached faults and found none, the longest first."""
    print("\nfunctions whose tests found nothing: seconds, tests, faults reached")
    rows = sorted(_idle(results), reverse=True)
    for seconds, tests, reached, name in rows:
        print(f"{seconds:8.2f} {tests:5} {reached:5}  {name}")


def _idle(results: Results) -> Iterator[tuple[float, int, int, str]]:
    ran: defaultdict[str, set[int]] = defaultdict(set)
    useful: set[str] = set()
    cases: defaultdict[str, set[str]] = defaultdict(set)
    for run in results.runs:
        useful.update(test.partition("[")[0] for test in run["failed"])
        for test in run["passed"]:
            name = test.partition("[")[0]
            ran[name].add(run["fault"])
            cases[name].add(test)
    for name, faults in ran.items():
        if name not in useful and len(faults) >= REACHED_MIN:
            yield sum(map(results.cost, cases[name])), len(cases[name]), len(faults), name


def _format_fault(fault: Fault) -> str:
    return f"{fault.path}:{fault.line}  {fault.what}"
