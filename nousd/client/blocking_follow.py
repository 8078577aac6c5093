"""A subscription that outlives its connections, for programs without an event loop: see ``follow``."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from nousd.client.answers import REQUEST_TIMEOUT_SECONDS, ReceivedEvent
from nousd.client.blocking import Subscription
from nousd.client.resuming import (
    KEEPALIVE_SECONDS,
    Backoff,
    Interruption,
    Retry,
    may_heal,
    silence_of,
)
from nousd.errors import AnswerTimedOut, ClientError, ConnectionLost


class Follower:
    """An iterator over new events, over any number of connections. It ends only with an exception. Close
    it, or use it as a context manager.

    Args:
        socket_path, wanted: as for ``Subscription``. Without ``after``, the first event is the next one
            in the log. ``keepalive_seconds`` is ``KEEPALIVE_SECONDS`` by default; a connection that is
            silent for three times as long counts as lost.
        retry: how to reconnect.
        timeout_seconds: for connecting and for the daemon's answer, each time.
        on_interruption: called whenever the connection is lost, and for each attempt that fails.

    Raises:
        DaemonUnreachable: no daemon listens at the start; it is only waited for later.
        Refused, AnswerTimedOut, ConnectionLost, AnswerInvalid: as ``Subscription``.
    """

    def __init__(
        self,
        socket_path: Path,
        wanted: Mapping[str, Any],
        *,
        retry: Retry = Retry(),  # noqa: B008  it cannot be changed
        timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
        on_interruption: Callable[[Interruption], None] = lambda _: None,
    ) -> None:
        self._socket_path = socket_path
        self._payload = {"keepalive_seconds": KEEPALIVE_SECONDS, **wanted}
        self._silence_seconds = silence_of(self._payload["keepalive_seconds"])
        self._timeout_seconds = timeout_seconds
        self._backoff = Backoff(retry)
        self._tell = on_interruption
        self._cursor: str = self._payload.pop("after", None) or ""
        self._subscription: Subscription | None = self._subscribe()

    @property
    def cursor(self) -> str:
        """The cursor of the last event taken or filtered out, after which the follower continues."""
        return self._cursor if self._subscription is None else self._subscription.cursor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._subscription is not None:
            self._cursor = self._subscription.cursor
            self._subscription.close()
            self._subscription = None

    def __iter__(self) -> Iterator[ReceivedEvent]:
        while True:
            yield self.next_event()

    def next_event(self, *, timeout_seconds: float = math.inf) -> ReceivedEvent:
        """Return the next event.

        Raises:
            AnswerTimedOut: no event came in time; call it again for the next one.
            Refused: the daemon refuses to continue, for example after its log was replaced by a shorter
                one.
            DaemonUnreachable, ConnectionLost: the daemon did not return within ``retry.give_up``
                seconds.
            AnswerInvalid: the line is not an event.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                if self._subscription is None:
                    self._subscription = self._subscribe()
                event = self._receive(self._subscription, deadline)
            except ClientError as error:
                self._lose(error, deadline)
            else:
                if event is None:
                    raise AnswerTimedOut("no event came in time")
                return event

    def _receive(self, subscription: Subscription, deadline: float) -> ReceivedEvent | None:
        """Return the next event; None if none came before the deadline."""
        left, silence = deadline - time.monotonic(), self._silence_seconds
        try:
            return subscription.next_event(timeout_seconds=min(left, silence))
        except AnswerTimedOut:
            if left <= silence:
                return None
            message = f"the daemon gave no sign of life for {silence:g} seconds"
            raise ConnectionLost(message) from None

    def _subscribe(self) -> Subscription:
        payload = self._payload if not self._cursor else {**self._payload, "after": self._cursor}
        subscription = Subscription(
            self._socket_path, payload, timeout_seconds=self._timeout_seconds
        )
        self._backoff.on_connected(time.monotonic())
        return subscription

    def _lose(self, error: ClientError, deadline: float) -> None:
        """Wait until the next attempt is due. Raise the error if there is no further attempt."""
        before = self._cursor
        self.close()
        if self._cursor != before:
            self._backoff.reset()
        seconds = self._backoff.wait(time.monotonic()) if may_heal(error) else None
        if seconds is None:
            raise error
        self._tell(Interruption(error, self._cursor, self._backoff.attempts, seconds))
        time.sleep(max(0.0, min(seconds, deadline - time.monotonic())))
        if time.monotonic() >= deadline:
            raise AnswerTimedOut("no event came in time") from error
