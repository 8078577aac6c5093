"""The command lines of nousd's own small programs, which tools run as processes.

The programs need only the standard library, so Python starts without site packages. The fork server
loads all of ``PROGRAMS`` when it starts, and its children call them instead of executing them, because
starting Python takes longer than their work. Other callers execute the same command line.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

Main = Callable[[list[str]], "int | None"]
"""The main function of a program: takes its arguments, returns its exit code or exits."""

_PYTHON: Final = (sys.executable, "-I", "-S")
_ROOT: Final = Path(__file__).resolve().parents[2]

LONE_PROGRAMS: Final = ("nousd.tools.search._search_main", "nousd.tools.web._page_main")
"""The modules of the programs that start no process: nothing of them can be left when they end."""

PROGRAMS: Final = (
    *LONE_PROGRAMS,
    "nousd.tools.sandbox._bubblewrap_main",
    "nousd.tools.sandbox._landlock_main",
)
"""The modules of all programs, listed because the fork server starts before some have been used."""

_loaded: dict[str, Main] = {}
"""File -> main function."""


def own_program(module: str) -> tuple[str, ...]:
    """Return the beginning of the command line that runs a module; the program's arguments follow."""
    return (*_PYTHON, str(_ROOT.joinpath(*module.split(".")).with_suffix(".py")))


_LONE_COMMANDS: Final = frozenset(map(own_program, LONE_PROGRAMS))


def load_programs() -> None:
    """Load all programs, so that a process forked from this one can call them."""
    for module in PROGRAMS:
        *_, file = own_program(module)
        _loaded[file] = importlib.import_module(module).main


def is_lone_program(argv: Sequence[str]) -> bool:
    """Return whether a command line runs one of ``LONE_PROGRAMS``."""
    return tuple(argv[: len(_PYTHON) + 1]) in _LONE_COMMANDS


def find_loaded_program(argv: Sequence[str]) -> tuple[Main, list[str]] | None:
    """Return the main function of the program that a command line runs, and its arguments; None if this
    process has not loaded the program.
    """
    *python, file = argv[: len(_PYTHON) + 1]
    main = _loaded.get(file) if tuple(python) == _PYTHON else None
    return None if main is None else (main, list(argv[len(_PYTHON) + 1 :]))
