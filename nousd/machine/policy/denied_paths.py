"""The paths that rules deny to one call, including paths that the call does not name.

A call is judged by the paths that it names, but may reach others: a directory is searched as a whole, or
a link is replaced between the decision and the opening. So denied paths, and paths that need an approval
which this call did not get, are also refused when files are opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from nousd.machine.policy.rules import Rule
from nousd.wire.objects.tool_footprint import Access

_REMEMBERED: Final = 256
"""Number of sets of rules whose denied paths are cached."""


class DeniedPaths(NamedTuple):
    """Patterns that fully match paths relative to the workspace, ``.`` for the workspace itself; a
    directory includes everything in it. ``repositories``: whether a write must not enter or create a
    directory that git regards as a repository. ``may_miss``: whether the call may run although some
    files of ``reading`` could not be found under all of their names, because the user was asked.
    """

    reading: tuple[re.Pattern[str], ...] = ()
    writing: tuple[re.Pattern[str], ...] = ()
    repositories: bool = False
    may_miss: bool = False


def find_denied_paths(
    denials: Sequence[Rule], questions: Sequence[Sequence[Rule]], tool: str, access: Access
) -> DeniedPaths:
    """Return the paths that are denied to a call.

    Args:
        questions: groups of rules that ask. Each group has its own pattern, because a sandbox treats the
            built-in rules differently from a user's. The paths that the call names are open to it,
            because it only runs after approval.
    """
    return DeniedPaths(
        reading=(
            *_build_patterns(denials, (), tool, "read"),
            *(
                found
                for rules in questions
                for found in _build_patterns(rules, (*access.paths, *access.links), tool, "read")
            ),
        ),
        writing=(
            *_build_patterns(denials, (), tool, "write"),
            *(
                found
                for rules in questions
                for found in _build_patterns(rules, (*access.paths, *access.links), tool, "write")
            ),
        ),
    )


def _build_patterns(
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
    """Return the path patterns of rules about reading or writing with a tool, or with every tool."""
    meanings = (rule.meaning for rule in rules)
    return tuple(
        meaning.area.pattern
        for meaning in meanings
        if meaning.area is not None and (meaning.tool_class == kind or meaning.is_about_tool(tool))
    )


@lru_cache(maxsize=_REMEMBERED)
def _pattern(areas: tuple[str, ...], except_paths: tuple[str, ...]) -> re.Pattern[str]:
    """Return a regular expression for the areas, except ``except_paths``, everything in them, and the
    directories above them.
    """
    exceptions = ""
    if except_paths:
        parents = {
            path[:index] for path in except_paths for index, char in enumerate(path) if char == "/"
        }
        exceptions = rf"(?!(?:{_any(except_paths)})(?:/|\Z))"
        if parents:
            exceptions += rf"(?!(?:{_any(sorted(parents))})\Z)"
    return re.compile(f"{exceptions}(?:{'|'.join(areas)})")


def _any(paths: Iterable[str]) -> str:
    return "|".join(map(re.escape, paths))
