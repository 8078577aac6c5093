"""A bridge from its settings: opened before there is a daemon, served once there is one."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import trio

from nousd.bridge import mcp
from nousd.bridge.access.gate import LOCAL_HOSTS, AccessPolicy
from nousd.bridge.app import make_app
from nousd.bridge.http import server
from nousd.bridge.http.bodies import Bodies
from nousd.bridge.http.listen_address import HttpPlace
from nousd.bridge.metrics.meters import Meters
from nousd.bridge.routes import ROWS
from nousd.bridge.routing.route import Services
from nousd.bridge.stream.hub import Hub
from nousd.bridge.stream.responders import Responders
from nousd.client.client import Client
from nousd.client.dial import Where
from nousd.client.resuming import Retry

REQUESTS_MAX: Final = 64
"""Commands that are under way at the daemon for HTTP clients; further ones wait."""

PATIENCE_SECONDS: Final = 5.0
"""How long a request waits for a daemon that is being restarted."""

LAST_SECONDS: Final = 0.5
"""How long streams wait for the last events of a daemon in this process that stops, too."""

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
    def safety(self) -> AccessPolicy:
        """What the gate asks for."""
        if self.place.path is not None:
            # A page in a browser has no way to a Unix socket.
            return AccessPolicy(self.token, None, frozenset(self.origins))
        hosts = LOCAL_HOSTS | {host.lower() for host in self.hosts}
        return AccessPolicy(self.token, hosts, frozenset(self.origins))


class OpenBridge(NamedTuple):
    """A bridge that listens. Whoever connects waits until ``serve`` is called."""

    settings: BridgeSettings
    listeners: Sequence[trio.SocketListener]

    async def serve(self, where: Where, closing: trio.Event, *, is_patient: bool = False) -> None:
        """Serves the daemon that is there, until the event is set and clients have what they are
        owed, or a grace is over.

        Args:
            is_patient: whether a daemon that is not there is waited for, now and later.
        """
        patience = PATIENCE_SECONDS if is_patient else 0.0
        retry = Retry(longest=1.0) if is_patient else Retry(give_up=0.0)
        async with (
            Client(where, patience_seconds=patience, connections_max=REQUESTS_MAX) as daemon,
            anyio.create_task_group() as following,
        ):
            meters = Meters()
            hub = Hub(daemon, {row.view for row in ROWS}, retry, meters.events.count)
            following.start_soon(hub.follow)
            following.start_soon(_end_streams, hub, closing, 0.0 if is_patient else LAST_SECONDS)
            bodies = Bodies()
            responders = Responders(daemon, following)
            services = Services(daemon, hub, responders, meters, bodies, ROWS)
            if not is_patient:
                await hub.wait_begun()
            apps = {mcp.PATH: mcp.LazyMcpApp(where, following, closing, bodies)}
            app = make_app(services, self.settings.safety, apps=apps)
            await server.serve(app, self.listeners, closing)
            following.cancel_scope.cancel()


async def _end_streams(hub: Hub, closing: trio.Event, seconds: float) -> None:
    """Lets streams come to an end of their own once the bridge closes, rather than be cut."""
    await closing.wait()
    with anyio.move_on_after(seconds):
        await hub.wait_ended()
    hub.end()


@asynccontextmanager
async def open_bridge(settings: BridgeSettings) -> AsyncIterator[OpenBridge]:
    """Listens at the place of the settings.

    Raises:
        ConfigError: the place cannot be had.
    """
    async with server.open_listeners(settings.place) as listeners:
        for listener in listeners:
            _logger.info("listening on http at %s", _address(listener))
        yield OpenBridge(settings, listeners)


def _address(listener: trio.SocketListener) -> HttpPlace:
    """Returns where it listens; a port of 0 is by now a port."""
    name = listener.socket.getsockname()
    return HttpPlace(path=Path(name)) if isinstance(name, str) else HttpPlace(*name[:2])
