"""The credentials that admit HTTP clients, and the end of what they admitted once they are void.

A credential is the token of this moment, or the session of a browser that came from it. Both are looked
up at each request, so a replaced token and an ended session are refused from then on. What was admitted
before is ended by ``watch``: each connection is held with the credential that admitted its latest
request, and a void one ends it, event streams included.

This module knows no routes.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import trio

from nousd.runtime_paths.tickets import Ticket, TicketFolder, hash_token

ADMITTED_BY: Final = "nousd.admitted_by"
"""The key of a request's scope with the token or the id of the session that admitted it."""

CONNECTION: Final = "nousd.connection"
"""The key of a request's scope with its ``HeldConnection``."""

WATCH_SECONDS: Final = 1.0
"""The time between two looks at credentials. A connection of a void one is told to end at the first
look, and cut at the second: it ends within twice this time."""

CurrentToken = Callable[[], str | None]
"""Returns the token that is valid now; None if none is."""


class HeldConnection(Protocol):
    """A connection of a client."""

    def keep(self) -> None:
        """Count the connection among those that a credential was accepted on."""
        ...

    def end(self) -> None:
        """Accept no further request: stop at once if idle, else after the current response."""
        ...

    def cut(self) -> None:
        """Stop at once."""
        ...


class _Credential(NamedTuple):
    """A token, or the id of a session."""

    secret: str
    is_session: bool


class Credentials:
    """Decides which clients are admitted, and until when.

    Args:
        current_token: asked at each request and at each look; it must not wait.
        sessions: those of browsers.
        links: the one-time links that log browsers in.
    """

    def __init__(
        self, current_token: CurrentToken, sessions: TicketFolder, links: TicketFolder
    ) -> None:
        self._current_token = current_token
        self._sessions = sessions
        self._links = links
        self._held: WeakKeyDictionary[HeldConnection, _Credential] = WeakKeyDictionary()

    def admits(self, given: str, connection: HeldConnection | None) -> bool:
        """Return whether a request with this token is admitted; then hold its connection."""
        token = self._current_token()
        if token is None or not hmac.compare_digest(given.encode(), token.encode()):
            return False
        self._hold(connection, _Credential(token, is_session=False))
        return True

    def admits_session(
        self, ids: Iterable[str], origins: Collection[str], connection: HeldConnection | None
    ) -> str | None:
        """Return the id that admits a request with the ids of sessions: the first that is valid and
        belongs to one of these origins; None if none does. Then hold its connection.
        """
        id = next(self._sessions_of(ids, origins), None)
        if id is not None:
            self._hold(connection, _Credential(id, is_session=True))
        return id

    def _hold(self, connection: HeldConnection | None, credential: _Credential) -> None:
        if connection is not None:
            connection.keep()
            self._held[connection] = credential

    def open_session(self, token: str, origin: str) -> tuple[str, Ticket]:
        """Return a session of that origin, and its id, for a token.

        Raises:
            ConfigError: it cannot be stored.
        """
        return self._sessions.issue(hash_token(token), origin)

    def redeem_link(self, link: str, origin: str) -> tuple[str, Ticket] | None:
        """Return a session for the secret of a one-time link, which is void then; None if it is void.

        Raises:
            ConfigError: it cannot be stored.
        """
        token = self._current_token()
        ticket = None if token is None else self._links.take(link, hash_token(token))
        return None if ticket is None else self._sessions.issue(ticket.token_hash, origin)

    def end_sessions(self, ids: Iterable[str], origins: Collection[str]) -> None:
        """End the sessions that belong to one of these origins, and no other: a browser sends the ids of
        all its pages. Their connections end at the next look.
        """
        for id in self._sessions_of(ids, origins):
            self._sessions.remove(id)

    def _sessions_of(self, ids: Iterable[str], origins: Collection[str]) -> Iterator[str]:
        """Yield the ids of valid sessions that belong to one of these origins."""
        for id in ids:
            ticket = self._session(id)
            if ticket is not None and ticket.origin in origins:
                yield id

    def _session(self, id: str) -> Ticket | None:
        token = self._current_token()
        return None if token is None else self._sessions.find(id, hash_token(token))

    def _is_valid(self, held: _Credential) -> bool:
        if held.is_session:
            return self._session(held.secret) is not None
        return held.secret == self._current_token()

    async def watch(self) -> None:
        """End the connections of void credentials, until cancelled."""
        told: set[HeldConnection] = set()
        while True:
            valid = set(filter(self._is_valid, set(self._held.values())))
            void = {each for each, held in self._held.items() if held not in valid}
            for connection in void - told:
                connection.end()
            for connection in void & told:
                connection.cut()
                del self._held[connection]
            told = void - told
            await trio.sleep(WATCH_SECONDS)
