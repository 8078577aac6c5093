"""Deletes sessions at their scheduled time, or at the start if that passed while no daemon ran.

The schedule is in the log and its rows; nothing of it is held here.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final

import trio

from nousd.daemon.clock import Clock
from nousd.errors import StoreError
from nousd.store.interface import Store

_LOOK_SECONDS: Final = 10.0
"""Interval between looks at the wall clock while a deletion is scheduled: that clock can be set, and
advances while the machine sleeps."""

_AGAIN_SECONDS: Final = 1.0
"""Time until the next attempt at a deletion that must wait, for example for a run to stop."""

_log = logging.getLogger(__name__)


Delete = Callable[[str, str], Awaitable[bool]]
"""Takes a session's id and the scheduled time of its deletion; returns whether it is done."""


class ScheduledDeletions:
    """The scheduled deletions of all sessions."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._changed = trio.Event()

    def note_scheduled(self) -> None:
        """Wake ``watch`` after a scheduled deletion was committed."""
        self._changed.set()

    async def watch(self, delete: Delete) -> None:
        """Delete each session at its scheduled time; run until cancelled.

        Args:
            delete: deletes a session whose schedule is unchanged; if it returns False, the schedule is
                looked at again a moment later.
        """
        while True:
            self._changed = trio.Event()
            try:
                wait = await self._delete_due_sessions(delete)
            except StoreError as failure:
                _log.error("a session was not deleted at its time: %s", failure)
                wait = _LOOK_SECONDS
            with trio.move_on_after(wait):
                await self._changed.wait()

    async def _delete_due_sessions(self, delete: Delete) -> float:
        """Delete the sessions that are due; return the seconds until the next look."""
        while (scheduled := await self._store.next_deletion()) is not None:
            session_id, delete_at = scheduled
            now = datetime.fromisoformat(self._clock.now())
            left = (datetime.fromisoformat(delete_at) - now).total_seconds()
            if left > 0:
                return min(left, _LOOK_SECONDS)
            if not await delete(session_id, delete_at):
                return _AGAIN_SECONDS
        return math.inf
