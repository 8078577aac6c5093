"""The time limits of agent runtimes are one table, here and in the protocol."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from nousd.runtimes.agents import time_limits

_AGENTS = Path(time_limits.__file__).parent
_PAGE = Path(__file__).parents[2] / "protocol" / "runtimes" / "README.md"
_LIMITS = [name for name in vars(time_limits) if name.endswith("_SECONDS")]


def test_no_other_module_has_a_time_limit() -> None:
    found = [
        f"{path.relative_to(_AGENTS)}: {target}"
        for path in _AGENTS.rglob("*.py")
        if path.name != "time_limits.py"
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in map(
            ast.unparse, node.targets if isinstance(node, ast.Assign) else [node.target]
        )
        if target.endswith(("SECONDS", "SECONDS_MAX"))
    ]
    assert found == []


@pytest.mark.parametrize("name", _LIMITS)
def test_the_protocol_names_each_limit(name: str) -> None:
    table = _PAGE.read_text().partition("## Time limits")[2].partition("\n## ")[0]
    seconds = {row.split("|")[1].strip() for row in table.splitlines() if row.startswith("| ")}
    assert f"{vars(time_limits)[name]:g}" in seconds
