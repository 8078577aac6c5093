"""Moments: from RFC 3339 of the log to the numbers of the contract."""

from __future__ import annotations

from datetime import datetime


def milliseconds(ts: str) -> int:
    """Returns the milliseconds of the epoch of an RFC 3339 time."""
    return round(datetime.fromisoformat(ts).timestamp() * 1000)


def seconds(ts: str) -> int:
    """Returns the whole seconds of the epoch of an RFC 3339 time."""
    return int(datetime.fromisoformat(ts).timestamp())
