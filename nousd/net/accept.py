"""The accept loop of a listener: admits peers and limits simultaneous connections.

It does not know the protocol of a connection. Loops share only the limiter (``places``) that
they are given, so that a crowd on one socket does not close another one.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import trio

from nousd.net.peers import is_own_or_root

Handler = Callable[[trio.SocketStream], Awaitable[None]]

_OVERLOAD: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""Want of descriptors or of kernel memory, which passes. What a connection can have of its own (it
was aborted before we took it, say) ``trio.SocketListener`` already skips."""

_OVERLOAD_PAUSE_SECONDS: Final = 0.1

_REFUSAL_SECONDS: Final = 1.0
"""How long a refused client may take to let us write our one line. The empty buffer of a new
connection takes it at once, so this only bounds the unforeseen."""

_logger: Final = logging.getLogger(__name__)


async def serve_connections(
    listener: trio.abc.Listener[trio.SocketStream],
    handler: Handler,
    *,
    places: trio.CapacityLimiter,
    refusal: bytes,
    admits: Callable[[trio.SocketStream], bool] = is_own_or_root,
    handlers: trio.Nursery | None = None,
) -> None:
    """Run ``handler(stream)`` in a task of its own for each connection.

    Returns when the listener was closed and the last handler has ended; cancelling it cancels the
    handlers. A handler's stream is closed when the handler ends.

    Args:
        places: as many handlers at a time. A further client gets ``refusal`` and is closed.
        refusal: one encoded error.
        admits: whether a peer is served at all; one that is not is closed without a word.
        handlers: where they run, if they are to outlive the loop.

    Error handling: an exception from a handler is not caught and ends the whole loop, as does an
    ``OSError`` of the listener (both in an exception group). What a fault on one connection means
    is the handler's matter, which knows how to answer it. Only want of descriptors or of memory is
    waited out, by trying again every 100 ms.
    """
    async with trio.open_nursery() as own:
        while True:
            try:
                stream = await _accept(listener)
            except trio.ClosedResourceError:
                return
            if not admits(stream):
                _logger.warning("a connection of another user was closed")
                await trio.aclose_forcefully(stream)
            elif places.available_tokens == 0:
                await _refuse(stream, refusal)
            else:
                places.acquire_on_behalf_of_nowait(stream)
                (handlers or own).start_soon(_serve_one, stream, handler, places)


async def _serve_one(
    stream: trio.SocketStream, handler: Handler, places: trio.CapacityLimiter
) -> None:
    try:
        async with stream:
            await handler(stream)
    finally:
        places.release_on_behalf_of(stream)


async def _accept(listener: trio.abc.Listener[trio.SocketStream]) -> trio.SocketStream:
    overloaded = False
    while True:
        try:
            return await listener.accept()
        except OSError as error:
            if error.errno not in _OVERLOAD:
                raise
            if not overloaded:  # one line per overload, not ten a second
                _logger.error("no connection can be accepted for now: %s", error.strerror)
            overloaded = True
            await trio.sleep(_OVERLOAD_PAUSE_SECONDS)


async def _refuse(stream: trio.SocketStream, refusal: bytes) -> None:
    async with stream:
        with trio.move_on_after(_REFUSAL_SECONDS), suppress(trio.BrokenResourceError):
            await stream.send_all(refusal)
