"""Read durations as people write them: ``500ms``, ``30s``, ``5m``, ``1h``, ``1h30m``, ``7d``.

A plain number is in the unit with which the setting's name ends.
"""

from __future__ import annotations

import re
from typing import Final

UNIT_WORDS: Final = {"ms": "milliseconds", "seconds": "seconds", "days": "days"}
"""Last word of a setting's name -> its unit, in words."""

_MILLISECONDS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "seconds": 1000,
    "days": 86_400_000,
}
_PART: Final = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ms|s|m|h|d)"


_EXAMPLES: Final = ("500ms", "30s", "5m", "1h", "7d")


def form(unit: str, *, is_whole: bool = False) -> str:
    """Return a description of valid durations for errors: examples, and the unit of a plain number.

    Args:
        unit: a key of ``UNIT_WORDS``.
        is_whole: whether durations must be whole numbers of the unit.
    """
    shown = [text for text in _EXAMPLES if not is_whole or read_duration(text, unit).is_integer()]
    examples = " or ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
    return f"such as {examples} (a plain number is in {UNIT_WORDS[unit]})"


def unit_of(name: str) -> str:
    """Return the unit with which a name ends, a key of ``UNIT_WORDS``; "" if it ends with none."""
    unit = name.rpartition("_")[2]
    return unit if unit in UNIT_WORDS else ""


def read_duration(text: str, unit: str) -> float:
    """Return a duration in ``unit``, a key of ``UNIT_WORDS``.

    Raises:
        ValueError: the text is neither a number nor numbers with units.
    """
    text = text.strip()
    if not re.fullmatch(f"(?:{_PART})+", text):
        return float(text)
    parts = re.findall(_PART, text)
    milliseconds = sum(float(number) * _MILLISECONDS[of] for number, of in parts)
    # To the nanosecond, or 1.001s would not be a whole number of milliseconds.
    return round(milliseconds, 6) / _MILLISECONDS[unit]


def read_whole_duration(text: str, unit: str) -> int:
    """Return a duration in whole ``unit``.

    Raises:
        ValueError: as ``read_duration``, or the duration is not a whole number of units.
    """
    try:
        return int(text)
    except ValueError:
        duration = read_duration(text, unit)
    if not duration.is_integer():
        raise ValueError
    return int(duration)
