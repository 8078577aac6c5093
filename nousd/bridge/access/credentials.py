"""The credential that admits HTTP clients, and the end of what it admitted once it is void.

The credential is the token of this moment: its source is asked at each request, so a replaced token is
refused from then on. What was admitted before is ended by ``watch``: each connection is held with the
token that admitted its latest request, and a void token ends it, event streams included. Another way to
log in belongs here too, with the same source: what it admits is held with the token that it came from.

This module knows no files and no routes.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Final, Protocol
from weakref import WeakKeyDictionary

import trio

CONNECTION: Final = "nousd.connection"
"""The key of a request's scope with its ``HeldConnection``."""

WATCH_SECONDS: Final = 1.0
"""The time between two looks at the token. A connection of a void one is told to end at the first look,
and cut at the second: it ends within twice this time."""

CurrentToken = Callable[[], str | None]
"""Returns the token that is valid now; None if none is."""


class HeldConnection(Protocol):
    """A connection of a client."""

    def end(self) -> None:
        """Accept no further request: stop at once if idle, else after the current response."""
        ...

    def cut(self) -> None:
        """Stop at once."""
        ...


class Credentials:
    """Decides which clients are admitted, and until when.

    Args:
        current_token: asked at each request and at each look; it must not wait.
    """

    def __init__(self, current_token: CurrentToken) -> None:
        self._current_token = current_token
        self._held: WeakKeyDictionary[HeldConnection, str] = WeakKeyDictionary()

    def admits(self, given: str, connection: HeldConnection | None) -> bool:
        """Return whether a request with this token is admitted; then hold its connection."""
        token = self._current_token()
        if token is None or not hmac.compare_digest(given.encode(), token.encode()):
            return False
        if connection is not None:
            self._held[connection] = token
        return True

    async def watch(self) -> None:
        """End the connections of void tokens, until cancelled."""
        told: set[HeldConnection] = set()
        while True:
            token = self._current_token()
            void = {each for each, held in self._held.items() if held != token}
            for connection in void - told:
                connection.end()
            for connection in void & told:
                connection.cut()
                del self._held[connection]
            told = void - told
            await trio.sleep(WATCH_SECONDS)
