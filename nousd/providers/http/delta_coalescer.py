"""Passes pieces from the task that reads a stream to the receiver, joining deltas on the way.

Why two tasks: several deltas often arrive in one network read, but an HTTP client returns them one by
one. The reading task puts each into a bounded list without yielding to the scheduler, so the receiving
task finds all deltas of one read together. More gather while the receiver is slow; when the list is
full, the reading task waits, and with it the server.

It knows no dialect and does no I/O.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Final

import trio

from nousd.errors import ProviderError
from nousd.providers.interface import Piece, ReasoningDelta, Receive, TextDelta

PIECES_WAITING_MAX: Final = 1024
"""Maximum pieces that are read and not yet received."""

CHARS_WAITING_MAX: Final = 256 * 1024
"""Maximum characters of these pieces; the last piece, of any length, may exceed it."""

Put = Receive
"""Takes a piece from the reading task; waits only while the buffer is full."""


async def deliver(read: Callable[[Put], Awaitable[None]], receive: Receive) -> None:
    """Run ``read(put)`` and pass its pieces to ``receive`` in order, with neighbouring deltas joined.

    Raises:
        ProviderError: raised by ``read``; re-raised after all its pieces are received.
        BaseException: raised by ``receive``, unchanged; ``read`` is cancelled.
    """
    buffer = _PieceBuffer()
    failures: list[ProviderError] = []

    async def read_all() -> None:
        try:
            await read(buffer.put)
        except ProviderError as error:
            failures.append(error)
        finally:
            buffer.end()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_all)
            while pieces := await buffer.take():
                for part in join_deltas(pieces):
                    await receive(part)
    except BaseExceptionGroup as group:
        # A nursery wraps even a single exception; the caller expects the original one.
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise
    if failures:
        raise failures[0]


class _PieceBuffer:
    """The pieces that are read and not yet taken.

    A trio channel does not fit: it delivers one piece at a time, and to a waiting receiver at once, so
    that the receiver would have to poll for the pieces that arrived with it.
    """

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._chars = 0
        self._has_ended = False
        self._not_empty = trio.lowlevel.ParkingLot()
        self._not_full = trio.lowlevel.ParkingLot()

    async def put(self, piece: Piece) -> None:
        """Add a piece; wait while the buffer is full."""
        while self._chars >= CHARS_WAITING_MAX or len(self._pieces) >= PIECES_WAITING_MAX:
            await self._not_full.park()
        self._pieces.append(piece)
        if isinstance(piece, TextDelta | ReasoningDelta):
            self._chars += len(piece.text)
        if len(self._pieces) == 1:
            self._not_empty.unpark_all()

    def end(self) -> None:
        """Mark the end: ``take`` returns nothing once all pieces are taken."""
        self._has_ended = True
        self._not_empty.unpark_all()

    async def take(self) -> list[Piece]:
        """Wait for pieces and return all of them; return none after the end."""
        while not self._pieces and not self._has_ended:
            await self._not_empty.park()
        pieces, self._pieces = self._pieces, []
        self._chars = 0
        self._not_full.unpark_all()
        return pieces


def join_deltas(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield the pieces with neighbouring deltas of one kind joined."""
    for kind, group in groupby(pieces, type):
        if kind is TextDelta or kind is ReasoningDelta:
            if text := "".join(map(_text, group)):
                yield kind(text)
        else:
            yield from group


_text: Final = attrgetter("text")
