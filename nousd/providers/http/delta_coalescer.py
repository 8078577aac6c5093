"""Passes pieces from the task that reads a stream to the receiver, joining deltas on the way.

Why two tasks: several deltas often arrive in one network read, but an HTTP client returns them one by
one. The reading task puts each into a bounded channel without giving up the processor, so the receiving
task finds together what arrived together. While a receiver is slow more gathers; when the channel is
full the reading waits, and with it the server.

Knows nothing of dialects and does no I/O of its own.
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
"""Maximum pieces that were read and not yet received."""

CHARS_WAITING_MAX: Final = 256 * 1024
"""Maximum characters of them; one piece more may wait, of any length."""

Put = Receive
"""Takes a piece from the reading task; waits only while too much waits to be received."""


async def deliver(read: Callable[[Put], Awaitable[None]], receive: Receive) -> None:
    """Run ``read(put)`` and pass what it puts to ``receive``, in order.

    Raises:
        ProviderError: what ``read`` raised, after everything that it had put was received.
        BaseException: what ``receive`` raised, as it is; ``read`` is cancelled.
    """
    into, out_of = trio.open_memory_channel[Piece](PIECES_WAITING_MAX)
    failures: list[ProviderError] = []
    chars_waiting = 0
    taken = trio.lowlevel.ParkingLot()

    async def read_all() -> None:
        with into:
            try:
                await read(put)
            except ProviderError as error:
                failures.append(error)

    async def put(piece: Piece) -> None:
        nonlocal chars_waiting
        while chars_waiting >= CHARS_WAITING_MAX:
            await taken.park()
        if isinstance(piece, TextDelta | ReasoningDelta):
            chars_waiting += len(piece.text)
        try:
            into.send_nowait(piece)
        except trio.WouldBlock:
            await into.send(piece)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_all)
            async for piece in out_of:
                waiting = out_of.statistics().current_buffer_used
                together = [piece, *[out_of.receive_nowait() for _ in range(waiting)]]
                chars_waiting = 0
                taken.unpark_all()
                for part in joined(together):
                    await receive(part)
    except BaseExceptionGroup as group:
        # A nursery wraps even a single exception; callers expect their own back.
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise
    if failures:
        raise failures[0]


def joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield the pieces with neighbouring deltas of one kind joined."""
    for kind, group in groupby(pieces, type):
        if kind is TextDelta or kind is ReasoningDelta:
            if text := "".join(map(_text, group)):
                yield kind(text)
        else:
            yield from group


_text: Final = attrgetter("text")
