"""Declaring to the daemon the HTTP clients that can answer approval requests and questions.

The daemon asks only while a client has declared that it answers. Over HTTP, a client that reads an event
stream counts as one. So does, for a while, a client that left its stream and may return, that started a
run whose events it is about to read, or that listed the pending requests. The bridge declares these
clients with one subscription for all that see the same events.
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
"""How long a client counts after it left its stream, listed pending requests or started a run."""

DECLARING_SECONDS: Final = 1.0
"""Maximum time that a client waits for the daemon to confirm its declaration."""

WATCHES_MAX: Final = 256
"""Maximum declarations at the same time; beyond it, a client is declared for all sessions."""

_RETRY: Final = Retry(longest=1.0)
"""The delays between attempts to repeat a lost declaration that still has clients."""

_ASKING: Final = ("permission_requested", "question_asked")

_logger: Final = logging.getLogger(__name__)


class _Scope(NamedTuple):
    """The events that clients see: all, or those of a session, a run, or both."""

    session_id: str | None = None
    run_id: str | None = None


class _Watch:
    """The clients of one scope: the number of its readers, and the time until which a client without a
    stream counts.
    """

    def __init__(self) -> None:
        self.readers = 0
        self._until = -math.inf
        self._changed = anyio.Event()
        self._declared = anyio.Event()

    @property
    def is_wanted(self) -> bool:
        """True while there is a client."""
        return self.readers > 0 or self._until > anyio.current_time()

    def join(self) -> None:
        """Add a reader."""
        self.readers += 1
        self._change()

    def leave(self) -> None:
        """Remove a reader, which may reconnect."""
        self.readers -= 1
        self.linger()

    def linger(self) -> None:
        """Count a client for ``LINGER_SECONDS`` from now."""
        self._until = anyio.current_time() + LINGER_SECONDS
        self._change()

    async def wait_deserted(self) -> None:
        """Wait until there is no client."""
        while self.is_wanted:
            seconds_left = None if self.readers else self._until - anyio.current_time()
            with anyio.move_on_after(seconds_left):
                await self._changed.wait()

    def declare(self, *, is_declared: bool) -> None:
        """Note whether the daemon has confirmed the declaration."""
        if is_declared:
            self._declared.set()
        elif self._declared.is_set():
            self._declared = anyio.Event()

    async def wait_declared(self) -> None:
        """Wait until the daemon has confirmed the declaration, for ``DECLARING_SECONDS`` at most."""
        with anyio.move_on_after(DECLARING_SECONDS):
            await self._declared.wait()

    def _change(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


class Responders:
    """The declarations of all clients.

    Invariant: a watch is in ``_watches`` exactly while a task declares it, and the task runs while the
    watch has clients.

    Args:
        tasks: the task group for the subscriptions.
    """

    def __init__(self, daemon: Client, tasks: TaskGroup) -> None:
        self._daemon = daemon
        self._tasks = tasks
        self._watches: dict[_Scope, _Watch] = {}

    @asynccontextmanager
    async def count_reader(
        self, session_id: str | None, run_id: str | None = None
    ) -> AsyncIterator[None]:
        """Count a client that reads all events, or those of a session or run, until the block ends.

        Entering the block waits until the client is declared.
        """
        watch = self._watch(_Scope(session_id, run_id))
        watch.join()
        try:
            await watch.wait_declared()
            yield
        finally:
            watch.leave()

    def note_listing(self) -> None:
        """Count a client that listed the pending requests, for a while."""
        self._watch(_Scope()).linger()

    async def expect_reader(self, session_id: str) -> None:
        """Count, for a while, a client that is about to start a run; return once it is declared."""
        watch = self._watch(_Scope(session_id))
        watch.linger()
        await watch.wait_declared()

    def _watch(self, scope: _Scope) -> _Watch:
        if scope not in self._watches and len(self._watches) >= WATCHES_MAX:
            scope = _Scope()
        if scope not in self._watches:
            self._watches[scope] = _Watch()
            self._tasks.start_soon(self._keep, scope)
        return self._watches[scope]

    async def _keep(self, scope: _Scope) -> None:
        """Declare a scope while it has clients."""
        watch = self._watches[scope]
        backoff = Backoff(_RETRY)
        try:
            while watch.is_wanted:
                try:
                    await self._declare(watch, scope, backoff)
                except ClientError as error:
                    _logger.info("nobody answers what the daemon asks: %s", error)
                    with anyio.move_on_after(backoff.wait(anyio.current_time())):
                        await watch.wait_deserted()
        finally:
            del self._watches[scope]

    async def _declare(self, watch: _Watch, scope: _Scope, backoff: Backoff) -> None:
        """Declare a scope until it has no clients. Raise ClientError if the daemon disconnects."""
        subscription = Subscribe(
            session_id=scope.session_id,
            run_id=scope.run_id,
            types=_ASKING,
            confirms=True,
            keepalive_seconds=KEEPALIVE_SECONDS,
        )
        async with self._daemon.subscribe(subscription) as requests:
            backoff.reset()
            watch.declare(is_declared=True)
            await _hold_until_deserted(watch, requests)


async def _hold_until_deserted(watch: _Watch, requests: Subscription) -> None:
    """Read and drop the events of a subscription until the watch has no clients.

    Readers get their events from the hub. The end of the declaration is recorded in the same step of the
    event loop in which it is decided, so that a later client waits for the next declaration. Raise
    ClientError if the daemon disconnects.
    """
    lost: ClientError | None = None

    async def listen() -> None:
        nonlocal lost
        try:
            async for _ in requests:
                pass
        except ClientError as error:
            lost = error
            watch.declare(is_declared=False)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        await watch.wait_deserted()
        watch.declare(is_declared=False)
        tasks.cancel_scope.cancel()
    if lost is not None:
        raise lost
