"""Running a bridge: it listens before the daemon can be reached, and serves once it can.

``serve_alone`` runs it in a process of its own, beside a daemon that is reached over its socket.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import trio

from nousd.bridge import mcp
from nousd.bridge.access.credentials import Credentials, CurrentToken
from nousd.bridge.access.gate import LOCAL_HOSTS, AccessPolicy
from nousd.bridge.access.work_rate import WorkRate
from nousd.bridge.app import make_app
from nousd.bridge.http import server
from nousd.bridge.http.bodies import Bodies
from nousd.bridge.http.listen_address import HttpPlace
from nousd.bridge.metrics.meters import Meters
from nousd.bridge.restricted_dial import RestrictedDial
from nousd.bridge.routes import ROWS
from nousd.bridge.routing.route import Services
from nousd.bridge.stream.hub import Hub
from nousd.bridge.stream.responders import Responders
from nousd.client.client import Client
from nousd.client.dial import Where
from nousd.client.resuming import Retry
from nousd.runtime_paths.tickets import browser_sessions, login_links

REQUESTS_MAX: Final = 64
"""Maximum commands of HTTP clients that the daemon runs at the same time; others wait."""

PATIENCE_SECONDS: Final = 5.0
"""How long a request waits for a daemon that is restarting."""

LAST_SECONDS: Final = 0.5
"""How long streams wait for the last events of a daemon that stops in the same process."""

_logger: Final = logging.getLogger(__name__)


class BridgeSettings(NamedTuple):
    """The settings of a bridge.

    Args:
        current_token: returns the token that is valid now; None to admit no client.
        state_dir: the state directory, which holds the browser sessions.
        hosts: accepted names in ``Host``, in addition to ``LOCAL_HOSTS``.
        origins: origins whose pages may send requests.
        starts_per_minute: how often a client may start work in a minute; 0 for no limit.
    """

    place: HttpPlace
    current_token: CurrentToken
    state_dir: Path
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    starts_per_minute: int = 0

    def access_policy(self, credentials: Credentials) -> AccessPolicy:
        """Return the policy of the gate."""
        if self.place.path is not None:
            # A page in a browser cannot connect to a Unix socket.
            return AccessPolicy(credentials, None, frozenset(self.origins))
        hosts = LOCAL_HOSTS | {host.lower() for host in self.hosts}
        return AccessPolicy(credentials, hosts, frozenset(self.origins))


class OpenBridge(NamedTuple):
    """A bridge that listens. Clients that connect wait until ``serve`` is called."""

    settings: BridgeSettings
    listeners: Sequence[trio.SocketListener]

    async def serve(self, where: Where, closing: trio.Event, *, is_patient: bool = False) -> None:
        """Serve until ``closing`` is set and the last replies are sent, or the grace period ends.

        Args:
            is_patient: wait for the daemon whenever it cannot be reached, at the start and later.
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
            folder = self.settings.state_dir
            credentials = Credentials(
                self.settings.current_token, browser_sessions(folder), login_links(folder)
            )
            work_rate = WorkRate(self.settings.starts_per_minute)
            services = Services(
                daemon, hub, responders, meters, bodies, credentials, work_rate, ROWS
            )
            if not is_patient:
                await hub.wait_begun()
            apps = {mcp.PATH: mcp.LazyMcpApp(where, following, closing, bodies, work_rate)}
            following.start_soon(credentials.watch)
            app = make_app(services, self.settings.access_policy(credentials), apps=apps)
            await server.serve(app, self.listeners, closing)
            following.cancel_scope.cancel()


async def _end_streams(hub: Hub, closing: trio.Event, seconds: float) -> None:
    """End streams gracefully when the bridge closes."""
    await closing.wait()
    with anyio.move_on_after(seconds):
        await hub.wait_ended()
    hub.end()


@asynccontextmanager
async def open_bridge(settings: BridgeSettings) -> AsyncIterator[OpenBridge]:
    """Listen at the address of the settings.

    Raises:
        ConfigError: the address cannot be used.
    """
    async with server.open_listeners(settings.place) as listeners:
        for listener in listeners:
            _logger.info("listening on http at %s", _address(listener))
        yield OpenBridge(settings, listeners)


def _address(listener: trio.SocketListener) -> HttpPlace:
    """Return the address of a listener, with the port that the system chose for port 0."""
    name = listener.socket.getsockname()
    return HttpPlace(path=Path(name)) if isinstance(name, str) else HttpPlace(*name[:2])


def serve_alone(settings: BridgeSettings, socket: Path) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        socket: the path of the daemon's socket. It need not exist yet, and may disappear and return.

    Raises:
        ConfigError: the address cannot be used.
    """
    trio.run(_serve, settings, socket)


async def _serve(settings: BridgeSettings, socket: Path) -> None:
    closing = trio.Event()
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with open_bridge(settings) as bridge, trio.open_nursery() as serving:
            where = RestrictedDial(socket)
            serving.start_soon(partial(bridge.serve, where, closing, is_patient=True))
            await anext(signals)
            closing.set()
