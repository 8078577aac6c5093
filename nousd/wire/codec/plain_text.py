"""Foreign text as plain text, without characters that control a terminal or the writing direction."""

from __future__ import annotations

from typing import Final

BIDI_CONTROLS: Final = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that change the order in which other characters are shown."""

_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
_HIDDEN: Final = _CONTROLS | {ord(char): f"\\u{ord(char):04x}" for char in BIDI_CONTROLS}

# Line feeds and tabs are control characters, too, but separate words.
_LEFT_OUT: Final = {code: " " if chr(code).isspace() else None for code in _HIDDEN}
_MADE_VISIBLE: Final = {code: shown for code, shown in _HIDDEN.items() if chr(code) not in "\t\n"}


def plain_line(text: str) -> str:
    """Return a text as one line: white space becomes one blank, and control characters are removed."""
    return " ".join(text.translate(_LEFT_OUT).split())


def visible(text: str) -> str:
    """Return a text whose lines end with LF and whose control characters, except tabs, are replaced by
    escapes, such as a backslash and ``x1b``.
    """
    return text.replace("\r\n", "\n").translate(_MADE_VISIBLE)
