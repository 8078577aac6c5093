"""Opening streams to a daemon.

The rest of the client works over any stream, so a daemon behind Unix sockets, one in the same process
and a test that simulates one differ only in their ``Dial``.
"""

from __future__ import annotations

import math
import select
from collections.abc import Awaitable
from pathlib import Path
from typing import Protocol

import anyio
from anyio.abc import AnyByteStream, SocketAttribute

from nousd.client.memory import MemoryStream
from nousd.errors import DaemonUnreachable
from nousd.runtime_paths import locations


class Dial(Protocol):
    """Opens streams to one daemon, a new one each time; the caller closes it.

    Both methods raise DaemonUnreachable if no daemon listens. ``str()`` gives the name for messages.
    """

    async def commands(self) -> AnyByteStream:
        """Open a stream for requests and their answers."""

    async def events(self) -> AnyByteStream:
        """Open a stream for one subscription."""


Where = Path | Dial
"""The path of a daemon's command socket, or a way to open streams to it."""


class SocketDial:
    """Reaches a daemon over Unix sockets. ``socket_path`` is the path of the command socket; that of the
    event socket is derived from it.
    """

    def __init__(self, socket_path: Path) -> None:
        self._socket_path = socket_path

    def __str__(self) -> str:
        return str(self._socket_path)

    async def commands(self) -> AnyByteStream:
        return await _connect(self._socket_path)

    async def events(self) -> AnyByteStream:
        return await _connect(locations.events_socket(self._socket_path))


def dial_of(where: Where) -> Dial:
    """Return a ``Dial`` for a path; return a ``Dial`` unchanged."""
    return SocketDial(where) if isinstance(where, Path) else where


async def wait_for_stream(
    dialing: Awaitable[AnyByteStream], dial: Dial, seconds: float
) -> AnyByteStream:
    """Wait for a stream that is being opened.

    Raises:
        DaemonUnreachable: no daemon listens, or it did not answer in time.
    """
    with anyio.move_on_after(None if seconds == math.inf else seconds):
        return await dialing
    raise DaemonUnreachable(f"no daemon listens on {dial}: no answer within {seconds:g} seconds")


def has_news(stream: AnyByteStream) -> bool:
    """Return whether there are bytes to receive, or the peer has closed the stream, as far as can be
    determined without waiting.
    """
    if isinstance(stream, MemoryStream):
        return stream.is_readable
    raw = stream.extra(SocketAttribute.raw_socket, None)  # noqa: S610  not Django's
    if raw is None:
        return False
    poll = select.poll()
    poll.register(raw, select.POLLIN)
    return bool(poll.poll(0))


async def _connect(path: Path) -> AnyByteStream:
    try:
        return await anyio.connect_unix(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise DaemonUnreachable(f"no daemon listens on {path}: {reason}") from None
