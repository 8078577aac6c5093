"""Pruning of old deltas: at the start and every hour, in short steps.

How deltas are joined is not known here, nor whether anybody reads them meanwhile: the store sees to
that, as long as nothing is pruned that the hub holds in its window.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Final

import trio

from nousd.daemon.clock import Clock, earlier
from nousd.daemon.eventlog.hub import Hub
from nousd.errors import StoreError
from nousd.store.interface import Store
from nousd.store.records import Old

PERIOD_SECONDS: Final = 3600.0

PAUSE_SECONDS: Final = 0.05
"""Between two steps, which are some milliseconds each: most of the writer's time is left to others."""

_log = logging.getLogger(__name__)


async def prune_old_deltas(store: Store, hub: Hub, clock: Clock, *, days: int) -> None:
    """Join the deltas of messages that ended more than that many days ago, for as long as the
    daemon runs.

    Args:
        days: 0 keeps all deltas.
    """
    while days:
        try:
            gone = await _prune(store, hub, earlier(clock.now(), timedelta(days=days)))
        except StoreError as error:
            # The log is as it was, so the next hour will do.
            _log.warning("old deltas could not be pruned: %s", error)
        else:
            _log.debug("%d old deltas were pruned", gone)
        await trio.sleep(PERIOD_SECONDS)


async def _prune(store: Store, hub: Hub, before: str) -> int:
    hub.release(before)
    old = Old(before, until=hub.window_start)
    gone = 0
    while True:
        pruned = await store.prune_deltas(old)
        gone += pruned.deltas
        if not pruned.more:
            return gone
        await trio.sleep(PAUSE_SECONDS)
