"""The command lines of the small programs of ours that tools run as processes.

They are of the standard library only, so Python needs no site packages. The fork server has them loaded,
and a supervisor recognises their command lines: it calls them, because Python takes longer to start than
all that they do. Any other program runs them by the same command line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

Main = Callable[[list[str]], "int | None"]
"""The main function of a program: takes its arguments, returns its exit code or exits."""

_PYTHON: Final = (sys.executable, "-I", "-S")

_LOADED: dict[str, Main] = {}


def own_program(file: Path) -> tuple[str, ...]:
    """Return the beginning of a command line that runs a program of ours; its arguments are next."""
    return (*_PYTHON, str(file))


def keep_loaded(file: str | None, main: Main) -> None:
    """Let a program be called from now on where this process is to become it."""
    assert file is not None
    _LOADED[str(Path(file).resolve())] = main


def loaded_program(argv: Sequence[str]) -> tuple[Main, list[str]] | None:
    """Return the main function of the program that a command line runs, and its arguments; None if the
    program is not loaded here.
    """
    *python, file = argv[: len(_PYTHON) + 1]
    main = _LOADED.get(file) if tuple(python) == _PYTHON else None
    return None if main is None else (main, list(argv[len(_PYTHON) + 1 :]))
