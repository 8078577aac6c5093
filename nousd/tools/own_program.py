"""The command lines of the small programs of ours that tools run as processes.

They need nothing but the standard library, so Python starts without site packages. The fork server loads
those that are known when it starts, and what it forks calls them instead of executing them, because
Python takes longer to start than all that they do. Anything else runs them by the same command line.
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

_known: dict[str, str] = {}
"""Module -> file, of the programs of this process."""

_loaded: dict[str, Main] = {}
"""File -> main function."""


def own_program(module: str) -> tuple[str, ...]:
    """Return the beginning of a command line that runs a module of ours; its arguments are next."""
    file = _known[module] = str(_ROOT.joinpath(*module.split(".")).with_suffix(".py"))
    return (*_PYTHON, file)


def known_programs() -> tuple[str, ...]:
    """Return the modules for which there are command lines."""
    return tuple(_known)


def load_program(module: str) -> None:
    """Load a program, so that it is called where this process is to become it."""
    *_, file = own_program(module)
    _loaded[file] = importlib.import_module(module).main


def loaded_program(argv: Sequence[str]) -> tuple[Main, list[str]] | None:
    """Return the main function of the program that a command line runs, and its arguments; None if the
    program is not loaded here.
    """
    *python, file = argv[: len(_PYTHON) + 1]
    main = _loaded.get(file) if tuple(python) == _PYTHON else None
    return None if main is None else (main, list(argv[len(_PYTHON) + 1 :]))
