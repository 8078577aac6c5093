"""The title of a session that nobody has named: the beginning of its first message.

It is plain text for one line of a list: white space is one blank, and what controls a terminal or the
direction of writing is left out.
"""

from __future__ import annotations

import unicodedata
from typing import Final

from nousd.wire.limits import TITLE_CHARS_MAX

TITLED_CHARS_MAX: Final = 4096
"""Characters at the beginning of a text among which its title is looked for."""

_ELLIPSIS: Final = "\N{HORIZONTAL ELLIPSIS}"

_BIDI: Final = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the order in which others are shown."""


def title_of(text: str) -> str | None:
    """Return the first line of a text that has something to show, shortened; None if there is none."""
    for line in text[:TITLED_CHARS_MAX].splitlines():
        shown = plain_line(line)
        if len(shown) > TITLE_CHARS_MAX:
            return shown[: TITLE_CHARS_MAX - 1].rstrip() + _ELLIPSIS
        if shown:
            return shown
    return None


def plain_line(text: str) -> str:
    """Return a text as one line: white space is one blank, and controls are left out."""
    return " ".join("".join(filter(_is_text, text)).split())


def _is_text(char: str) -> bool:
    # Line feeds and tabs are control characters, too, and separate words.
    return char.isspace() or (char not in _BIDI and unicodedata.category(char) != "Cc")
