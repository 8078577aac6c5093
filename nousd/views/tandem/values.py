"""Moments as numbers of the contract, and what is not set as null."""

from __future__ import annotations

from datetime import datetime
from typing import TypeVar

from msgspec import UNSET, UnsetType

T = TypeVar("T")


def milliseconds(ts: str) -> int:
    """Returns the milliseconds of the epoch of an RFC 3339 time."""
    return round(datetime.fromisoformat(ts).timestamp() * 1000)


def seconds(ts: str) -> int:
    """Returns the whole seconds of the epoch of an RFC 3339 time."""
    return int(datetime.fromisoformat(ts).timestamp())


def or_none(value: T | UnsetType) -> T | None:
    """Returns the value, or None if it is not set."""
    return None if value is UNSET else value
