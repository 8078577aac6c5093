"""Globs over places in the workdir, as expressions that any process can match with.

``*`` and ``?`` do not cross a slash, ``**`` as a whole name stands for any folders, ``[...]`` for one
of some characters, ``{a,b}`` for alternatives. A glob starts at the workdir; ``x/**`` is ``x`` and all
in it.

A glob may come from somebody else's repository, so no glob may take long: whatever follows a star is
matched where it first fits and never looked for again (atomic groups), which for globs finds the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from nousd.errors import RuleInvalid

ALTERNATIVES_MAX: Final = 64
"""Globs that the braces of one may stand for."""

REGEX_CHARS_MAX: Final = 16_384
"""Characters of the expression that a glob becomes; to compile a longer one takes long."""

_PIECE: Final = re.compile(r"\[[!^]?\]?[^\]/]*\]|.", re.DOTALL)
"""One set of characters, or one character."""

_SPECIAL: Final = re.compile(r"[*?\[\]{},]")


def glob_regex(glob: str) -> str:
    """Returns what fully matches the places that a glob means; ``.`` is the workdir itself.

    Raises:
        RuleInvalid: it cannot mean anything inside the workdir, or stands for too many.
    """
    regex = "(?s:" + "|".join(_regex(_names(one)) for one in _alternatives(glob)) + ")"
    if len(regex) > REGEX_CHARS_MAX:
        raise RuleInvalid("it stands for too much: it has too many wildcards or braces")
    return regex


def literal_glob(paths: Sequence[str]) -> str:
    """Returns a glob that means these places and nothing else."""
    quoted = [_SPECIAL.sub(_quoted, path) for path in paths]
    if quoted[0].startswith(("=", "#")):
        # What begins so in a rule is no path.
        quoted[0] = f"[{quoted[0][0]}]{quoted[0][1:]}"
    return quoted[0] if len(quoted) == 1 else "{" + ",".join(quoted) + "}"


def _quoted(found: re.Match[str]) -> str:
    return f"[{found[0]}]"


def _alternatives(glob: str) -> list[str]:
    done: list[str] = []
    ahead = [glob]
    while ahead:
        pieces = _PIECE.findall(ahead.pop())
        if "{" not in pieces or "}" not in pieces[pieces.index("{") :]:
            done.append("".join(pieces))
        else:
            start = pieces.index("{")
            end = pieces.index("}", start)
            before, behind = "".join(pieces[:start]), "".join(pieces[end + 1 :])
            ahead += [before + choice + behind for choice in _choices(pieces[start + 1 : end])]
        if len(done) + len(ahead) > ALTERNATIVES_MAX:
            raise RuleInvalid(f"its braces stand for more than {ALTERNATIVES_MAX} patterns")
    return done


def _choices(pieces: list[str]) -> Iterator[str]:
    choice = ""
    for piece in pieces:
        if piece == ",":
            yield choice
            choice = ""
        else:
            choice += piece
    yield choice


def _names(glob: str) -> list[str]:
    if glob.startswith(("/", "~")):
        raise RuleInvalid("a path pattern starts at the workdir, not at / or ~")
    names = [name for name in glob.split("/") if name not in {"", "."}]
    if ".." in names:
        raise RuleInvalid("a path pattern cannot lead out of the workdir with ..")
    return names or ["."]


def _regex(names: list[str]) -> str:
    """Joins the runs of names between the ``**``."""
    if set(names) == {"**"}:
        return ".*"
    first, *rest = _runs(names)
    regex, tail = _joined(first), ""
    if rest and not rest[-1]:
        # A ** at the end: the folder itself, and all in it.
        rest, tail = rest[:-1], "(?:/.*)?"
    if rest:
        *middle, last = rest
        regex += "/" * bool(first)
        regex += "".join(f"(?>(?:[^/]+/)*?{_joined(run)}/)" for run in middle)
        regex += f"(?:[^/]+/)*{_joined(last)}"
    return regex + tail


def _joined(run: list[str]) -> str:
    return "/".join(map(_name_regex, run))


def _runs(names: list[str]) -> list[list[str]]:
    runs: list[list[str]] = [[]]
    for name, following in zip(names, [*names[1:], ""], strict=True):
        if name != "**":
            runs[-1].append(name)
        elif following != "**":
            runs.append([])
    return runs


def _name_regex(name: str) -> str:
    chunks = [""]
    for piece in _PIECE.findall(name):
        if piece != "*":
            chunks[-1] += _piece_regex(piece)
        elif chunks[-1] or len(chunks) == 1:
            chunks.append("")
    first, *rest = chunks
    if not rest:
        return first
    *middle, last = rest
    return first + "".join(f"(?>[^/]*?{chunk})" for chunk in middle) + f"[^/]*{last}"


def _piece_regex(piece: str) -> str:
    if piece == "?":
        return "[^/]"
    if len(piece) == 1:
        return re.escape(piece)
    negated = piece[1] in "!^"
    inside = re.sub(r"([\\^\[&~|])", r"\\\1", piece[1 + negated : -1])
    if inside.startswith("]"):
        inside = "\\" + inside
    regex = f"(?!/)[{'^' * negated}{inside}]"
    try:
        re.compile(regex)
    except re.error as error:
        raise RuleInvalid(f"{piece} is no set of characters: {error}") from error
    return regex
