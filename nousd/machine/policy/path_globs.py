"""Globs over paths in the workspace, as regular expressions that any process can use.

A glob starts at the workspace and cannot lead out of it. In a rule that asks or denies, a glob without a
slash applies in every directory, as in ``.gitignore``: a secret may be anywhere. ``nousd.globs`` defines
the syntax.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from nousd.errors import RuleInvalid
from nousd.globs import RULES, GlobInvalid, expand_braces, names_in, names_regex

ALTERNATIVES_MAX: Final = RULES.alternatives_max
"""Maximum number of globs that the braces of one expand to."""

REGEX_CHARS_MAX: Final = 16_384
"""Maximum length of a glob's regular expression, because compiling a longer one takes long."""

_SPECIAL: Final = re.compile(r"[*?\[\]{},]")


def glob_regex(glob: str) -> str:
    """Return a regular expression that fully matches the paths of a glob; ``.`` is the workspace
    itself.

    Raises:
        RuleInvalid: it can match nothing inside the workspace, or expands to too many globs.
    """
    regex = _any_of(map(_names, _alternatives(glob)))
    if len(regex) > REGEX_CHARS_MAX:
        raise RuleInvalid("it stands for too much: it has too many wildcards or braces")
    return regex


def deep_glob_regex(glob: str) -> str:
    """Return a regular expression for a glob that ``glob_regex`` accepts, where alternatives without a
    slash match at any depth. A trailing slash does not count; ``./x`` is ``x`` at the top, and ``.`` the
    workspace itself.

    Raises:
        RuleInvalid: as ``glob_regex``, except that the length is not limited.
    """
    return _any_of(
        names if "/" in alternative.rstrip("/") or names == ["."] else ["**", *names]
        for alternative in _alternatives(glob)
        for names in (_names(alternative),)
    )


def _any_of(alternatives: Iterable[list[str]]) -> str:
    try:
        choices = [names_regex(names, RULES) for names in alternatives]
    except GlobInvalid as error:
        raise RuleInvalid(str(error)) from error
    return "(?s:" + "|".join(choices) + ")"


def literal_glob(paths: Sequence[str]) -> str:
    """Return a glob that matches exactly these paths."""
    quoted = [_SPECIAL.sub(_quote_match, path) for path in paths]
    if quoted[0].startswith(("=", "#")):
        # A pattern that begins with such a character is not a path.
        quoted[0] = f"[{quoted[0][0]}]{quoted[0][1:]}"
    return quoted[0] if len(quoted) == 1 else "{" + ",".join(quoted) + "}"


def _quote_match(found: re.Match[str]) -> str:
    return f"[{found[0]}]"


def _alternatives(glob: str) -> list[str]:
    try:
        return expand_braces(glob, RULES)
    except GlobInvalid as error:
        raise RuleInvalid(f"its {error}") from error


def _names(glob: str) -> list[str]:
    if glob.startswith(("/", "~")):
        raise RuleInvalid("a path pattern starts at the workdir, not at / or ~")
    names = names_in(glob)
    if ".." in names:
        raise RuleInvalid("a path pattern cannot lead out of the workdir with ..")
    return names or ["."]
