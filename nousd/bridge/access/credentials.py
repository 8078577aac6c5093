"""The credentials of HTTP clients, and ending the connections whose credential has become invalid.

A credential is the current token, or a browser session that was opened with it. Both are looked up at
each request, so a replaced token or an ended session is refused from then on. ``watch`` ends connections
that were admitted before: each is held with the credential that admitted its latest request, and ends,
event streams included, when that credential becomes invalid.

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
"""The scope key that holds the token, or the session id, that admitted the request."""

CONNECTION: Final = "nousd.connection"
"""The scope key that holds the ``HeldConnection`` of the request."""

WATCH_SECONDS: Final = 1.0
"""The interval between checks of the held credentials. The first check that finds a credential invalid
ends its connection gracefully, the second one cuts it: it is gone within twice this time."""

CurrentToken = Callable[[], str | None]
"""Returns the token that is valid now; None if there is none."""


class HeldConnection(Protocol):
    """A connection of a client."""

    def keep(self) -> None:
        """Record that a credential was accepted on the connection."""
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
    """Decides which clients are admitted, and ends their connections when that changes.

    Args:
        current_token: called at each request and at each check; it must not block.
        sessions: the browser sessions.
        links: the one-time links that log browsers in.
    """

    def __init__(
        self, current_token: CurrentToken, sessions: TicketFolder, links: TicketFolder
    ) -> None:
        self._current_token = current_token
        self._sessions = sessions
        self._links = links
        self._held: WeakKeyDictionary[HeldConnection, _Credential] = WeakKeyDictionary()

    def admits(self, presented: str, connection: HeldConnection | None) -> bool:
        """Return whether a request with this token is admitted; if so, hold its connection."""
        token = self._current_token()
        if token is None or not hmac.compare_digest(presented.encode(), token.encode()):
            return False
        self._hold(connection, _Credential(token, is_session=False))
        return True

    def admits_session(
        self, ids: Iterable[str], origins: Collection[str], connection: HeldConnection | None
    ) -> str | None:
        """Return the session id that admits a request: the first of its ids that is valid and belongs
        to one of these origins; None if none does. If there is one, hold the connection.
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
        """Open a session of that origin for a token, and return its id and its ticket.

        Raises:
            ConfigError: the session cannot be stored.
        """
        return self._sessions.issue(hash_token(token), origin)

    def redeem_link(self, link: str, origin: str) -> tuple[str, Ticket] | None:
        """Use up a one-time link, given by its secret, and return the id and the ticket of a new
        session; None if the link is not valid.

        Raises:
            ConfigError: the session cannot be stored.
        """
        token = self._current_token()
        ticket = None if token is None else self._links.take(link, hash_token(token))
        return None if ticket is None else self._sessions.issue(ticket.token_hash, origin)

    def end_sessions(self, ids: Iterable[str], origins: Collection[str]) -> None:
        """End those of the sessions that belong to one of these origins; a browser sends the ids of all
        its pages. Their connections end at the next check.
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
        """End the connections of invalid credentials, until cancelled."""
        notified: set[HeldConnection] = set()
        while True:
            valid = set(filter(self._is_valid, set(self._held.values())))
            invalid = {each for each, held in self._held.items() if held not in valid}
            for connection in invalid - notified:
                connection.end()
            for connection in invalid & notified:
                connection.cut()
                del self._held[connection]
            notified = invalid - notified
            await trio.sleep(WATCH_SECONDS)
