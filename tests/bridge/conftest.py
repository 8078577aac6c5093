from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.bridge.harness import Bridge, bridge_to
from tests.daemon.conftest import client, daemon, provider, short_folder, socket_path, stub
from tests.harness.daemon import Daemon

__all__ = ["client", "daemon", "provider", "short_folder", "socket_path", "stub"]


@pytest.fixture
async def bridge(daemon: Daemon) -> AsyncIterator[Bridge]:
    """A bridge before ``daemon``, whose model is ``stub``."""
    async with bridge_to(daemon) as bridge:
        yield bridge
