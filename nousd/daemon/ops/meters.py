"""Counts of connections and subscribers, and the time of the start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class Meters:
    """Counts of open connections and subscribers.

    Args:
        started_at: when the daemon started, RFC 3339 UTC.
    """

    def __init__(self, started_at: str) -> None:
        self.started_at = started_at
        self.command_connections = 0
        self.subscribers = 0
        self._started = trio.current_time()

    @property
    def uptime_seconds(self) -> float:
        """Return the seconds since the daemon started."""
        return trio.current_time() - self._started

    @contextmanager
    def count_command_connection(self) -> Iterator[None]:
        """Count a connection to the command socket while the block lasts."""
        self.command_connections += 1
        try:
            yield
        finally:
            self.command_connections -= 1

    @contextmanager
    def count_subscriber(self) -> Iterator[None]:
        """Count a connection to the event socket while the block lasts."""
        self.subscribers += 1
        try:
            yield
        finally:
            self.subscribers -= 1
