"""Which files and folders of a workdir rules close to a program: they say what they mean by patterns,
and a mount needs a place.

The tree is walked from above, so that what lies near its top is found first. What a denial closes has to
be found whole; of what is only protected, which may be in any folder, as much as a command can wait for.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from nousd.errors import ToolError

DENYING_ENTRIES_MAX: Final = 200_000
"""Entries that are looked at where something must not be read."""

PROTECTING_ENTRIES_MAX: Final = 10_000
"""Entries that are looked at for what must not be written."""

HIDDEN_MAX: Final = 1000
PROTECTED_MAX: Final = 200
"""Places of each kind: every one is a mount of its own, which costs the more the more there are."""

Patterns = Sequence[re.Pattern[str]]
"""They match a whole place, with slashes from the workdir."""


class ClosedByRules(NamedTuple):
    """Places that are there. Of those below a closed one nothing is said."""

    hidden: tuple[Path, ...] = ()
    protected: tuple[Path, ...] = ()


def closed_by(
    workdir: Path, reading: Patterns, writing: Patterns, names: re.Pattern[str]
) -> ClosedByRules:
    """Returns what may not be read, and what may not be written.

    Args:
        names: of what may not be written, wherever it is.

    Raises:
        ToolError: it cannot be told in time what may not be read.
    """
    entries_max = DENYING_ENTRIES_MAX if reading else PROTECTING_ENTRIES_MAX
    hidden: list[Path] = []
    protected: list[Path] = []
    ahead = deque([""])
    seen = 0
    while ahead and seen <= entries_max:
        folder = ahead.popleft()
        for entry in _entries(workdir / folder):
            seen += 1
            place = f"{folder}/{entry.name}" if folder else entry.name
            if _match(reading, place):
                hidden.append(workdir / place)
            elif names.match(entry.name) or _match(writing, place):
                protected.append(workdir / place)
            elif entry.is_dir(follow_symlinks=False):
                ahead.append(place)
    if reading and (ahead or len(hidden) > HIDDEN_MAX):
        raise ToolError(
            "sandbox_failed: rules deny reading in this workdir, and it is too large for telling"
            f" where: more than {entries_max} entries or {HIDDEN_MAX} places"
        )
    return ClosedByRules(tuple(hidden), tuple(protected[:PROTECTED_MAX]))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:  # nobody else can list it either
        return []


def _match(patterns: Patterns, place: str) -> bool:
    return any(pattern.fullmatch(place) for pattern in patterns)
