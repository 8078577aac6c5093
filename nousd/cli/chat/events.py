"""The events of the displayed session, across reconnections."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from nousd.client.answers import ReceivedEvent
from nousd.client.blocking import Subscription
from nousd.client.resuming import Backoff, Retry, may_heal
from nousd.errors import AnswerTimedOut, ClientError

_GLANCE_SECONDS: Final = 0.001
_CONNECT_SECONDS: Final = 5.0
_RETRY: Final = Retry(longest=1.0)


class SessionEvents:
    """A subscription that is polled and never waited for.

    Args:
        waits: whether to reconnect after the daemon was away, and continue after the last event.
        say: shows a remark to the user.
    """

    def __init__(self, socket_path: Path, say: Callable[[str], None], *, waits: bool) -> None:
        self._socket_path = socket_path
        self._say = say
        self._waits = waits
        self._query: Mapping[str, Any] = {}
        self._subscription: Subscription | None = None
        self._backoff = Backoff(_RETRY)
        self._next_try = 0.0

    def follow(self, query: Mapping[str, Any]) -> None:
        """Follow the events of ``query`` from now on: the payload of a ``subscribe``.

        Raises:
            DaemonUnreachable, Refused, AnswerTimedOut, ConnectionLost, AnswerInvalid
        """
        opened = Subscription(self._socket_path, query)
        self.close()
        self._query, self._subscription = query, opened

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None

    @property
    def is_away(self) -> bool:
        """Whether the connection to the daemon is lost."""
        return self._subscription is None

    def to_wait_for(self) -> tuple[list[Subscription], float | None]:
        """Return the subscriptions that become readable with new events, and the seconds after which to
        poll in any case, or None.
        """
        if self._subscription is not None:
            return [self._subscription], None
        return [], max(0.0, self._next_try - time.monotonic())

    def next_event(self) -> ReceivedEvent | None:
        """Return the next event; None if there is none yet.

        Raises:
            ClientError: the connection is lost and cannot or should not be restored.
        """
        try:
            if self._subscription is None and not self._is_back():
                return None
            if self._subscription is not None:
                return self._subscription.next_event(timeout_seconds=_GLANCE_SECONDS)
        except AnswerTimedOut:
            if self._subscription is None:
                self._try_later()
        except ClientError as error:
            self._lose(error)
        return None

    def _is_back(self) -> bool:
        if time.monotonic() < self._next_try:
            return False
        self._subscription = Subscription(
            self._socket_path, self._query, timeout_seconds=_CONNECT_SECONDS
        )
        self._backoff.on_connected(time.monotonic())
        self._say("(the daemon is back)")
        return True

    def _lose(self, error: ClientError) -> None:
        if self._subscription is not None:
            self._query = {**self._query, "after": self._subscription.cursor}
            self.close()
            if self._waits and may_heal(error):
                self._say(
                    f"({error}; waiting for it to come back: nousctl restart in another terminal starts"
                    " it; Ctrl-C twice leaves)"
                )
        if not (self._waits and may_heal(error)):
            raise error
        self._try_later()

    def _try_later(self) -> None:
        seconds = self._backoff.wait(time.monotonic())
        self._next_try = time.monotonic() + (seconds or 0.0)
