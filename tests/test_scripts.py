"""Scripts started from a checkout set up what they need."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"

STARTED = sorted(
    path.name
    for path in SCRIPTS.iterdir()
    if path.is_file() and os.access(path, os.X_OK) and path.name != "setup"
)


def test_there_are_scripts_to_start() -> None:
    assert {"check", "generate", "run", "test"} <= set(STARTED)


@pytest.mark.parametrize("name", STARTED)
def test_a_script_needs_only_a_shell_and_runs_setup_before_python(name: str) -> None:
    lines = (SCRIPTS / name).read_text(encoding="utf-8").splitlines()
    assert lines[0] == "#!/bin/sh"
    (place,) = [
        number for number, line in enumerate(lines) if line.startswith('"$root/scripts/setup"')
    ]
    assert not [line for line in lines[:place] if "python" in line]


def test_every_script_module_is_used_by_a_script() -> None:
    started = "".join((SCRIPTS / name).read_text(encoding="utf-8") for name in STARTED)
    modules = [path.name for path in SCRIPTS.glob("*.py") if path.name != "__init__.py"]
    assert [name for name in modules if name not in started] == []
