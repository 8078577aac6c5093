"""Convert Python's None to a JSON key that is left out."""

from __future__ import annotations

from typing import TypeVar

from msgspec import UNSET, UnsetType

T = TypeVar("T")


def or_unset(value: T | None) -> T | UnsetType:
    """Return ``value``, or UNSET, which leaves the key out, if it is None."""
    return UNSET if value is None else value
