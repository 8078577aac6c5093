"""The first thing after the locks: every run that a killed process left open gets its balanced ends.

The events of such a run are walked by the same ledger that watched them when they were made, and
closed by the same ``owed_ends``; a model call that nobody has counted is counted. Nothing runs again by
itself; what was not consumed is still pending.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from nousd.daemon.clock import Clock
from nousd.daemon.log import Log
from nousd.errors import StoreError
from nousd.machine.lifecycle import LOGGED, Ledger, owed_ends
from nousd.machine.usage import owed_usage
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

    Raises:
        StoreError: the ends of one could not be written; those of the others were, if they could be.
    """

    async def open_runs() -> list[RunRecord]:
        runs = await store.open_runs()
        return [run for run in runs if session_id in (None, run.session_id)]

    if not await open_runs():
        return 0
    # Ends that are on their way already must not be written twice.
    await store.flush()
    failures = []
    left_open = await open_runs()
    for run in left_open:
        try:
            await _close(run, store, log, clock)
        except StoreError as failure:
            failures.append(failure)
    if failures:
        raise failures[0]
    return len(left_open)


async def close_what_can_be(store: Store, log: Log, clock: Clock) -> None:
    """Closes open runs at a start. A disk in trouble does not keep the daemon from answering reads: a
    run whose ends cannot be written now gets them when its session is next used.
    """
    try:
        await close_open_runs(store, log, clock)
    except StoreError as failure:
        _log.error("not every interrupted run could be closed: %s", failure)


async def _close(run: RunRecord, store: Store, log: Log, clock: Clock) -> None:
    ledger = await _walk(store, run)
    row = await store.session(run.session_id)
    ends = owed_ends(
        ledger,
        "interrupted",
        leaf_id=None if row is None else row.leaf_id,
        now=clock.now(),
    )
    told = (*owed_usage(ledger), *ends)
    await log.submit(log.encode(told), owed=True).wait_committed()
    _log.info("run %s was interrupted and is now closed", run.run_id)


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
