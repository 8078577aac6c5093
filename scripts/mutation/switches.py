"""Builds faults into a copy of the project, each behind a number that the environment can switch on."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from .operators import Fault, Place, possible

ACTIVE: Final = "MUTATION_ACTIVE"
"""The variable with the number of the fault that is switched on."""

REACHED: Final = "MUTATION_REACHED"
"""The variable with the file that gets a line for each fault and test that reaches it."""

SWITCH: Final = f'''"""Whether a fault is switched on; notes which test reaches which fault."""

import os

active = int(os.environ.get("{ACTIVE}", "-1"))
_file = os.environ.get("{REACHED}")
_noted = set()


def is_on(number):
    if _file is not None:
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
        if (number, test) not in _noted:
            _noted.add((number, test))
            with open(_file, "a", encoding="utf-8") as file:
                file.write(f"{{number}}\\t{{test}}\\n")
    return number == active
'''
MODULE: Final = "nousd/mutation_switch.py"
_IMPORT: Final = "from nousd import mutation_switch as _mutation"


def build_in(root: Path, faults: Mapping[int, Fault]) -> None:
    """Build the faults, by their numbers, into the project at ``root``."""
    (root / MODULE).write_text(SWITCH, encoding="utf-8")
    for path in sorted({fault.path for fault in faults.values()}):
        numbers = {fault.position: number for number, fault in faults.items() if fault.path == path}
        file = root / path
        file.write_text(with_switches(file.read_text(encoding="utf-8"), numbers), encoding="utf-8")


def with_switches(source: str, numbers: Mapping[int, int]) -> str:
    """Return the source of a module with some of its possible faults.

    Args:
        numbers: position of a fault in ``operators.possible`` -> its number.
    """
    module = ast.parse(source)
    places = possible(module)
    switched: dict[int, list[tuple[int, Place]]] = {}
    for position, number in numbers.items():
        # Two faults may be possible at one node: a test of an ``if`` is a comparison as well.
        switched.setdefault(id(places[position].node), []).append((number, places[position]))
    _Switches(switched).visit(module)
    later = [
        isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in module.body
    ]
    start = later.index(True) + 1 if any(later) else 1 if ast.get_docstring(module) else 0
    module.body[start:start] = ast.parse(_IMPORT).body
    return ast.unparse(ast.fix_missing_locations(module))


class _Switches(ast.NodeTransformer):
    def __init__(self, switched: Mapping[int, Sequence[tuple[int, Place]]]) -> None:
        self._switched = switched

    def visit(self, node: ast.AST) -> ast.AST:
        found = self._switched.get(id(node), ())
        node = self.generic_visit(node)
        for number, place in found:
            is_on = ast.parse(f"_mutation.is_on({number})", mode="eval").body
            if isinstance(node, ast.stmt):
                node = ast.If(ast.UnaryOp(ast.Not(), is_on), [node], [])
            elif isinstance(node, ast.expr) and place.instead is not None:
                node = ast.IfExp(is_on, place.instead, node)
        return node
