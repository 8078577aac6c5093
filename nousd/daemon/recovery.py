"""The first thing after the locks: every run that a killed process left open gets its balanced ends.

The events of such a run are walked by the same ledger that watched them when they were made, and
closed by the same ``owed_ends``. Nothing runs again by itself; what was not consumed is still pending.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from nousd.daemon.clock import Clock
from nousd.daemon.log import Log
from nousd.machine.lifecycle import LOGGED, Ledger, owed_ends
from nousd.store.interface import EventFilter, Store
from nousd.wire.codec import decode_event
from nousd.wire.events import EVENTS, Event
from nousd.wire.responses import RunRecord

_log = logging.getLogger(__name__)

_PAGE_EVENTS: Final = 4096
_PAGE_BYTES: Final = 4 * 1024 * 1024


async def close_open_runs(
    store: Store, log: Log, clock: Clock, *, session_id: str | None = None
) -> int:
    """Ends every run that has no end as ``interrupted``; returns how many there were.

    Args:
        session_id: only this session's runs. None: all, as at a start.
    """
    # Ends that are on their way already must not be written twice.
    await store.flush()
    open_runs = [run for run in await store.open_runs() if session_id in (None, run.session_id)]
    for run in open_runs:
        ledger = await _walk(store, run)
        row = await store.session(run.session_id)
        ends = owed_ends(
            ledger,
            "interrupted",
            leaf_id=None if row is None else row.leaf_id,
            now=clock.now(),
        )
        await log.submit(log.encode(ends)).wait_committed()
        _log.info("run %s was interrupted and is now closed", run.run_id)
    return len(open_runs)


async def _walk(store: Store, run: RunRecord) -> Ledger:
    ledger = Ledger(run.session_id, run.run_id, LOGGED)
    after = 0
    while page := await store.events_after(
        after, EventFilter(run_id=run.run_id), limit=_PAGE_EVENTS, bytes_max=_PAGE_BYTES
    ):
        for stored in page:
            event = decode_event(stored.line)
            payload: Event = msgspec.json.decode(event.payload, type=EVENTS[event.type])
            ledger.note(payload)
        after = page[-1].seq
    return ledger
