"""The only clock, id source and randomness of the daemon; tests replace all three."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

_ID_RANDOM_BYTES: Final = 4
_IDS_PER_BLOCK: Final = 256


def later(now: str, by: timedelta) -> str:
    """Return the time ``by`` after ``now``, in the clock's format."""
    return earlier(now, -by)


def earlier(now: str, by: timedelta) -> str:
    """Return the time ``by`` before ``now``, in the clock's format."""
    return (datetime.fromisoformat(now) - by).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Clock(Protocol):
    """A clock and a source of ids."""

    def now(self) -> str:
        """Return the time as RFC 3339 UTC with microseconds."""
        ...

    def new_id(self, prefix: str) -> str:
        """Return a new unique id such as ``run-...``."""
        ...


class SystemClock:
    """The system's clock. Ids sort by creation time and cannot be guessed from one another."""

    def __init__(self) -> None:
        self._second = 0
        self._until_second = ""
        self._randomness: Iterator[str] = iter(())

    def now(self) -> str:
        """See ``Clock.now``."""
        # Called several times per event: the part that stays the same for a second is cached.
        second, microseconds = divmod(time.time_ns() // 1000, 1_000_000)
        if second != self._second:
            self._until_second = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
            self._second = second
        return f"{self._until_second}.{microseconds:06d}Z"

    def new_id(self, prefix: str) -> str:
        """See ``Clock.new_id``."""
        digits = next(self._randomness, None) or self._fresh_digits()
        return f"{prefix}-{time.time_ns() // 1000:014x}{digits}"

    def _fresh_digits(self) -> str:
        # A system call for each id would let another thread run, which is a measurable delay.
        block = secrets.token_hex(_ID_RANDOM_BYTES * _IDS_PER_BLOCK)
        width = 2 * _ID_RANDOM_BYTES
        self._randomness = iter([block[at : at + width] for at in range(0, len(block), width)])
        return next(self._randomness)
