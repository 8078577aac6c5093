"""The two Unix sockets of a daemon; ``nousd.net.unix_sockets`` creates and removes their files.

- The event socket is created first: a client that finds the command socket finds both.
- Sockets passed by systemd are used as they are and never removed.

This module does not know the protocol on the sockets.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import trio

from nousd.daemon.ops.systemd import PassedSockets
from nousd.net.unix_sockets import check_length, listen, remove_stale
from nousd.runtime_paths.locations import events_socket


class SocketPaths(NamedTuple):
    command: Path
    events: Path


class Listeners(NamedTuple):
    command: trio.SocketListener
    events: trio.SocketListener


def socket_paths(path: Path) -> SocketPaths:
    """Return ``PATH`` and ``PATH.events``, absolute.

    Raises:
        ConfigError: the longer path does not fit into a socket address.
    """
    command = path.absolute()
    events = events_socket(command)
    check_length(events)
    return SocketPaths(command, events)


@asynccontextmanager
async def open_listeners(
    path: Path, passed: PassedSockets | None = None
) -> AsyncIterator[Listeners]:
    """Listen on ``PATH`` and ``PATH.events`` during the block.

    Leaving the block removes the sockets and closes the listeners; a task that waits in ``accept``
    gets ``trio.ClosedResourceError``.

    Args:
        path: the path of the command socket; its lock must be held (``lock_socket``).
        passed: sockets to use instead (``systemd.take_passed_sockets``); ``path`` is then ignored.

    Raises:
        ConfigError: a path is too long, not writable, or taken by a live socket or by a file that is not
            this user's socket; existing files stay as they are.
    """
    with ExitStack() as stack:
        if passed is None:
            paths = socket_paths(path)
            remove_stale(paths)
            events = stack.enter_context(_bind(paths.events))
            command = stack.enter_context(_bind(paths.command))
        else:
            events = stack.enter_context(_open_listener(passed.events))
            command = stack.enter_context(_open_listener(passed.command))
        yield Listeners(command, events)


@contextmanager
def _bind(path: Path) -> Iterator[trio.SocketListener]:
    listening = listen(path)
    with _open_listener(listening.socket) as listener:
        try:
            yield listener
        finally:
            listening.remove_file()


@contextmanager
def _open_listener(sock: socket.socket) -> Iterator[trio.SocketListener]:
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(sock))
    try:
        yield listener
    finally:
        listener.socket.close()
