"""``scripts/mutate``: draw faults, find the tests that reach them, run those, report.

    scripts/mutate --work DIR prepare [--per-area N] [--seed S]   make a copy with faults, run all tests
    scripts/mutate --work DIR run [--every SECONDS] [--most SECONDS] [--from STAGE]
                                                                  run the tests that reach each fault
    scripts/mutate --work DIR probe [--faults N]                  try tests that found nothing yet
    scripts/mutate --work DIR report                              print what was found, and what was not
    scripts/mutate --work DIR again CHECKOUT                      compare with the tests of a checkout

``again`` answers whether a smaller suite still finds what the old one found: for the faults whose
finders the checkout has removed, it runs the tests that the checkout still has. ``probe`` runs one
test of each function that has found nothing on faults that are known to be found by others, because
``run`` stops at the first tests that fail.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from .operators import Fault, draw
from .report import REACHED_MIN, Outcome, Results, print_idle_tests, print_report
from .switches import REACHED, build_in

STAGES: Final = ("quick", "default", "rest")
"""Short tests of the default suite, its other tests, and what only ``--all`` has."""
PROBE: Final = "probe"

ROOT: Final = Path(__file__).resolve().parents[2]
PLUGIN: Final = ("-p", "scripts.mutation.plugin")
QUICK_SECONDS_MAX: Final = 0.4
"""Tests that take longer run only while nothing else has found the fault."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure which faults the tests find.")
    parser.add_argument(
        "--work", type=Path, required=True, help="a folder for the copy and results"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    prepared = commands.add_parser("prepare")
    prepared.add_argument("--per-area", type=int, default=30)
    prepared.add_argument("--seed", type=int, default=1)
    run = commands.add_parser("run")
    run.add_argument("--every", type=float, default=0, help="seconds of running on after a failure")
    run.add_argument("--most", type=float, default=600, help="seconds for one fault in one stage")
    run.add_argument("--from", choices=STAGES, default=STAGES[0], help="keep what came before it")
    probed = commands.add_parser("probe")
    probed.add_argument("--faults", type=int, default=12, help="for each function")
    commands.add_parser("report")
    again = commands.add_parser("again")
    again.add_argument("checkout", type=Path)
    arguments = parser.parse_args()
    work = Work(arguments.work)
    match arguments.command:
        case "prepare":
            work.prepare(arguments.per_area, arguments.seed)
        case "run":
            work.run(arguments.every, arguments.most, getattr(arguments, "from"))
        case "probe":
            work.probe(arguments.faults)
        case "report":
            print_report(work.results())
            print_idle_tests(work.results())
        case "again":
            return work.again(arguments.checkout)
    return 0


class Work:
    """The copy of the project with its faults, and the results measured on it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._copy = self._folder / "copy"

    def prepare(self, per_area: int, seed: int) -> None:
        """Make the copy and run all tests once, with no fault switched on."""
        self._folder.mkdir(parents=True)
        tracked = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
        ).stdout.split("\0")
        for name in filter(None, tracked):
            (self._copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self._copy / name)
        subprocess.run(["git", "init", "-q", self._copy], check=True)
        faults = draw(self._copy, per_area, seed)
        build_in(self._copy, dict(enumerate(faults)))
        self._write("faults.json", [fault._asdict() for fault in faults])
        subprocess.run([self._copy / "scripts" / "setup", "--dev"], check=True)
        # The default suite once more, because its properties are tried with fewer examples there.
        for suite in ("all", "default"):
            self._pytest(
                *("--numprocesses", "auto", "--dist", "worksteal", "--suite", suite),
                *("--outcomes", str(self._folder / f"outcomes-{suite}.jsonl")),
                reached=self._folder / f"reached-{suite}",
            )

    def run(self, every_seconds: float, seconds_max: float, begin: str) -> None:
        """Run, for each fault, the tests that reach it: the default suite, then the others."""
        for stage in STAGES[STAGES.index(begin) :]:
            self._results_of(stage).unlink(missing_ok=True)
        results = self.results()
        default = results.outcomes["default"]
        found = {number for number in range(len(results.faults)) if results.finders(number)}
        quick = {test for test, each in default.items() if each.seconds <= QUICK_SECONDS_MAX}
        numbers = range(len(results.faults))
        stages: dict[str, tuple[str, set[str], float]] = {
            "quick": ("default", quick, every_seconds),
            "default": ("default", default.keys() - quick, 0),
            "rest": ("all", results.outcomes["all"].keys() - default.keys(), 0),
        }
        for stage in STAGES[STAGES.index(begin) :]:
            suite, tests, seconds = stages[stage]
            plan = [
                {
                    "fault": number,
                    "every_seconds": seconds,
                    "seconds_max": seconds_max,
                    "tests": self._order_tests(results, results.reaching(number, suite) & tests),
                }
                for number in numbers
                if number not in found
            ]
            found.update(self._measure(stage, suite, [entry for entry in plan if entry["tests"]]))

    def probe(self, faults_max: int) -> None:
        """Run a quick test of each function that has found nothing, on faults that others find."""
        results = self.results()
        dice = random.Random(faults_max)
        tests: dict[int, list[str]] = {}
        for test, faults in results.idle_tests():
            if len(faults) < REACHED_MIN or results.cost(test) > QUICK_SECONDS_MAX:
                continue
            for number in dice.sample(faults, min(faults_max, len(faults))):
                tests.setdefault(number, []).append(test)
        self._measure(
            PROBE,
            "default",
            [
                {
                    "fault": number,
                    "every_seconds": math.inf,
                    "seconds_max": math.inf,
                    "tests": sorted(tests[number], key=results.cost),
                }
                for number in sorted(tests)
            ],
        )

    def again(self, checkout: Path) -> int:
        """Look again for what is no longer found by the same test; return 1 if it is missed."""
        results = self.results()
        kept = {suite: _collect_tests(checkout, suite) for suite in ("default", "all")}
        plans: dict[str, list[dict[str, Any]]] = {"default": [], "all": []}
        for number in range(len(results.faults)):
            for suite, tests in kept.items():
                if results.finders(number) and not results.finders(number) & tests:
                    reaching = results.reaching(number, suite) & tests
                    tried = {"fault": number, "tests": self._order_tests(results, reaching)}
                    plans[suite].append({**tried, "every_seconds": 0, "seconds_max": math.inf})
        found = {
            suite: set(self._measure(f"again-{suite}", suite, plans[suite])) for suite in plans
        }
        return 0 if results.print_comparison(kept, found) else 1

    def results(self) -> Results:
        """Return what was measured until now."""
        return Results(
            [Fault(**each) for each in json.loads((self._folder / "faults.json").read_text())],
            {suite: self._outcomes(suite) for suite in ("default", "all")},
            {suite: self._read_reached(suite) for suite in ("default", "all")},
            [
                json.loads(line)
                for stage in (*STAGES, PROBE)
                for line in _lines(self._results_of(stage))
            ],
        )

    def _measure(self, stage: str, suite: str, plan: list[dict[str, Any]]) -> Iterable[int]:
        """Run a plan; return the numbers of the faults that were found."""
        path = self._results_of(stage)
        path.unlink(missing_ok=True)
        if plan:
            self._write(f"plan-{stage}.json", plan)
            files = sorted({test.partition("::")[0] for entry in plan for test in entry["tests"]})
            self._pytest(
                *("--suite", suite, "--plan", str(self._folder / f"plan-{stage}.json")),
                *("--results", str(path), *files),
            )
        return [line["fault"] for line in map(json.loads, _lines(path)) if line["failed"]]

    def _results_of(self, stage: str) -> Path:
        return self._folder / f"results-{stage}.jsonl"

    def _order_tests(self, results: Results, tests: Iterable[str]) -> list[str]:
        """Return the tests with those first that reach few faults in little time."""
        return sorted(tests, key=results.cost)

    def _outcomes(self, suite: str) -> dict[str, Outcome]:
        lines = map(json.loads, _lines(self._folder / f"outcomes-{suite}.jsonl"))
        return {line["test"]: Outcome(line["seconds"], line["passed"]) for line in lines}

    def _read_reached(self, suite: str) -> dict[int, set[str]]:
        reached: dict[int, set[str]] = {}
        for line in _lines(self._folder / f"reached-{suite}"):
            number, _, test = line.partition("\t")
            reached.setdefault(int(number), set()).add(test)
        return reached

    def _pytest(self, *arguments: str, reached: Path | None = None) -> None:
        """Run pytest in the copy; its output goes to a file, and tests may fail."""
        environment = {**os.environ, **({} if reached is None else {REACHED: str(reached)})}
        with (self._folder / "pytest.log").open("ab") as log:
            subprocess.run(
                [self._copy / ".venv/bin/python", "-m", "pytest", "-q", *PLUGIN, *arguments],
                cwd=self._copy,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            )

    def _write(self, name: str, value: Any) -> None:
        (self._folder / name).write_text(json.dumps(value), encoding="utf-8")


def _collect_tests(checkout: Path, suite: str) -> set[str]:
    """Return the ids of the tests that a checkout has."""
    argv = [
        str(ROOT / ".venv/bin/python"),
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "--suite",
        suite,
    ]
    listed = subprocess.run(argv, cwd=checkout, capture_output=True, check=True, text=True).stdout
    return {line for line in listed.splitlines() if "::" in line}


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


if __name__ == "__main__":
    sys.exit(main())
