"""Deletion of old deltas and unused artifacts, at the start and every hour.

The work is done in short steps, with pauses for other writes. The store joins the deltas and knows
whether they are being read; this module only ensures that no event in the hub's window is pruned. An
artifact that a client has stored is kept for a day, so that the client has time to refer to it. If a
process dies while it stores an artifact or deletes a session, the next start removes the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Final

import trio

from nousd.daemon.clock import Clock, earlier
from nousd.daemon.eventlog.hub import Hub
from nousd.errors import StoreError
from nousd.store.interface import Store
from nousd.store.records import OldDeltas

UNUSED_KEPT: Final = timedelta(hours=24)

PERIOD_SECONDS: Final = 3600.0

PAUSE_SECONDS: Final = 0.05
"""Pause between two steps. A step takes some milliseconds, so most of the writer's time is left to
others."""

ARTIFACTS_PER_LOOK: Final = 1000
"""Unused artifacts to list at a time; repeated until all are deleted."""

_LEFTOVERS_MAX: Final = 100_000
"""Above the number of artifacts that can exist and are too large to be deleted in one step."""

_log = logging.getLogger(__name__)


async def prune_old_deltas(store: Store, hub: Hub, clock: Clock, *, days: int) -> None:
    """Join the deltas of messages that ended more than ``days`` ago; run until cancelled.

    Args:
        days: 0 keeps all deltas.
    """
    if days:
        kept = timedelta(days=days)
        await _every_hour(
            lambda: _prune(store, hub, earlier(clock.now(), kept)), "old deltas", "pruned"
        )


async def collect_unused_artifacts(store: Store, clock: Clock) -> None:
    """Delete the remaining rows of deleted sessions, then artifacts that no event refers to; run until
    cancelled.
    """
    await _every_hour(
        lambda: _collect(store, earlier(clock.now(), UNUSED_KEPT)), "unused artifacts", "deleted"
    )


async def _every_hour(remove: Callable[[], Awaitable[int]], subject: str, action: str) -> None:
    while True:
        try:
            removed = await remove()
        except StoreError as error:
            # The next attempt is in an hour.
            _log.warning("%s could not be %s: %s", subject, action, error)
        else:
            _log.debug("%d %s were %s", removed, subject, action)
        await trio.sleep(PERIOD_SECONDS)


async def _prune(store: Store, hub: Hub, before: str) -> int:
    hub.release(before)
    old = OldDeltas(before, until=hub.window_start)
    removed = 0
    while True:
        pruned = await store.prune_deltas(old)
        removed += pruned.deltas
        if not pruned.more:
            return removed
        await trio.sleep(PAUSE_SECONDS)


async def _collect(store: Store, put_before: str) -> int:
    await drop_rows(store, await store.list_unfinished_deletions())
    removed = 0
    while True:
        unused = await store.list_unused_artifacts(put_before, limit=ARTIFACTS_PER_LOOK)
        for artifact_id in unused:
            more = True
            while more:
                more = await store.drop_artifact(artifact_id, put_before=put_before)
                await trio.sleep(PAUSE_SECONDS)
        removed += len(unused)
        if len(unused) < ARTIFACTS_PER_LOOK:
            return removed


async def drop_copies(store: Store, branch_ids: Iterable[str]) -> None:
    """Delete the rows that were copied for branches that were not created. If the disk fails, the next
    start deletes the rest.
    """
    try:
        await drop_rows(store, branch_ids)
    except StoreError as error:
        _log.warning("copies for a branch that was not created could not be deleted: %s", error)


async def drop_rows(store: Store, session_ids: Iterable[str]) -> None:
    """Delete the remaining rows of sessions that were deleted or never created. There are no pauses, but
    other writes run between the steps.

    Raises:
        StoreError: the rest of a deleted session is deleted with the unused artifacts.
    """
    for session_id in session_ids:
        while await store.drop_rows(session_id):
            pass


async def drop_leftovers(store: Store) -> None:
    """Delete the rest of large artifacts whose session was deleted.

    There are no pauses, because a client waits for it, but other writes run between the steps.

    Raises:
        StoreError: the rest is deleted with the unused artifacts.
    """
    for artifact_id in await store.list_unused_artifacts("", limit=_LEFTOVERS_MAX):
        while await store.drop_artifact(artifact_id, put_before=""):
            pass
