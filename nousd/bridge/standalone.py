"""A bridge in a process of its own, which may outlive the daemon."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import trio

from nousd.bridge.run import BridgeSettings, open_bridge


def serve_alone(settings: BridgeSettings, socket: Path) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        socket: the daemon's socket. It need not exist yet, and may disappear and come back.

    Raises:
        ConfigError: the address cannot be used.
    """
    trio.run(_serve, settings, socket)


async def _serve(settings: BridgeSettings, socket: Path) -> None:
    closing = trio.Event()
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with open_bridge(settings) as bridge, trio.open_nursery() as serving:
            serving.start_soon(partial(bridge.serve, socket, closing, is_patient=True))
            await anext(signals)
            closing.set()
