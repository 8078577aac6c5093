"""Deletion of what nobody needs any more, at the start and every hour: old deltas, unused artifacts.

It is done in short steps, with pauses for others. How deltas are joined is not known here, nor whether
anybody reads them meanwhile: the store sees to that, as long as nothing is pruned that the hub holds in
its window. An artifact that a client has put is kept for a day, so that there is time to refer to it.
What a killed process left of one that it was putting goes at the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

import trio

from nousd.daemon.clock import Clock, earlier
from nousd.daemon.eventlog.hub import Hub
from nousd.errors import StoreError
from nousd.store.interface import Store
from nousd.store.records import Old

UNUSED_KEPT: Final = timedelta(hours=24)

PERIOD_SECONDS: Final = 3600.0

PAUSE_SECONDS: Final = 0.05
"""Between two steps, which are some milliseconds each: most of the writer's time is left to others."""

ARTIFACTS_PER_LOOK: Final = 1000
"""Looked up at once; it is looked again until all have gone."""

_LEFTOVERS_MAX: Final = 100_000
"""More than any disk holds of such as are not deleted in one step."""

_log = logging.getLogger(__name__)


async def prune_old_deltas(store: Store, hub: Hub, clock: Clock, *, days: int) -> None:
    """Join the deltas of messages that ended more than that many days ago, for as long as the
    daemon runs.

    Args:
        days: 0 keeps all deltas.
    """
    if days:
        kept = timedelta(days=days)
        await _every_hour(
            lambda: _prune(store, hub, earlier(clock.now(), kept)), "old deltas", "pruned"
        )


async def collect_unused_artifacts(store: Store, clock: Clock) -> None:
    """Delete artifacts that no event refers to, for as long as the daemon runs."""
    await _every_hour(
        lambda: _collect(store, earlier(clock.now(), UNUSED_KEPT)), "unused artifacts", "deleted"
    )


async def _every_hour(remove: Callable[[], Awaitable[int]], what: str, done: str) -> None:
    while True:
        try:
            gone = await remove()
        except StoreError as error:
            # They are still there in an hour.
            _log.warning("%s could not be %s: %s", what, done, error)
        else:
            _log.debug("%d %s were %s", gone, what, done)
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


async def _collect(store: Store, put_before: str) -> int:
    gone = 0
    while True:
        unused = await store.unused_artifacts(put_before, limit=ARTIFACTS_PER_LOOK)
        for artifact_id in unused:
            more = True
            while more:
                more = await store.drop_artifact(artifact_id, put_before=put_before)
                await trio.sleep(PAUSE_SECONDS)
        gone += len(unused)
        if len(unused) < ARTIFACTS_PER_LOOK:
            return gone


async def drop_leftovers(store: Store) -> None:
    """Delete what is left of large artifacts that went with their session.

    No pause is made, since somebody waits for it; but others come in between the steps.

    Raises:
        StoreError: the rest goes with what is unused.
    """
    for artifact_id in await store.unused_artifacts("", limit=_LEFTOVERS_MAX):
        while await store.drop_artifact(artifact_id, put_before=""):
            pass
