"""Glob patterns of searches, matched against paths relative to the searched directory.

A pattern without a slash is matched against the last name alone, as models expect of ``*.py``. Pure;
standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from nousd.globs import SEARCHES, expand_braces, names_in, names_regex

Parts = tuple[str, ...]


def glob_matcher(pattern: str) -> Callable[[Parts], bool]:
    """Return a function that returns whether a path matches.

    Raises:
        ValueError: the braces expand to too many patterns.
    """
    choices = [_compile(choice) for choice in expand_braces(pattern, SEARCHES)]

    def matches(parts: Parts) -> bool:
        path = "/".join(parts)
        return any(choice.fullmatch(path) for choice in choices)

    return matches


def _compile(pattern: str) -> re.Pattern[str]:
    names = names_in(pattern)
    if "/" not in pattern:
        names.insert(0, "**")
    return re.compile(names_regex(names, SEARCHES), re.DOTALL)
