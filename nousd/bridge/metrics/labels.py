"""Values of labels that come from outside: bounded in number, and never anything but a plain name."""

from __future__ import annotations

import re
from typing import Final

OTHER: Final = "other"
"""Stands for what is no plain name, and for all that come once there are enough."""

_PART: Final = r"[A-Za-z0-9_][A-Za-z0-9._:@+-]*"
_NAME: Final = re.compile(rf"{_PART}(?:/{_PART}){{0,3}}")
_CHARS_MAX: Final = 100


class LabelValues:
    """The values that some labels have together, such as provider and model.

    Args:
        most: how many there may be, beside ``OTHER``.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[tuple[str, ...]] = set()

    def of(self, *names: str) -> tuple[str, ...]:
        """Returns the names as labels, or as many ``OTHER``."""
        if names in self._known:
            return names
        if len(self._known) >= self._most or not all(map(_is_plain, names)):
            return (OTHER,) * len(names)
        self._known.add(names)
        return names

    def known(self, *names: str) -> tuple[str, ...]:
        """Like ``of``, for names that may be anybody's invention: a new one is not taken up."""
        return names if names in self._known else (OTHER,) * len(names)


def _is_plain(name: str) -> bool:
    """Whether it is a name as models and tools have them, and no path or text."""
    return len(name) <= _CHARS_MAX and _NAME.fullmatch(name) is not None
