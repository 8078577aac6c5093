"""What the scripted agent programs do: the user's text is a list of acts in JSON, carried out in order.

``{"say": TEXT}``, ``{"think": TEXT}``, ``{"call": [TOOL, ARGS]}``, ``{"calls": [[TOOL, ARGS], ...]}``
at once, ``{"again": [TOOL, ARGS]}`` a call twice under one id, ``{"own": [TOOL, ARGS]}`` a tool of its
own that it asks about, ``{"runs": [TOOL, ARGS]}`` one that it does not ask about if it need not,
``{"leaves": [TOOL, ARGS]}`` such a one whose end it does not report, ``{"leave": [TOOL, ARGS]}`` a call
whose result it does not wait for, ``{"late": [TOOL, ARGS]}`` a call after its turn, ``{"say_results":
true}`` what the calls so far gave, ``{"hold": true}`` until it is interrupted or steered, ``{"deaf":
true}`` until it is killed, ``{"die": CODE}``, ``{"fail": TEXT}`` the model's server fails,
``{"unknown": N}`` messages that nobody knows, ``{"garbage": N}`` lines that are no messages, ``{"raw":
[LINE, ...]}`` lines of which each character is a byte, ``{"flood": N}`` deltas, ``{"early": true}``
says something before it confirms the text, ``{"look": PATH}`` what it can see of a path, ``{"uncover":
PATH}`` the same after it has tried to take away what is mounted there.

Standard library only: the programs run alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

Act = tuple[str, Any]

_DETACH = 2
"""MNT_DETACH of umount2."""


def acts_of(text: str) -> list[Act]:
    """Return the acts in the last line of a text; any other text is said again."""
    last = text.rsplit("\n", 1)[-1]
    try:
        found = json.loads(last)
    except ValueError:
        found = None
    if not isinstance(found, list):
        return [("say", f"you said: {last}")]
    return [next(iter(act.items())) for act in found]


def flood_of(count: int) -> list[str]:
    """Return so many deltas, of which no two are alike: programs take repetitions for a loop."""
    return [f"{number} " for number in range(count)]


def seen(path: str) -> str:
    """Return what can be seen of a path: the names in a folder, or the size of a file."""
    place = Path(path)
    try:
        if place.is_dir():
            return f"folder {sorted(inner.name for inner in place.iterdir())}"
        return f"file of {place.stat().st_size}"
    except OSError as error:
        return f"nothing: {error.strerror}"


def uncovered(path: str) -> str:
    """Return what can be seen of a path when nothing covers it, if that can be had."""
    ctypes.CDLL(None).umount2(path.encode(), _DETACH)
    return seen(path)


def memory_of(variable: str, usual: str) -> Path:
    """Return the folder in which a program keeps its files: that of a variable, else one in the HOME."""
    named = os.environ.get(variable)
    return Path(named) if named else Path.home() / usual


def send(message: Any) -> None:
    """Send a message."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def send_garbage(count: int) -> None:
    """Send lines that are no messages."""
    sys.stdout.write("{not json\n" * count)
    sys.stdout.flush()


def send_raw(lines: list[str]) -> None:
    """Send lines as they are; each character is a byte."""
    sys.stdout.flush()
    for line in lines:
        sys.stdout.buffer.write(line.encode("latin-1") + b"\n")
    sys.stdout.buffer.flush()


def die(code: int) -> NoReturn:
    """End at once, with some last words."""
    sys.stderr.write("scripted agent: dying\n")
    sys.stderr.flush()
    os._exit(code)
