"""The accept loop of a listener: admits peers and limits simultaneous connections.

It does not know the protocol of a connection. Loops share only a limiter (``limiter``), and only if the
caller passes the same one: with separate limiters, a crowd on one socket does not block another.

By default only peers of the daemon's own user, and root, are admitted. The kernel records the user of a
connecting process, so this cannot be forged. It is the last of three guards, after the modes of the
directory and of the socket, and the only one if another program created the sockets (systemd's default
mode for them is 0666).
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import trio

Handler = Callable[[trio.SocketStream], Awaitable[None]]

_OVERLOAD: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""Temporary lack of descriptors or of kernel memory. ``trio.SocketListener`` already skips errors of a
single connection, for example one that was aborted before it was accepted."""

_OVERLOAD_PAUSE_SECONDS: Final = 0.1

_REFUSAL_SECONDS: Final = 1.0
"""How long a refused client may take to receive the refusal. The empty buffer of a new connection
accepts it at once, so this is only a safeguard."""

_logger: Final = logging.getLogger(__name__)

_ROOT_UID: Final = 0

_UCRED: Final = struct.Struct("iII")
"""``struct ucred`` of Linux: pid, uid, gid."""

_SOL_LOCAL: Final = 0
_LOCAL_PEERCRED: Final = 1
_XUCRED_BYTES: Final = 76
"""``struct xucred`` of macOS and the BSDs: version, uid, group count, 16 groups. A shorter answer
of another system still starts with version and uid."""


def is_own_or_root(stream: trio.SocketStream) -> bool:
    """Return whether the peer's user is that of this process or root; False if it is unknown."""
    try:
        uid = peer_uid(stream)
    except OSError:
        return False  # macOS: the peer has already disconnected
    return uid in (os.geteuid(), _ROOT_UID)


def peer_uid(stream: trio.SocketStream) -> int:
    """Return the user id under which the peer connected.

    Raises:
        OSError: the system does not report it.
    """
    if sys.platform == "linux":
        ucred = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        _pid, uid, _gid = _UCRED.unpack(ucred)
        return int(uid)
    else:  # noqa: RET505  mypy checks the two systems apart
        return _uid_of_xucred(stream.socket.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_BYTES))


def _uid_of_xucred(xucred: bytes) -> int:
    version, uid = struct.unpack_from("II", xucred)
    if version != 0:
        raise OSError(f"unknown version {version} of struct xucred")
    return int(uid)


async def serve_connections(
    listener: trio.abc.Listener[trio.SocketStream],
    handler: Handler,
    *,
    limiter: trio.CapacityLimiter,
    refusal: bytes,
    admits: Callable[[trio.SocketStream], bool] = is_own_or_root,
    handlers: trio.Nursery | None = None,
) -> None:
    """Run ``handler(stream)`` in a separate task for each connection.

    Return when the listener is closed and the last handler has ended; cancelling the call cancels the
    handlers. A handler's stream is closed when the handler ends.

    Args:
        limiter: limits the number of handlers. A further client gets ``refusal`` and is closed.
        refusal: one encoded error.
        admits: whether a peer is served; any other is closed without a response.
        handlers: the nursery for the handlers, if they must outlive the loop.

    Error handling: an exception from a handler is not caught and ends the whole loop, as does an
    ``OSError`` of the listener (both in an exception group). The handler must deal with a fault of its
    connection, because it knows how to answer it. Only a lack of descriptors or memory is retried,
    every 100 ms.
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
            elif limiter.available_tokens == 0:
                await _refuse(stream, refusal)
            else:
                limiter.acquire_on_behalf_of_nowait(stream)
                (handlers or own).start_soon(_serve_one, stream, handler, limiter)


async def _serve_one(
    stream: trio.SocketStream, handler: Handler, limiter: trio.CapacityLimiter
) -> None:
    try:
        async with stream:
            await handler(stream)
    finally:
        limiter.release_on_behalf_of(stream)


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
