"""The title of a session that nobody has named: the beginning of its first message."""

from __future__ import annotations

from typing import Final

from nousd.wire.codec.plain_text import plain_line
from nousd.wire.limits import TITLE_CHARS_MAX

TITLED_CHARS_MAX: Final = 4096
"""Characters at the beginning of a text among which its title is looked for."""

_ELLIPSIS: Final = "\N{HORIZONTAL ELLIPSIS}"


def title_of(text: str) -> str | None:
    """Return the first line of a text that has something to show, shortened; None if there is none.

    It is plain text for one line of a list.
    """
    for line in text[:TITLED_CHARS_MAX].splitlines():
        shown = plain_line(line)
        if len(shown) > TITLE_CHARS_MAX:
            return shown[: TITLE_CHARS_MAX - 1].rstrip() + _ELLIPSIS
        if shown:
            return shown
    return None
