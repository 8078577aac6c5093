"""Glob patterns over paths as regular expressions, for both permission rules and searches.

``*`` and ``?`` do not match a slash, ``**`` as a whole name matches any number of directories, ``[...]``
matches one character of a set, ``{a,b}`` alternatives. ``x/**`` matches ``x`` and everything in it. The
callers decide which texts a pattern is compared with, and which patterns are refused.

A pattern may come from an untrusted repository, so matching must never take long: the text after a star
is matched at its first occurrence and never searched for again (atomic groups), which for globs gives
the same result.

Only the standard library: the process that searches starts without site-packages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class GlobInvalid(ValueError):
    """A pattern expands to too many patterns, or has an invalid set. The message gives the reason."""


class Dialect(NamedTuple):
    """The differences in the syntax of rules and searches.

    Args:
        alternatives_max: maximum number of patterns that the braces of one pattern expand to.
        negations: characters that negate a set when they come first in it.
        nested_braces: whether ``{a,{b,c}}`` is three alternatives. If not, a brace ends at the first
            ``}``.
        strict_sets: whether ``[z-a]`` and ``[]`` are refused. If not, they are read as by ``fnmatch``:
            an empty range matches nothing, and brackets around nothing match themselves.
    """

    alternatives_max: int
    negations: str
    nested_braces: bool
    strict_sets: bool


# Rules are stored in logs and settings of users: none may later allow more than when it was written.
RULES = Dialect(alternatives_max=64, negations="!^", nested_braces=False, strict_sets=True)
# Models write these, and correct them by the results: as many patterns as possible have a meaning.
SEARCHES = Dialect(alternatives_max=256, negations="!", nested_braces=True, strict_sets=False)


def expand_braces(glob: str, dialect: Dialect) -> list[str]:
    """Return the patterns without alternatives that a pattern expands to.

    Raises:
        GlobInvalid: there are too many.
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
    """Return the names between the slashes, except empty ones and ``.``."""
    return [name for name in glob.split("/") if name not in {"", "."}]


def names_regex(names: list[str], dialect: Dialect) -> str:
    """Return a regular expression that fully matches the paths, joined by slashes, of these names.

    Raises:
        GlobInvalid: a set of characters is invalid.
    """
    if not names:
        return "(?!)"
    if set(names) == {"**"}:
        return ".*"
    # Each run of names is between two "**".
    first, *rest = ["/".join(_name_regex(name, dialect) for name in run) for run in _runs(names)]
    regex, tail = first, ""
    if rest and not rest[-1]:
        # A ** at the end: the directory itself, and everything in it.
        rest, tail = rest[:-1], "(?:/.*)?"
    if rest:
        *middle, last = rest
        regex += "/" * bool(first)
        regex += "".join(f"(?>(?:[^/]+/)*?{run}/)" for run in middle)
        regex += f"(?:[^/]+/)*{last}"
    return regex + tail


def _pieces(text: str, dialect: Dialect) -> list[str]:
    """Split a text into sets of characters and single characters."""
    return re.findall(rf"\[[{dialect.negations}]?\]?[^\]/]*\]|.", text, re.DOTALL)


def _braces(pieces: list[str], dialect: Dialect) -> tuple[int, int] | None:
    """Return the positions of the next braces to expand."""
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
    # A "]" that closes nothing can only come first.
    return re.sub(r"([\\^\[&~|]|^\])", r"\\\1", members)


def _members_regex(found: re.Match[str]) -> str:
    """Return a character, or a range unless it is empty, for a set of a regular expression."""
    low, high = found.groups()
    if low is None:
        return re.escape(found[0])
    return f"{re.escape(low)}-{re.escape(high)}" if low <= high else ""
