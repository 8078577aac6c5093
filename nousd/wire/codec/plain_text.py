"""Text of others as plain text, without what controls a terminal or the order of writing."""

from __future__ import annotations

from typing import Final

BIDI_CONTROLS: Final = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that change the order in which others are shown."""

_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
_HIDDEN: Final = _CONTROLS | {ord(char): f"\\u{ord(char):04x}" for char in BIDI_CONTROLS}

# Line feeds and tabs are control characters, too, and separate words.
_LEFT_OUT: Final = {code: " " if chr(code).isspace() else None for code in _HIDDEN}
_MADE_VISIBLE: Final = {code: shown for code, shown in _HIDDEN.items() if chr(code) not in "\t\n"}


def plain_line(text: str) -> str:
    """Return a text as one line: white space is one blank, and controls are left out."""
    return " ".join(text.translate(_LEFT_OUT).split())


def visible(text: str) -> str:
    """Return a text in lines that end with LF, with an escape such as backslash, x, 1, b in the place of
    each control but tabs.
    """
    return text.replace("\r\n", "\n").translate(_MADE_VISIBLE)
