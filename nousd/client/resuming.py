"""When to try again after a connection was lost: which errors may heal, and how long to wait.

There is no clock here and nothing waits: who asks says what time it is, and does the waiting.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Final, NamedTuple

from nousd.errors import AnswerTimedOut, ClientError, ConnectionLost, DaemonUnreachable, Refused

KEEPALIVE_SECONDS: Final = 15.0
"""How often a follower wants a sign of life, unless its subscription says otherwise."""

SILENT_KEEPALIVES: Final = 3
"""So many keep-alives that did not come are a lost connection."""

STEADY_SECONDS: Final = 60.0
"""A connection that lasted longer went well, whether anything was heard over it or not. One that is lost
at once did not, although it was made: else a daemon that drops everybody would be asked without a pause.
"""

_HEALING_REFUSALS: Final = {"shutting_down", "too_many_connections"}
"""Codes, and the machine words of ``command_rejected``, of what is over after a while."""


class Retry(NamedTuple):
    """The schedule of further attempts, in seconds.

    The first attempt follows at once, the next after ``first``, and so on with twice the wait up to
    ``longest``; each wait is shortened by up to half by chance, so that many clients do not all come
    back in the same moment. ``give_up``: for how long to try without any success.
    """

    first: float = 0.05
    longest: float = 5.0
    give_up: float = math.inf


class Interruption(NamedTuple):
    """A connection was lost, or could not be had again.

    Args:
        error: why.
        cursor: where the next attempt goes on from; "" if there was no connection yet.
        attempt: the number of the attempt that comes next, from 1.
        retry_in_seconds: how long is waited before it.
    """

    error: ClientError
    cursor: str
    attempt: int
    retry_in_seconds: float


def may_heal(error: ClientError) -> bool:
    """True if the same request may well be answered later on."""
    if isinstance(error, Refused):
        return not {error.code, error.message}.isdisjoint(_HEALING_REFUSALS)
    return isinstance(error, ConnectionLost | DaemonUnreachable | AnswerTimedOut)


def dice() -> float:
    """Return a number from 0 to 1, by chance."""
    return int.from_bytes(os.urandom(2)) / 0xFFFF


class Backoff:
    """The waits between attempts since something last went well.

    Moments (``now``) are of any clock that goes on evenly, in seconds.
    """

    def __init__(self, retry: Retry, dice: Callable[[], float] = dice) -> None:
        self._retry = retry
        self._dice = dice
        self._failing_since: float | None = None
        self._connected_at = math.inf
        self.attempts = 0

    def on_connected(self, now: float) -> None:
        """Note that there is a connection, which counts for something once it has lasted a while."""
        self._connected_at = now

    def reset(self) -> None:
        """Note that something went well."""
        self.attempts = 0
        self._failing_since = None

    def wait(self, now: float) -> float | None:
        """Return how many seconds to wait before the next attempt; None: it is time to give up."""
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
        # The exponent is bounded for the sake of floats, not of the wait.
        grown = self._retry.first * 2.0 ** min(self.attempts - 2, 64)
        return min(grown, self._retry.longest) * (1 - self._dice() / 2)


def silence_of(keepalive_seconds: float | None) -> float:
    """Return for how many seconds a subscription may say nothing at all."""
    return math.inf if keepalive_seconds is None else keepalive_seconds * SILENT_KEEPALIVES
