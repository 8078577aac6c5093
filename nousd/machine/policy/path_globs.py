"""Globs over paths in the workspace, as regular expressions that any process can use.

A glob starts at the workspace and cannot lead out of it. ``nousd.globs`` defines the meaning of its
signs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from nousd.errors import RuleInvalid
from nousd.globs import RULES, GlobInvalid, expand_braces, names_in, names_regex

ALTERNATIVES_MAX: Final = RULES.alternatives_max
"""Maximum globs that the braces of one stand for."""

REGEX_CHARS_MAX: Final = 16_384
"""Maximum characters of a glob's expression, because compiling a longer one takes long."""

_SPECIAL: Final = re.compile(r"[*?\[\]{},]")


def glob_regex(glob: str) -> str:
    """Return a regular expression that fully matches the paths of a glob; ``.`` is the workspace
    itself.

    Raises:
        RuleInvalid: it can match nothing inside the workspace, or expands to too many globs.
    """
    try:
        choices = [names_regex(_names(one), RULES) for one in _alternatives(glob)]
    except GlobInvalid as error:
        raise RuleInvalid(str(error)) from error
    regex = "(?s:" + "|".join(choices) + ")"
    if len(regex) > REGEX_CHARS_MAX:
        raise RuleInvalid("it stands for too much: it has too many wildcards or braces")
    return regex


def literal_glob(paths: Sequence[str]) -> str:
    """Return a glob that matches exactly these paths."""
    quoted = [_SPECIAL.sub(_quoted, path) for path in paths]
    if quoted[0].startswith(("=", "#")):
        # A rule that begins so is not a path.
        quoted[0] = f"[{quoted[0][0]}]{quoted[0][1:]}"
    return quoted[0] if len(quoted) == 1 else "{" + ",".join(quoted) + "}"


def _quoted(found: re.Match[str]) -> str:
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
