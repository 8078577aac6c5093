"""The title of a session without a name: the beginning of its first message."""

from __future__ import annotations

from typing import Final

from nousd.wire.codec.plain_text import plain_line
from nousd.wire.limits import TITLE_CHARS_MAX

TITLED_CHARS_MAX: Final = 4096
"""Characters at the beginning of a text that are searched for a title."""

_ELLIPSIS: Final = "\N{HORIZONTAL ELLIPSIS}"


def title_of(text: str) -> str | None:
    """Return the first visible line of a text, shortened to a title; None if there is none.

    The title is plain text for one line of a list.
    """
    for line in text[:TITLED_CHARS_MAX].splitlines():
        shown = plain_line(line)
        if len(shown) > TITLE_CHARS_MAX:
            return shown[: TITLE_CHARS_MAX - 1].rstrip() + _ELLIPSIS
        if shown:
            return shown
    return None
