"""Retrying after a lost connection: which errors are temporary, and how long to wait.

This module has no clock and does not wait: the caller passes the time, and waits.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Final, NamedTuple

from nousd.errors import AnswerTimedOut, ClientError, ConnectionLost, DaemonUnreachable, Refused

KEEPALIVE_SECONDS: Final = 15.0
"""The default interval of keep-alives in a follower's subscription."""

SILENT_KEEPALIVES: Final = 3
"""The number of missing keep-alives after which a connection counts as lost."""

STEADY_SECONDS: Final = 60.0
"""A connection that lasted longer counts as a success, even without any event. A shorter one does not:
otherwise a client would reconnect without a pause to a daemon that drops every connection.
"""

_HEALING_REFUSALS: Final = {"shutting_down", "too_many_connections"}
"""Codes of temporary refusals, and machine words of temporary ``command_rejected`` refusals."""


class Retry(NamedTuple):
    """The schedule of further attempts, in seconds.

    The first attempt follows at once, the next after ``first``; then the wait doubles each time, up to
    ``longest``. Each wait is shortened by a random part of up to a half, so that many clients do not
    reconnect at the same moment. ``give_up`` is how long to try without success.
    """

    first: float = 0.05
    longest: float = 5.0
    give_up: float = math.inf


class Interruption(NamedTuple):
    """The loss of a connection, or a failed attempt to reconnect.

    Args:
        error: the cause.
        cursor: the cursor from which the next attempt continues; "" if there was no connection yet.
        attempt: the number of the next attempt, from 1.
        retry_in_seconds: the wait before the next attempt.
    """

    error: ClientError
    cursor: str
    attempt: int
    retry_in_seconds: float


def may_heal(error: ClientError) -> bool:
    """Return whether the same request may succeed later."""
    if isinstance(error, Refused):
        return not {error.code, error.message}.isdisjoint(_HEALING_REFUSALS)
    return isinstance(error, ConnectionLost | DaemonUnreachable | AnswerTimedOut)


def dice() -> float:
    """Return a random number from 0 to 1."""
    return int.from_bytes(os.urandom(2)) / 0xFFFF


class Backoff:
    """The waits between attempts since the last success.

    ``now`` is the time of any monotonic clock, in seconds.
    """

    def __init__(self, retry: Retry, dice: Callable[[], float] = dice) -> None:
        self._retry = retry
        self._dice = dice
        self._failing_since: float | None = None
        self._connected_at = math.inf
        self.attempts = 0

    def on_connected(self, now: float) -> None:
        """Record a new connection. It counts as a success once it has lasted ``STEADY_SECONDS``."""
        self._connected_at = now

    def reset(self) -> None:
        """Record a success."""
        self.attempts = 0
        self._failing_since = None

    def wait(self, now: float) -> float | None:
        """Return how many seconds to wait before the next attempt; None to give up."""
        if now - self._connected_at > STEADY_SECONDS:
            self.reset()
        self._connected_at = math.inf
        if self._failing_since is None:
            self._failing_since = now
        left = self._failing_since + self._retry.give_up - now
        if left <= 0:
            return None
        self.attempts += 1
        return min(self._compute_wait(), left)

    def _compute_wait(self) -> float:
        if self.attempts == 1:
            return 0.0
        # A larger exponent would overflow a float; ``longest`` bounds the wait.
        grown = self._retry.first * 2.0 ** min(self.attempts - 2, 64)
        return min(grown, self._retry.longest) * (1 - self._dice() / 2)


def silence_of(keepalive_seconds: float | None) -> float:
    """Return for how many seconds a subscription may be silent before it counts as lost."""
    return math.inf if keepalive_seconds is None else keepalive_seconds * SILENT_KEEPALIVES
