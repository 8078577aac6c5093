r"""Command lines of a small grammar, parsed completely or not at all.

::

    line   = part { ("&&" | "||" | ";" | "|") part }
    part   = word { word }
    word   = letters, digits and ``_ - . / : = , @ % + ^``; '...'; "..." without $ ` \\ !

Anything else in a line (redirections, assignments, substitutions, globs, reserved words, line ends,
comments) can make a shell do something that the words do not show. Such a line has no parts here,
because this module never guesses. Pure.
"""

from __future__ import annotations

import re
from typing import Final

JUDGED_CHARS_MAX: Final = 16 * 1024
"""Maximum characters of a line that is parsed; longer ones are judged as a whole."""

JUDGED_WORDS_MAX: Final = 1024
JUDGED_PARTS_MAX: Final = 64
"""Maximum words and commands of such a line, because each may be compared with hundreds of rules while
other tasks wait."""

Words = tuple[str, ...]
"""A program and its arguments, without quotes."""

_PLAIN: Final = r"[A-Za-z0-9_\-./:=,@%+^]+"
_SINGLE: Final = r"'[^'\x00-\x08\x0a-\x1f\x7f]*'"
_DOUBLE: Final = r'"[^"$`\\!\x00-\x08\x0a-\x1f\x7f]*"'
_TOKEN: Final = re.compile(
    rf"(?P<blank>[ \t]+)|(?P<operator>&&|\|\|?|;)|(?P<word>(?:{_PLAIN}|{_SINGLE}|{_DOUBLE})+)"
)
_PIECE: Final = re.compile(rf"{_PLAIN}|{_SINGLE}|{_DOUBLE}")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")

_RESERVED: Final = frozenset(
    [
        "if",
        "then",
        "elif",
        "else",
        "fi",
        "for",
        "while",
        "until",
        "do",
        "done",
        "case",
        "esac",
        "select",
        "function",
        "time",
        "coproc",
        "in",
    ]
)


def parts_of(line: str) -> tuple[Words, ...] | None:
    """Return the commands of a line; None if the line does not follow the grammar."""
    if len(line) > JUDGED_CHARS_MAX:
        return None
    parts: list[list[str]] = [[]]
    end = words = 0
    may_join = True
    while end < len(line):
        token = _TOKEN.match(line, end)
        if token is None:
            return None
        end = token.end()
        if token.lastgroup == "operator":
            parts.append([])
            if len(parts) > JUDGED_PARTS_MAX:
                return None
        elif token.lastgroup == "word":
            words += 1
            is_bad = not may_join or (not parts[-1] and _is_no_program(token[0]))
            if is_bad or words > JUDGED_WORDS_MAX:
                return None
            parts[-1].append(_unquote(token[0]))
        may_join = token.lastgroup != "word"
    return tuple(map(tuple, parts)) if all(parts) else None


def _is_no_program(word: str) -> bool:
    text = _unquote(word)
    # A word that begins with % is a job, not a program.
    no_name = not text or text.startswith("%") or text in _RESERVED
    return no_name or _ASSIGNMENT.match(word) is not None


def _unquote(word: str) -> str:
    return "".join(piece[1:-1] if piece[0] in "'\"" else piece for piece in _PIECE.findall(word))
