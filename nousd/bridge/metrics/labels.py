"""Label values that come from outside, limited to a bounded number of plain names."""

from __future__ import annotations

import re
from typing import Final

OTHER: Final = "other"
"""The label for anything that is not a plain name, and for every new name beyond the bound."""

_PART: Final = r"[A-Za-z0-9_][A-Za-z0-9._:@+-]*"
_NAME: Final = re.compile(rf"{_PART}(?:/{_PART}){{0,3}}")
_CHARS_MAX: Final = 100


class LabelValues:
    """The combinations of values of some labels, such as provider and model.

    Args:
        most: the maximum number of combinations, not counting ``OTHER``.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[tuple[str, ...]] = set()

    def of(self, *names: str) -> tuple[str, ...]:
        """Return the names as labels, or ``OTHER`` for each of them."""
        if names in self._known:
            return names
        if len(self._known) >= self._most or not all(map(_is_plain, names)):
            return (OTHER,) * len(names)
        self._known.add(names)
        return names

    def look_up(self, *names: str) -> tuple[str, ...]:
        """Return the same as ``of``, but never add a name: a model may have invented it."""
        return names if names in self._known else (OTHER,) * len(names)


def _is_plain(name: str) -> bool:
    """Return whether a name looks like that of a model or a tool, not like a path or a text."""
    return len(name) <= _CHARS_MAX and _NAME.fullmatch(name) is not None
