"""A bridge from its settings: opened before there is a daemon, served once there is one."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import trio

from nousd.bridge import server
from nousd.bridge.app import make_app
from nousd.bridge.daemon import Daemon
from nousd.bridge.gate import LOCAL_HOSTS, Safety
from nousd.bridge.place import HttpPlace
from nousd.bridge.window import Window

ServeDaemon = Callable[[Daemon, trio.Event], Awaitable[None]]
"""Serves a daemon until the event is set and what is owed to clients is written, or a grace is over."""

_logger: Final = logging.getLogger(__name__)


class BridgeSettings(NamedTuple):
    """What a bridge is to be.

    Args:
        hosts: names in ``Host`` that are ours, beside those of this machine.
        origins: pages that may ask.
    """

    place: HttpPlace
    token: str
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    @property
    def safety(self) -> Safety:
        """What the gate asks for."""
        if self.place.path is not None:
            # A page in a browser has no way to a Unix socket.
            return Safety(self.token, None, frozenset(self.origins))
        hosts = LOCAL_HOSTS | {host.lower() for host in self.hosts}
        return Safety(self.token, hosts, frozenset(self.origins))


@asynccontextmanager
async def open_bridge(settings: BridgeSettings) -> AsyncIterator[ServeDaemon]:
    """Listens; whoever connects is served once the given function is called.

    Raises:
        ConfigError: the place cannot be had.
    """
    async with server.open_listeners(settings.place) as listeners:

        async def serve_daemon(daemon: Daemon, closing: trio.Event) -> None:
            for listener in listeners:
                _logger.info("http on %s", listener.socket.getsockname())
            window = Window(daemon)
            async with trio.open_nursery() as following:
                following.start_soon(window.follow)
                await window.begun()
                app = make_app(daemon, window, settings.safety)
                await server.serve(app, listeners, closing)
                following.cancel_scope.cancel()

        yield serve_daemon
