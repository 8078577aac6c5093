"""Glob patterns over paths as regular expressions: the one engine of permission rules and of searches.

``*`` and ``?`` do not cross a slash, ``**`` as a whole name matches any folders, ``[...]`` for one of
some characters, ``{a,b}`` for alternatives. ``x/**`` is ``x`` and all in it. What a pattern is compared
with, and which patterns are refused, the callers decide.

A pattern may come from somebody else's repository, so none may take long: whatever follows a star is
matched where it first fits and never looked for again (atomic groups), which for globs finds the same.

Standard library only: the process that searches starts without site-packages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class GlobInvalid(ValueError):
    """A pattern expands to too many, or has an invalid set. The message says why."""


class Dialect(NamedTuple):
    """The points in which rules and searches read a pattern differently.

    Args:
        alternatives_max: patterns that the braces of one may stand for.
        negations: characters that negate a set when they come first in it.
        nested_braces: whether ``{a,{b,c}}`` is three alternatives. If not, a brace ends at the first
            ``}``.
        strict_sets: whether ``[z-a]`` and ``[]`` are refused. If not, they are read as by ``fnmatch``:
            a range that is empty matches nothing, and brackets around nothing are themselves.
    """

    alternatives_max: int
    negations: str
    nested_braces: bool
    strict_sets: bool


# Rules are kept in logs and settings of users: none may come to allow more than when it was written.
RULES = Dialect(alternatives_max=64, negations="!^", nested_braces=False, strict_sets=True)
# Models write these, and correct them by what is found: as much as possible is given a meaning.
SEARCHES = Dialect(alternatives_max=256, negations="!", nested_braces=True, strict_sets=False)


def expand_braces(glob: str, dialect: Dialect) -> list[str]:
    """Return the patterns without alternatives that a pattern expands to.

    Raises:
        GlobInvalid: they are too many.
    """
    done: list[str] = []
    ahead = [glob]
    while ahead:
        pieces = _pieces(ahead.pop(), dialect)
        braces = _braces(pieces, dialect)
        if braces is None:
            done.append("".join(pieces))
        else:
            start, end = braces
            before, behind = "".join(pieces[:start]), "".join(pieces[end + 1 :])
            ahead += [before + choice + behind for choice in _choices(pieces[start + 1 : end])]
        if len(done) + len(ahead) > dialect.alternatives_max:
            raise GlobInvalid(f"braces stand for more than {dialect.alternatives_max} patterns")
    return done


def names_in(glob: str) -> list[str]:
    """Return the names between the slashes; empty ones and ``.`` say nothing."""
    return [name for name in glob.split("/") if name not in {"", "."}]


def names_regex(names: list[str], dialect: Dialect) -> str:
    """Return what fully matches the paths, joined by slashes, that these names mean.

    Raises:
        GlobInvalid: a set of characters is none.
    """
    if not names:
        return "(?!)"
    if set(names) == {"**"}:
        return ".*"
    # Each run stands between two "**".
    first, *rest = ["/".join(_name_regex(name, dialect) for name in run) for run in _runs(names)]
    regex, tail = first, ""
    if rest and not rest[-1]:
        # A ** at the end: the folder itself, and all in it.
        rest, tail = rest[:-1], "(?:/.*)?"
    if rest:
        *middle, last = rest
        regex += "/" * bool(first)
        regex += "".join(f"(?>(?:[^/]+/)*?{run}/)" for run in middle)
        regex += f"(?:[^/]+/)*{last}"
    return regex + tail


def _pieces(text: str, dialect: Dialect) -> list[str]:
    """Return the sets of characters, and the single characters, that a text is made of."""
    return re.findall(rf"\[[{dialect.negations}]?\]?[^\]/]*\]|.", text, re.DOTALL)


def _braces(pieces: list[str], dialect: Dialect) -> tuple[int, int] | None:
    """Return where the braces to expand next begin and end."""
    opened: int | None = None
    for index, piece in enumerate(pieces):
        if piece == "{" and (opened is None or dialect.nested_braces):
            opened = index
        elif piece == "}" and opened is not None:
            return opened, index
    return None


def _choices(pieces: list[str]) -> Iterator[str]:
    choice = ""
    for piece in pieces:
        if piece == ",":
            yield choice
            choice = ""
        else:
            choice += piece
    yield choice


def _runs(names: list[str]) -> list[list[str]]:
    runs: list[list[str]] = [[]]
    for name, following in zip(names, [*names[1:], ""], strict=True):
        if name != "**":
            runs[-1].append(name)
        elif following != "**":
            runs.append([])
    return runs


def _name_regex(name: str, dialect: Dialect) -> str:
    chunks = [""]
    for piece in _pieces(name, dialect):
        if piece != "*":
            chunks[-1] += _piece_regex(piece, dialect)
        elif chunks[-1] or len(chunks) == 1:
            chunks.append("")
    first, *rest = chunks
    if not rest:
        return first
    *middle, last = rest
    return first + "".join(f"(?>[^/]*?{chunk})" for chunk in middle) + f"[^/]*{last}"


def _piece_regex(piece: str, dialect: Dialect) -> str:
    if piece == "?":
        return "[^/]"
    if len(piece) == 1:
        return re.escape(piece)
    negated = piece[1] in dialect.negations
    members = piece[1 + negated : -1]
    if dialect.strict_sets:
        inside = _in_set(members)
    elif not members:
        return re.escape(piece)
    else:
        inside = re.sub(r"(.)-(.)|.", _members_regex, members, flags=re.DOTALL)
        if not inside:
            return "[^/]" if negated else "(?!)"
    regex = f"(?!/)[{'^' * negated}{inside}]"
    try:
        re.compile(regex)
    except re.error as error:
        raise GlobInvalid(f"{piece} is no set of characters: {error}") from error
    return regex


def _in_set(members: str) -> str:
    # A "]" that closes nothing can only be the first.
    return re.sub(r"([\\^\[&~|]|^\])", r"\\\1", members)


def _members_regex(found: re.Match[str]) -> str:
    """Return one character, or a range unless it is empty."""
    low, high = found.groups()
    if low is None:
        return re.escape(found[0])
    return f"{re.escape(low)}-{re.escape(high)}" if low <= high else ""
