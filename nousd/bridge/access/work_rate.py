"""The limit on how often each client may start work: runs, compactions, tool calls over MCP.

Without it, a client that repeats a request by mistake would spend its user's money as fast as models
answer. It does not protect against malice: a client with the token may use another name each time.

The limit is a token bucket that refills evenly and holds the starts of one minute. It is kept as one
number, the time at which the bucket will be full again.
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
"""Maximum number of clients that are remembered; the one that started work longest ago is forgotten
first."""

_MINUTE: Final = 60.0


class WorkRate:
    """The allowances of all clients.

    Args:
        per_minute: how often a client may start work in a minute; 0 for no limit.
        clock: returns seconds that never decrease.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = trio.current_time) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._full_at: OrderedDict[bytes, float] = OrderedDict()

    def take(self, scope: Scope) -> None:
        """Take one start from the allowance of the client that sent a request; the gate has admitted it.

        Raises:
            HttpError: the allowance is used up; ``retry-after`` is the wait in whole seconds.
        """
        if self._per_minute == 0:
            return
        client, now = _client(scope), self._clock()
        full_at = max(self._full_at.get(client, now), now) + _MINUTE / self._per_minute
        # The tolerance absorbs rounding errors of floating-point sums.
        wait = full_at - now - _MINUTE * (1 + 1e-9)
        if wait > 0:
            raise self._refusal(wait)
        self._full_at[client] = full_at
        self._full_at.move_to_end(client)
        if len(self._full_at) > CLIENTS_MAX:
            self._full_at.popitem(last=False)

    def _refusal(self, wait: float) -> HttpError:
        seconds = math.ceil(wait)
        message = (
            f"this client has asked for work {self._per_minute} times in a minute, the limit that the"
            f" setting http_starts_per_minute sets; try again in {seconds} s"
        )
        return HttpError(RATE_LIMITED, message, headers={"retry-after": str(seconds)})


def _client(scope: Scope) -> bytes:
    """Return the identity of a client: a hash of the token or session id that admitted it and of the id
    that it gives itself. Other cookies of the same browser do not matter.
    """
    parts = (scope[ADMITTED_BY], Headers(scope=scope).get("x-tandem-client-id", ""))
    return hashlib.sha256("\n".join(parts).encode()).digest()
