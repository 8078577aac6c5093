"""Whether anybody is there who answers what the daemon asks.

The daemon asks only while a client has declared that it answers. Over HTTP such a client is one that
reads an event stream, and for a while one that has just left it and may come back, has started a run,
whose events it is about to read, or has looked what waits. For as long, the bridge declares it: one
subscription stands for all clients that see the same, and what none of them sees is not asked for them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import anyio
from anyio.abc import TaskGroup

from nousd.client.client import Client
from nousd.client.resuming import KEEPALIVE_SECONDS, Backoff, Retry
from nousd.client.subscription import Subscription
from nousd.errors import ClientError
from nousd.wire.commands.subscribe import Subscribe

LINGER_SECONDS: Final = 30.0
"""For how long a client that has left, has looked what waits, or has started a run still answers."""

DECLARING_SECONDS: Final = 1.0
"""How long a client that answers is kept waiting until the daemon knows of it."""

WATCHES_MAX: Final = 256
"""Declarations at a time; past that it is declared for all sessions."""

_RETRY: Final = Retry(longest=1.0)
"""A declaration that is lost is made again for as long as anybody is there."""

_ASKING: Final = ("permission_requested", "question_asked")

_logger: Final = logging.getLogger(__name__)


class _Scope(NamedTuple):
    """What clients see: everything, or what belongs to that session, that run, or both."""

    session_id: str | None = None
    run_id: str | None = None


class _Watch:
    """Clients that see the same: how many read events, and until when one that does not counts."""

    def __init__(self) -> None:
        self.readers = 0
        self._until = -math.inf
        self._changed = anyio.Event()
        self._declared = anyio.Event()

    @property
    def is_wanted(self) -> bool:
        """Whether anybody is there."""
        return self.readers > 0 or self._until > anyio.current_time()

    def join(self) -> None:
        """Counts one more that reads."""
        self.readers += 1
        self._change()

    def leave(self) -> None:
        """Counts one less, who may come back."""
        self.readers -= 1
        self.linger()

    def linger(self) -> None:
        """Counts somebody for a while from now on."""
        self._until = anyio.current_time() + LINGER_SECONDS
        self._change()

    async def deserted(self) -> None:
        """Returns once nobody is there."""
        while self.is_wanted:
            left = None if self.readers else self._until - anyio.current_time()
            with anyio.move_on_after(left):
                await self._changed.wait()

    def declare(self, *, is_declared: bool) -> None:
        """Notes whether the daemon knows of it."""
        if is_declared:
            self._declared.set()
        elif self._declared.is_set():
            self._declared = anyio.Event()

    async def declared(self) -> None:
        """Returns once the daemon knows of it; or does not, although it had the time."""
        with anyio.move_on_after(DECLARING_SECONDS):
            await self._declared.wait()

    def _change(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


class Responders:
    """Who is there.

    Invariant: a watch is in ``_watches`` for as long as a task declares it, and that task goes on for as
    long as anybody is there.

    Args:
        tasks: where the subscriptions live.
    """

    def __init__(self, daemon: Client, tasks: TaskGroup) -> None:
        self._daemon = daemon
        self._tasks = tasks
        self._watches: dict[_Scope, _Watch] = {}

    @asynccontextmanager
    async def count_reader(
        self, session_id: str | None, run_id: str | None = None
    ) -> AsyncIterator[None]:
        """Counts a client that reads events, of all or of what is named, while the block lasts; the
        block begins when that is declared.
        """
        watch = self._watch(_Scope(session_id, run_id))
        watch.join()
        try:
            await watch.declared()
            yield
        finally:
            watch.leave()

    def note_listing(self) -> None:
        """Counts a client that looked what waits, for a while."""
        self._watch(_Scope()).linger()

    async def expect_reader(self, session_id: str) -> None:
        """Counts a client that is about to start a run, for a while; returns once that is declared."""
        watch = self._watch(_Scope(session_id))
        watch.linger()
        await watch.declared()

    def _watch(self, seen: _Scope) -> _Watch:
        if seen not in self._watches and len(self._watches) >= WATCHES_MAX:
            seen = _Scope()
        if seen not in self._watches:
            self._watches[seen] = _Watch()
            self._tasks.start_soon(self._keep, seen)
        return self._watches[seen]

    async def _keep(self, seen: _Scope) -> None:
        """Declares it for as long as anybody is there."""
        watch = self._watches[seen]
        backoff = Backoff(_RETRY)
        try:
            while watch.is_wanted:
                try:
                    await self._declare(watch, seen, backoff)
                except ClientError as error:
                    _logger.info("nobody answers what the daemon asks: %s", error)
                    with anyio.move_on_after(backoff.wait(anyio.current_time())):
                        await watch.deserted()
        finally:
            del self._watches[seen]

    async def _declare(self, watch: _Watch, seen: _Scope, backoff: Backoff) -> None:
        """Declares it until nobody is there any more. Raises ClientError if the daemon has gone."""
        wanted = Subscribe(
            session_id=seen.session_id,
            run_id=seen.run_id,
            types=_ASKING,
            confirms=True,
            keepalive_seconds=KEEPALIVE_SECONDS,
        )
        async with self._daemon.subscribe(wanted) as asked:
            backoff.reset()
            watch.declare(is_declared=True)
            await _hold_until_deserted(watch, asked)


async def _hold_until_deserted(watch: _Watch, asked: Subscription) -> None:
    """Takes what is told, which keeps the subscription alive; readers are told by the window.

    That it ends is noted in the same step in which that is decided: whoever comes later waits for the
    next one. Raises ClientError if the daemon has gone.
    """
    lost: ClientError | None = None

    async def listen() -> None:
        nonlocal lost
        try:
            async for _ in asked:
                pass
        except ClientError as error:
            lost = error
            watch.declare(is_declared=False)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        await watch.deserted()
        watch.declare(is_declared=False)
        tasks.cancel_scope.cancel()
    if lost is not None:
        raise lost
