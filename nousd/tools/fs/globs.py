"""Glob patterns over paths: ``*``, ``?``, ``[...]``, ``**`` for any folders, ``{a,b}`` for alternatives.

A pattern without a slash is compared with the last name alone, as models expect of ``*.py``. Pure;
standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate
from functools import cache
from typing import Final

ALTERNATIVES_MAX: Final = 256
"""Patterns that the braces of one glob may stand for."""

_BRACES: Final = re.compile(r"\{([^{}]*)\}")

Parts = tuple[str, ...]


def glob_matcher(pattern: str) -> Callable[[Parts], bool]:
    """Returns a function that says whether a path matches.

    Raises:
        ValueError: if its braces stand for too many patterns.
    """
    choices = [_segment_matcher(choice) for choice in _alternatives(pattern)]
    return lambda parts: any(matches(parts) for matches in choices)


def _alternatives(pattern: str) -> list[str]:
    done: list[str] = []
    ahead = [pattern]
    while ahead:
        current = ahead.pop()
        braces = _BRACES.search(current)
        if braces is None:
            done.append(current)
        else:
            before, behind = current[: braces.start()], current[braces.end() :]
            ahead += [before + choice + behind for choice in braces[1].split(",")]
        if len(done) + len(ahead) > ALTERNATIVES_MAX:
            raise ValueError(f"braces stand for more than {ALTERNATIVES_MAX} patterns")
    return done


def _segment_matcher(pattern: str) -> Callable[[Parts], bool]:
    names = [name for name in pattern.split("/") if name not in {"", "."}]
    # None stands for "**".
    wanted = [None if name == "**" else re.compile(translate(name)).match for name in names]
    if "/" not in pattern:
        wanted.insert(0, None)

    def matches(parts: Parts) -> bool:
        @cache
        def rest_matches(want: int, part: int) -> bool:
            if want == len(wanted):
                return part == len(parts)
            match = wanted[want]
            if match is None:
                return rest_matches(want + 1, part) or (
                    part < len(parts) and rest_matches(want, part + 1)
                )
            return (
                part < len(parts) and bool(match(parts[part])) and rest_matches(want + 1, part + 1)
            )

        return rest_matches(0, 0)

    return matches
