"""The faults of ``scripts/mutate``: their places, and the effect of switching one on."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.mutation.operators import AREAS, Fault, draw, possible
from scripts.mutation.report import Outcome, Results
from scripts.mutation.switches import ACTIVE, MODULE, REACHED, build_in, with_switches

ROOT = Path(__file__).resolve().parent.parent


class Switch:
    """Replaces the module of a copy that says which fault is switched on."""

    active = -1

    def is_on(self, number: int) -> bool:
        return number == self.active


def results_of(source: str, function: str, *arguments: object) -> Iterator[tuple[str, object]]:
    """Yield the change and the function's result with it, fault by fault."""
    source = textwrap.dedent(source)
    places = possible(ast.parse(source))
    switch = Switch()
    module: dict[str, Any] = {}
    switched = with_switches(source, {number: number for number in range(len(places))})
    exec(switched.replace("from nousd import mutation_switch as _mutation", ""), module)
    module["_mutation"] = switch
    for switch.active, place in enumerate(places):
        yield place.what, module[function](*arguments)
    switch.active = -1
    yield "", module[function](*arguments)


@pytest.mark.parametrize(
    ("expression", "faults"),
    [
        ("2 < 2", {"2 < 2  ->  2 <= 2": True, "2  ->  3": True}),
        ("'a' in 'ab'", {"'a' in 'ab'  ->  'a' not in 'ab'": False}),
        ("None is None", {"None is None  ->  None is not None": False}),
        ("not False", {"not False  ->  False": False, "False  ->  True": False}),
        ("'' or 'x'", {"'' or 'x'  ->  '' and 'x'": ""}),
        ("5 - 3", {"5 - 3  ->  5 + 3": 8, "5  ->  6": 3, "3  ->  4": 1}),
        ("f'{1}'", {}),
        ("'a' + 'b'", {}),
        ("[n for n in (1,) if n == n]", {"1  ->  2": [2], "n == n  ->  n != n": []}),
    ],
)
def test_an_expression_is_changed_by_one_operator(
    expression: str, faults: dict[str, object]
) -> None:
    # The return is not the last statement of its function, so it can be omitted too.
    source = f"def f():\n    if True:\n        return {expression}\n    return 'end'"
    found = dict(results_of(source, "f"))
    left_out = {
        "not: True",
        "True  ->  False",
        f"without: return {ast.unparse(ast.parse(expression))}",
    }
    assert {what: found[what] for what in found.keys() - left_out if what} == faults
    assert all(found[what] == "end" for what in left_out)


def test_statements_are_omitted_one_by_one() -> None:
    source = """
    def f():
        items = [1]
        items.append(2)
        items[0] += 10
        for each in (1, 2):
            break
        items.append(each)
        return items
    """
    found = {what: value for what, value in results_of(source, "f") if "->" not in what}
    assert found == {
        "without: items.append(2)": [11, 1],
        "without: items[0] += 10": [1, 2, 1],
        "without: break": [11, 2, 2],
        "without: items.append(each)": [11, 2],
        "": [11, 2, 1],
    }


def test_two_faults_of_one_expression_have_two_numbers() -> None:
    source = """
    def f(a, b):
        if a == b:
            return "same"
        return "other"
    """
    found = list(results_of(source, "f", 1, 1))
    assert [value for what, value in found if "a == b" in what] == ["other", "other"]
    assert found[-1] == ("", "same")


@pytest.mark.parametrize(
    "source",
    [
        "LIMIT = 1 + 1",
        "def f(n: int = 1) -> None:\n    assert n == 1",
        "def f():\n    'A docstring.'\n    _log.debug('x')",
        "class C:\n    n = 1",
    ],
)
def test_code_at_import_assertions_and_log_calls_have_no_faults(source: str) -> None:
    assert possible(ast.parse(source)) == []


def test_a_draw_depends_on_its_seed_and_takes_from_each_area(tmp_path: Path) -> None:
    for places in AREAS.values():
        for place in places:
            file = tmp_path / place if place.endswith(".py") else tmp_path / place / "part.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("def f():\n    return [1, 2, 3, 4, 5, 6, 7]")
    drawn = draw(tmp_path, 3, seed=1)
    assert [fault.area for fault in drawn] == [area for area in AREAS for _ in range(3)]
    assert drawn == draw(tmp_path, 3, seed=1)
    assert drawn != draw(tmp_path, 3, seed=2)


def test_every_path_of_an_area_exists() -> None:
    missing = [
        place for places in AREAS.values() for place in places if not (ROOT / place).exists()
    ]
    assert missing == []


def test_a_copy_records_the_tests_that_reach_a_fault_and_obeys_the_switch(tmp_path: Path) -> None:
    (tmp_path / "nousd").mkdir()
    (tmp_path / "nousd" / "__init__.py").touch()
    source = '"""Text."""\n\nfrom __future__ import annotations\n\ndef f():\n    return 1'
    (tmp_path / "nousd" / "part.py").write_text(source)
    fault = Fault("machine", "nousd/part.py", 0, line=6, what="1  ->  2")
    build_in(tmp_path, {7: fault})
    assert (tmp_path / MODULE).exists()

    def returned(**variables: str) -> str:
        program = "from nousd.part import f; print(f(), f())"
        environment = {**os.environ, **variables, "PYTHONPATH": str(tmp_path)}
        argv = [sys.executable, "-P", "-c", program]
        return subprocess.check_output(argv, cwd=tmp_path, env=environment, text=True)

    reached = tmp_path / "reached"
    current = {"PYTEST_CURRENT_TEST": "tests/test_a.py::test_b[c d] (call)"}
    assert returned(**current, **{REACHED: str(reached)}) == "1 1\n"
    assert reached.read_text() == "7\ttests/test_a.py::test_b[c d]\n"
    assert returned(**{ACTIVE: "7"}) == "2 2\n"
    assert returned(**{ACTIVE: "8"}) == "1 1\n"


def results(**runs: list[str]) -> Results:
    """Return results for two faults; ``runs`` are ``failed_N`` and ``passed_N``."""
    faults = [Fault("machine", "nousd/part.py", 0, line=6, what="1  ->  2")] * 2
    quick, slow = Outcome(0.1, passed=True), Outcome(9.0, passed=True)
    bad = Outcome(0.1, passed=False)
    every = {"a": quick, "b": slow, "broken": bad}
    lines = [
        {"fault": n, "failed": runs.get(f"failed_{n}", []), "passed": runs.get(f"passed_{n}", [])}
        for n in range(len(faults))
    ]
    reached = {0: {"a", "b", "broken", "gone"}, 1: {"b"}}
    outcomes = {"default": {"a": quick}, "all": every}
    return Results(faults, outcomes, {"default": reached, "all": reached}, lines)


def test_a_test_that_fails_without_a_fault_does_not_count() -> None:
    assert results().reaching(0, "all") == {"a", "b"}
    assert results().reaching(0, "default") == {"a"}


@pytest.mark.parametrize(
    ("kept", "again", "is_enough"),
    [
        ({"default": {"a", "b"}, "all": {"a", "b"}}, {}, True),
        ({"default": {"a"}, "all": {"a", "b"}}, {}, False),  # the default finds one of two
        (
            {"default": {"a"}, "all": {"a", "b"}},
            {"default": {1}},
            True,
        ),  # ... now with another test
        (
            {"default": {"a"}, "all": {"a"}},
            {"default": {1}},
            False,
        ),  # all of it must find everything
    ],
)
def test_the_default_suite_must_find_most_faults_and_the_whole_suite_all(
    kept: dict[str, set[str]],
    again: dict[str, set[int]],
    is_enough: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found_again = {"default": set[int](), "all": set[int](), **again}
    measured = results(failed_0=["a"], failed_1=["b"])
    assert measured.print_comparison(kept, found_again) is is_enough
    assert "default: finds" in capsys.readouterr().out
