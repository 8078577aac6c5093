"""How often each client may ask for what starts work: runs, compactions, tool calls over MCP.

A client that repeats itself by mistake would otherwise spend its user's money as fast as models answer.
It is no wall against malice: whoever has the token may name itself differently each time.

Each client has an allowance that fills evenly and holds the starts of one minute. It is kept as one
number, the time at which the allowance will be full again.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import trio
from starlette.datastructures import Headers
from starlette.types import Scope

from nousd.bridge.access.credentials import ADMITTED_BY
from nousd.bridge.replies import RATE_LIMITED, HttpError

CLIENTS_MAX: Final = 1024
"""Clients that are remembered. The one that has been silent for the longest time is forgotten first."""

_MINUTE: Final = 60.0


class WorkRate:
    """The allowances of all clients.

    Args:
        per_minute: how often a client may start work; 0 for any number.
        clock: seconds that never go back.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = trio.current_time) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._full_at: OrderedDict[bytes, float] = OrderedDict()

    def take(self, scope: Scope) -> None:
        """Take one start from the allowance of the client that sent a request, which the gate admitted.

        Raises:
            HttpError: it is used up; ``retry-after`` says in how many whole seconds it is not.
        """
        if self._per_minute == 0:
            return
        client, now = _client(scope), self._clock()
        full_at = max(self._full_at.get(client, now), now) + _MINUTE / self._per_minute
        # Sums of fractions differ in the last digit.
        wait = full_at - now - _MINUTE * (1 + 1e-9)
        if wait > 0:
            raise self._refusal(wait)
        self._full_at[client] = full_at
        self._full_at.move_to_end(client)
        if len(self._full_at) > CLIENTS_MAX:
            self._full_at.popitem(last=False)

    def _refusal(self, wait: float) -> HttpError:
        seconds = math.ceil(wait)
        words = (
            f"this client has asked for work {self._per_minute} times in a minute, the limit that the"
            f" setting http_starts_per_minute sets; try again in {seconds} s"
        )
        return HttpError(RATE_LIMITED, words, headers={"retry-after": str(seconds)})


def _client(scope: Scope) -> bytes:
    """Return what tells one client from another: what admitted it, and the id that it gives itself.
    A cookie of another page in the same browser is no part of it.
    """
    parts = (scope[ADMITTED_BY], Headers(scope=scope).get("x-tandem-client-id", ""))
    return hashlib.sha256("\n".join(parts).encode()).digest()
