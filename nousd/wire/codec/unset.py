"""Between Python's None and a JSON key that is left out."""

from __future__ import annotations

from typing import TypeVar

from msgspec import UNSET, UnsetType

T = TypeVar("T")


def or_unset(value: T | None) -> T | UnsetType:
    """Returns ``value``, or what leaves its key out of the line if it is None."""
    return UNSET if value is None else value
