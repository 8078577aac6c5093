"""Whether anybody is there who answers what the daemon asks.

The daemon asks only while a client has declared that it answers. Over HTTP such a client is one that
reads an event stream, and for a while one that has just started a run, whose events it is about to read,
or has looked what waits. For as long, the bridge declares it. One subscription stands for all clients of
the same session.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
from anyio.abc import TaskGroup

from nousd.client.client import Client
from nousd.client.follow import Follower
from nousd.client.resuming import Retry
from nousd.errors import ClientError
from nousd.wire.subscribe import Subscribe

LINGER_SECONDS: Final = 30.0
"""For how long a client that looked what waits, or started a run, counts as one that answers."""

DECLARING_SECONDS: Final = 1.0
"""How long a run that is to be started waits until the daemon knows that there is somebody."""

SESSIONS_MAX: Final = 256
"""Sessions for which it is declared one by one; past that it is declared for all."""

_ASKING: Final = ("permission_requested", "question_asked")

_logger: Final = logging.getLogger(__name__)


class _Watch:
    """Clients of one session: how many read events, and until when one that has looked counts."""

    def __init__(self) -> None:
        self.readers = 0
        self.is_declared = anyio.Event()
        self._until = -math.inf
        self._changed = anyio.Event()

    @property
    def is_wanted(self) -> bool:
        """Whether anybody is there."""
        return self.readers > 0 or self._until > anyio.current_time()

    def join(self) -> None:
        """Counts one more that reads."""
        self.readers += 1
        self._change()

    def leave(self) -> None:
        """Counts one less."""
        self.readers -= 1
        self._change()

    def linger(self, seconds: float) -> None:
        """Counts somebody for so long from now on."""
        self._until = anyio.current_time() + seconds
        self._change()

    async def deserted(self) -> None:
        """Returns once nobody is there."""
        while self.is_wanted:
            left = math.inf if self.readers else self._until - anyio.current_time()
            with anyio.move_on_after(None if left == math.inf else left):
                await self._changed.wait()

    def _change(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


class Presence:
    """Who is there.

    Args:
        tasks: where the subscriptions live.
    """

    def __init__(self, daemon: Client, tasks: TaskGroup, retry: Retry) -> None:
        self._daemon = daemon
        self._tasks = tasks
        self._retry = retry
        self._watches: dict[str | None, _Watch] = {}

    @asynccontextmanager
    async def of_reader(self, session_id: str | None) -> AsyncIterator[None]:
        """Counts a client that reads events, of one session or of all, while the block lasts."""
        watch = self._watch(session_id)
        watch.join()
        try:
            yield
        finally:
            watch.leave()

    def looked(self) -> None:
        """Counts a client that looked what waits, for a while."""
        self._watch(None).linger(LINGER_SECONDS)

    async def starts_run(self, session_id: str) -> None:
        """Counts a client that is about to start a run, for a while; returns once that is declared."""
        watch = self._watch(session_id)
        watch.linger(LINGER_SECONDS)
        with anyio.move_on_after(DECLARING_SECONDS):
            await watch.is_declared.wait()

    def _watch(self, session_id: str | None) -> _Watch:
        if session_id not in self._watches and len(self._watches) >= SESSIONS_MAX:
            session_id = None
        if session_id not in self._watches:
            self._watches[session_id] = _Watch()
            self._tasks.start_soon(self._declare, session_id)
        return self._watches[session_id]

    async def _declare(self, session_id: str | None) -> None:
        """Declares it for as long as anybody is there."""
        watch = self._watches[session_id]
        wanted = Subscribe(session_id=session_id, types=_ASKING, confirms=True)
        try:
            while watch.is_wanted:
                async with (
                    self._daemon.follow(wanted, retry=self._retry) as asked,
                    anyio.create_task_group() as listening,
                ):
                    watch.is_declared.set()
                    listening.start_soon(_listen, asked)
                    await watch.deserted()
                    watch.is_declared = anyio.Event()
                    listening.cancel_scope.cancel()
        except ClientError as error:
            _logger.info("nobody answers what the daemon asks: %s", error)
        finally:
            del self._watches[session_id]


async def _listen(asked: Follower) -> None:
    """Takes what is told, which keeps the subscription alive; readers are told by the window."""
    try:
        async for _ in asked:
            pass
    except ClientError as error:
        _logger.info("nobody answers what the daemon asks: %s", error)
