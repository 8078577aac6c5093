"""Deletion of unreferenced content: at the start, every hour, and after a session is deleted.

An artifact that a client has put is kept for a day, so that there is time to refer to it. What a killed
process left of one that it was putting goes at the next start.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Final

import trio

from nousd.daemon.clock import Clock, earlier
from nousd.errors import StoreError
from nousd.store.interface import Store

UNUSED_KEPT: Final = timedelta(hours=24)

PERIOD_SECONDS: Final = 3600.0

PAUSE_SECONDS: Final = 0.05
"""Between two steps, which are some milliseconds each: most of the writer's time is left to others."""

ARTIFACTS_PER_LOOK: Final = 1000
"""Looked up at once; it is looked again until all have gone."""

_LEFTOVERS_MAX: Final = 100_000
"""More than any disk holds of such as are not deleted in one step."""

_log = logging.getLogger(__name__)


async def collect_unused_artifacts(store: Store, clock: Clock) -> None:
    """Delete artifacts that no event refers to, for as long as the daemon runs."""
    while True:
        try:
            gone = await _collect(store, earlier(clock.now(), UNUSED_KEPT))
        except StoreError as error:
            # They are still there in an hour.
            _log.warning("unused artifacts could not be deleted: %s", error)
        else:
            _log.debug("%d unused artifacts were deleted", gone)
        await trio.sleep(PERIOD_SECONDS)


async def drop_leftovers(store: Store) -> None:
    """Delete what is left of large artifacts that went with their session.

    No pause is made, since somebody waits for it; but others come in between the steps.

    Raises:
        StoreError: the rest goes with what is unused.
    """
    for artifact_id in await store.unused_artifacts("", limit=_LEFTOVERS_MAX):
        while await store.drop_artifact(artifact_id, put_before=""):
            pass


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
