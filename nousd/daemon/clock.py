"""The only clock, id source and randomness of the daemon, so that tests can replace all three."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

_ID_RANDOM_BYTES: Final = 4
_IDS_PER_BLOCK: Final = 256


def later(now: str, by: timedelta) -> str:
    """Return a time that lies that far behind ``now``, as a clock tells it."""
    return earlier(now, -by)


def earlier(now: str, by: timedelta) -> str:
    """Return a time that lies that far before ``now``, as a clock tells it."""
    return (datetime.fromisoformat(now) - by).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Clock(Protocol):
    """Tells the time and mints ids."""

    def now(self) -> str:
        """Return the time as RFC 3339 UTC with microseconds."""
        ...

    def new_id(self, prefix: str) -> str:
        """Return an id that was never given out before, such as ``run-...``."""
        ...


class SystemClock:
    """The real one. Ids sort by the time they were made and cannot be guessed from one another."""

    def __init__(self) -> None:
        self._second = 0
        self._until_second = ""
        self._randomness: Iterator[str] = iter(())

    def now(self) -> str:
        """See ``Clock.now``."""
        # Several times for each event: what stays the same for a second is made once.
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
        # Asking the kernel each time lets another thread in between, and that is felt.
        block = secrets.token_hex(_ID_RANDOM_BYTES * _IDS_PER_BLOCK)
        width = 2 * _ID_RANDOM_BYTES
        self._randomness = iter([block[at : at + width] for at in range(0, len(block), width)])
        return next(self._randomness)
