"""The client for a program that outlives its connections, on anyio.

A daemon handles the commands of one connection in order, so each request gets a connection to itself: a
free one, or else a new one, up to a limit. A lost connection is replaced at the next request. There is
no background task.

A request whose connection is lost may or may not have been carried out. It is sent again only if it has
an idempotency key, with which the daemon carries it out only once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Self

import anyio

from nousd.client.answers import REQUEST_TIMEOUT_SECONDS, Answer
from nousd.client.connection import Connection
from nousd.client.dial import Where, dial_of
from nousd.client.follow import Follower, Tell, follow
from nousd.client.resuming import Backoff, Retry
from nousd.client.subscription import Subscription, subscribe
from nousd.client.typed import Asking
from nousd.errors import AnswerTimedOut, ClientError, ConnectionLost, DaemonUnreachable
from nousd.wire.commands.subscribe import Subscribe

CONNECTIONS_MAX: Final = 32
"""Maximum active requests of one client; others wait. It is far below the daemon's own limit."""

RESEND_SECONDS: Final = 5.0
"""How long, at least, a request with an idempotency key is retried after the daemon disconnected."""

_IDS_OF_CLIENTS: Final = ("client_message_id", "client_call_id")
"""The fields of commands that are idempotency keys."""


class Client(Asking):
    """A client of one daemon. Use it as an async context manager; it connects on the first request.

    Args:
        where: the path of the daemon's command socket, or a ``Dial``.
        timeout_seconds: the default for each request, from the call to the answer.
        patience_seconds: how much of that time to wait for a daemon that does not listen, for example
            while it restarts.
        connections_max: maximum active requests.
    """

    def __init__(
        self,
        where: Where,
        *,
        timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
        patience_seconds: float = 0.0,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self._dial = dial_of(where)
        self._timeout_seconds = timeout_seconds
        self._patience_seconds = patience_seconds
        self._connections_max = connections_max
        self._room = anyio.Semaphore(connections_max, fast_acquire=True)
        self._open: set[Connection] = set()
        self._free: list[Connection] = []
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; active requests end with ConnectionLost, as do later ones."""
        self._is_closed = True
        self._free.clear()
        while self._open:
            await self._open.pop().aclose()

    async def request(
        self, type_: str, payload: Mapping[str, Any], *, timeout_seconds: float | None = None
    ) -> Answer:
        """Send a command and return its answer.

        Raises:
            Refused: the daemon answered with an error.
            DaemonUnreachable: the daemon does not listen; nothing was sent.
            AnswerTimedOut, ConnectionLost: the command may have been carried out, unless the error's
                text says that it was not sent.
            AnswerInvalid: the line is not a valid answer.
        """
        seconds = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        message = f"{type_} was not sent: {self._connections_max} other requests are under way"
        with anyio.move_on_after(None if seconds == math.inf else seconds):
            async with self._room:
                message = f"the daemon did not answer {type_} within {seconds:g} seconds"
                return await self._request_with_retries(type_, payload)
        raise AnswerTimedOut(message)

    def subscribe(self, wanted: Subscribe) -> AbstractAsyncContextManager[Subscription]:
        """Open a subscription on a connection of its own: see ``nousd.client.subscription``."""
        return subscribe(self._dial, wanted, timeout_seconds=self._timeout_seconds)

    def follow(
        self,
        wanted: Subscribe,
        *,
        retry: Retry = Retry(),  # noqa: B008  it cannot be changed
        on_interruption: Tell = lambda _: None,
    ) -> AbstractAsyncContextManager[Follower]:
        """Open a subscription that survives restarts of the daemon: see ``nousd.client.follow``."""
        return follow(
            self._dial,
            wanted,
            retry=retry,
            timeout_seconds=self._timeout_seconds,
            on_interruption=on_interruption,
        )

    async def _request_with_retries(self, type_: str, payload: Mapping[str, Any]) -> Answer:
        """Send the request; repeat it after a lost connection if it has an idempotency key."""
        backoff = Backoff(Retry(give_up=self._patience_seconds))
        lost: ConnectionLost | None = None
        while True:
            failure: ClientError
            try:
                connection = await self._connection()
                return await self._exchange(connection, type_, payload)
            except DaemonUnreachable as error:
                failure = lost or error
            except ConnectionLost as error:
                if self._is_closed or not _is_known_again(payload):
                    raise
                if lost is None:
                    backoff = Backoff(Retry(give_up=max(self._patience_seconds, RESEND_SECONDS)))
                failure = lost = error
            seconds = backoff.wait(anyio.current_time())
            if seconds is None:
                raise failure
            await anyio.sleep(seconds)

    async def _exchange(
        self, connection: Connection, type_: str, payload: Mapping[str, Any]
    ) -> Answer:
        try:
            return await connection.request(type_, payload, timeout_seconds=math.inf)
        finally:
            if connection.is_idle and not self._is_closed:
                self._free.append(connection)
            else:
                self._open.discard(connection)
                await connection.aclose()

    async def _connection(self) -> Connection:
        """Return a connection that no other request uses.

        Raises:
            DaemonUnreachable: no connection is free, and none can be opened.
            ConnectionLost: this client is closed.
        """
        while self._free:
            connection = self._free.pop()
            if not connection.was_left:
                return connection
            self._open.discard(connection)
            await connection.aclose()
        if self._is_closed:
            raise ConnectionLost("the client is closed: nothing was sent")
        connection = Connection(await self._dial.commands())
        self._open.add(connection)
        return connection


def _is_known_again(payload: Mapping[str, Any]) -> bool:
    return any(payload.get(key) is not None for key in _IDS_OF_CLIENTS)
