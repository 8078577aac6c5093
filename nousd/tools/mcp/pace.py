"""How fast a server is listened to."""

from __future__ import annotations

import trio


class Pace:
    """Lets so many messages, and bytes, through in a second; more of them wait."""

    def __init__(self, *, messages: int, size: int) -> None:
        self._messages = messages
        self._size = size
        self._free_at = 0.0

    async def take(self, size: int) -> None:
        """Waits until one more message of that size may come."""
        now = trio.current_time()
        # A second's worth is let through at once; beyond that, each has its share of time.
        self._free_at = max(self._free_at, now - 1) + max(1 / self._messages, size / self._size)
        if self._free_at > now:
            await trio.sleep(self._free_at - now)
