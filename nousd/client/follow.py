"""A subscription that outlives its connections, on anyio: no event is missed or repeated.

A lost connection is replaced by one that continues after the last event that the caller received; an
incomplete line is dropped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self

import anyio
import msgspec

from nousd.client.answers import REQUEST_TIMEOUT_SECONDS, ReceivedEvent
from nousd.client.dial import Dial, Where, dial_of
from nousd.client.resuming import KEEPALIVE_SECONDS, Backoff, Interruption, Retry, may_heal
from nousd.client.subscription import Subscription, open_subscription
from nousd.errors import ClientError
from nousd.wire.commands.subscribe import Subscribe
from nousd.wire.responses import Subscribed

Tell = Callable[[Interruption], None]


class Follower:
    """An async iterator over new events, which ends only with an exception. Open it with ``follow``.

    ``subscribed`` is the daemon's answer to the current or last subscription; its ``pruned`` is true if
    deltas around its start were joined. ``connections`` is the number of connections so far.
    """

    def __init__(
        self, dial: Dial, wanted: Subscribe, *, retry: Retry, timeout_seconds: float, tell: Tell
    ) -> None:
        self._dial = dial
        self._command = wanted
        self._backoff = Backoff(retry)
        self._timeout_seconds = timeout_seconds
        self._tell = tell
        self._subscription: Subscription | None = None
        self._cursor = wanted.after or ""
        self.subscribed = Subscribed(cursor="", head="")
        self.connections = 0

    @property
    def cursor(self) -> str:
        """The cursor of the last event taken or filtered out, after which the follower continues."""
        return self._cursor if self._subscription is None else self._subscription.cursor

    @property
    def is_connected(self) -> bool:
        """False from the loss of a connection until there is a new one."""
        return self._subscription is not None

    async def start(self) -> None:
        """Subscribe for the first time, in a single attempt.

        Raises:
            ClientError: as ``subscribe``.
        """
        await self._subscribe()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedEvent:
        """Return the next event, over any number of connections.

        A cancelled call loses no event: the next call continues.

        Raises:
            Refused: the daemon refuses to continue, for example after its log was replaced by a shorter
                one.
            DaemonUnreachable, ConnectionLost, AnswerTimedOut: the daemon did not return within
                ``retry.give_up`` seconds.
            AnswerInvalid: the line is not an event.
        """
        while True:
            try:
                if self._subscription is None:
                    await self._subscribe()
                assert self._subscription is not None
                return await anext(self._subscription)
            except ClientError as error:
                await self._lose(error)

    async def aclose(self) -> None:
        """Close the connection, if there is one."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            self._cursor = subscription.cursor
            await subscription.aclose()

    async def _subscribe(self) -> None:
        command = msgspec.structs.replace(self._command, after=self._cursor or None)
        subscription = await open_subscription(self._dial, command, self._timeout_seconds)
        self._subscription, self.subscribed = subscription, subscription.subscribed
        self._backoff.on_connected(anyio.current_time())
        self.connections += 1

    async def _lose(self, error: ClientError) -> None:
        """Wait until the next attempt is due. Raise the error if there is no further attempt."""
        before = self._cursor
        await self.aclose()
        if self._cursor != before:
            self._backoff.reset()
        seconds = self._backoff.wait(anyio.current_time()) if may_heal(error) else None
        if seconds is None:
            raise error
        self._tell(Interruption(error, self._cursor, self._backoff.attempts, seconds))
        await anyio.sleep(seconds)


@asynccontextmanager
async def follow(
    where: Where,
    wanted: Subscribe,
    *,
    retry: Retry = Retry(),  # noqa: B008  it cannot be changed
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
    on_interruption: Tell = lambda _: None,
) -> AsyncIterator[Follower]:
    """Open a subscription that survives restarts of the daemon.

    Args:
        wanted: as for ``subscribe``. Without ``after``, the first event is the next one in the log.
            ``keepalive_seconds`` is ``KEEPALIVE_SECONDS`` by default; a connection that is silent for
            three times as long counts as lost.
        retry: how to reconnect.
        timeout_seconds: for connecting and for the daemon's answer, each time.
        on_interruption: called whenever the connection is lost, and for each attempt that fails.

    Raises:
        DaemonUnreachable: no daemon listens at the start; it is only waited for later.
        Refused, AnswerTimedOut, ConnectionLost, AnswerInvalid: as ``subscribe``.
    """
    if wanted.keepalive_seconds is None:
        wanted = msgspec.structs.replace(wanted, keepalive_seconds=KEEPALIVE_SECONDS)
    follower = Follower(
        dial_of(where),
        wanted,
        retry=retry,
        timeout_seconds=timeout_seconds,
        tell=on_interruption,
    )
    try:
        await follower.start()
        yield follower
    finally:
        await follower.aclose()
