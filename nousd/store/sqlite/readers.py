"""Reads of the log, a few at a time, each in a worker thread on a connection that cannot write.

What is read is not known here: a read is a function of a connection (``_queries``).
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, TypeVar

import apsw
import trio

from nousd.errors import StoreError
from nousd.store.sqlite.database import UNREADABLE, open_for_reading

READERS_MAX: Final = 4
"""Connections that read at the same time; further reads wait for one."""

T = TypeVar("T")


class Readers:
    """A small pool of connections, each used by one worker thread at a time."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._idle: list[apsw.Connection] = []
        self._limiter = trio.CapacityLimiter(READERS_MAX)
        self._closed = False

    async def read(self, query: Callable[[apsw.Connection], T]) -> T:
        """Call ``query`` in a thread, on one state of the database.

        Raises:
            StoreError: the database could not be read, or is closed.
        """
        return await trio.to_thread.run_sync(self._read, query, limiter=self._limiter)

    def _read(self, query: Callable[[apsw.Connection], T]) -> T:
        if self._closed:
            raise StoreError("the store is closed")
        try:
            connection = self._take()
            with ExitStack() as broken_off:
                # A statement that is half done holds its connection at an old state of the log.
                broken_off.callback(connection.close, True)
                with connection:
                    answer = query(connection)
                broken_off.pop_all()
            self._idle.append(connection)
        except UNREADABLE as error:
            raise StoreError(f"the log could not be read: {error}") from error
        return answer

    def _take(self) -> apsw.Connection:
        try:
            return self._idle.pop()
        except IndexError:
            return open_for_reading(self._path)

    async def aclose(self) -> None:
        """Wait for the reads that have begun, and close every connection."""
        self._closed = True
        holders = [object() for _ in range(READERS_MAX)]
        for holder in holders:
            await self._limiter.acquire_on_behalf_of(holder)
        for connection in self._idle:
            connection.close()
        for holder in holders:
            self._limiter.release_on_behalf_of(holder)
