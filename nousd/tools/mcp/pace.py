"""How fast a server is listened to."""

from __future__ import annotations

import math
from typing import Final

import trio

MESSAGES_PER_SECOND: Final = 500
VALUES_PER_MESSAGE: Final = 100
BYTES_PER_SECOND: Final = 32 * 1024 * 1024


class Pace:
    """Lets a second's worth of messages and bytes through at once; more of them wait their turn."""

    def __init__(self) -> None:
        self._free_at = -math.inf

    async def take(self, size: int, messages: int = 1, values: int = 0) -> None:
        """Wait until so many more messages, of that size together, may come. Many values in them count
        as more messages: they take as much time.
        """
        messages += values // VALUES_PER_MESSAGE
        now = trio.current_time()
        self._free_at = max(self._free_at, now - 1) + max(
            messages / MESSAGES_PER_SECOND, size / BYTES_PER_SECOND
        )
        if self._free_at > now:
            await trio.sleep(self._free_at - now)
