"""Paths that rules deny to one call, including those that it did not name.

A call is judged by the paths that it names, and may still come to others: a folder is searched
whole, or a link is swapped between judging and opening. So what rules deny, and what they ask about
and nobody was asked for this call, is closed where files are opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from nousd.machine.policy.rules import Rule
from nousd.wire.objects.tool_footprint import Access

_REMEMBERED: Final = 256
"""Rules in force, and places in them, for which what is closed is kept."""


class DeniedPaths(NamedTuple):
    """Patterns that fully match places with slashes from the workdir, ``.`` for the workdir itself; a
    folder is meant with all in it.
    """

    reading: tuple[re.Pattern[str], ...] = ()
    writing: tuple[re.Pattern[str], ...] = ()


def denied_paths(
    denials: Sequence[Rule], questions: Sequence[Rule], tool: str, access: Access
) -> DeniedPaths:
    """Return the paths that are denied to a call.

    Args:
        questions: the rules that ask; the places that the call names are open to it, because it does
            not run unless somebody said so.
    """
    return DeniedPaths(
        reading=(
            *_closing(denials, (), tool, "read"),
            *_closing(questions, access.paths, tool, "read"),
        ),
        writing=(
            *_closing(denials, (), tool, "write"),
            *_closing(questions, access.paths, tool, "write"),
        ),
    )


def _closing(
    rules: Sequence[Rule], named: tuple[str, ...], tool: str, kind: Literal["read", "write"]
) -> tuple[re.Pattern[str], ...]:
    areas = _areas(tuple(rules), tool, kind)
    if not areas:
        return ()
    everything = _pattern(areas, ())
    asked = tuple(path for path in named if everything.fullmatch(path))
    if not asked:
        return (everything,)
    return () if "." in asked else (_pattern(areas, asked),)


@lru_cache(maxsize=_REMEMBERED)
def _areas(rules: tuple[Rule, ...], tool: str, kind: str) -> tuple[str, ...]:
    """Return the areas of the rules that are about what a tool, or every tool, read or write."""
    meanings = (rule.meaning for rule in rules)
    return tuple(
        meaning.area.pattern
        for meaning in meanings
        if meaning.area is not None and (meaning.tool_class == kind or meaning.tool.match(tool))
    )


@lru_cache(maxsize=_REMEMBERED)
def _pattern(areas: tuple[str, ...], but: tuple[str, ...]) -> re.Pattern[str]:
    """Return a regular expression for the areas, without the exceptions in them and the directories
    on the way there.
    """
    spared = ""
    if but:
        above = {path[:index] for path in but for index, char in enumerate(path) if char == "/"}
        spared = rf"(?!(?:{_any(but)})(?:/|\Z))"
        if above:
            spared += rf"(?!(?:{_any(sorted(above))})\Z)"
    return re.compile(f"{spared}(?:{'|'.join(areas)})")


def _any(paths: Iterable[str]) -> str:
    return "|".join(map(re.escape, paths))
