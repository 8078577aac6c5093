"""Recovery: closes the runs and calls that a killed process or a failed commit left open.

The events of an open run, or of a client's open call, go through the lifecycle tracker again, and the
same ``closing_events`` as in a live run close them. The usage of an unfinished model call is counted.
No run is restarted; inputs that were not consumed stay pending.

Recovery runs at the daemon's start (``app``), and for one session before ``sessions.registry`` reads it
from the log. After a failed commit, ``runs.registry`` reads that session as soon as its run is over.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

from nousd.daemon.clock import Clock
from nousd.daemon.eventlog.log import Log
from nousd.daemon.eventlog.log_walk import event_of, for_each_event
from nousd.daemon.runs.call_records import tracker_of
from nousd.errors import StoreError
from nousd.machine.session.appending import append_waiting, leaf_after
from nousd.machine.session.closing_events import closing_events
from nousd.machine.session.lifecycle import LOGGED, LifecycleTracker
from nousd.machine.session.state import SessionState, queue_fields
from nousd.machine.session.usage import build_unreported_usage
from nousd.store.interface import Store
from nousd.store.records import EventFilter
from nousd.store.rows import ToolCallRow
from nousd.wire.events import Event
from nousd.wire.responses.runs import RunRecord

_log = logging.getLogger(__name__)


Ends = Callable[[], Awaitable[tuple[Event, ...]]]
"""Finds the closing events of a run or a call."""


async def close_open_work(
    store: Store, log: Log, clock: Clock, *, session_id: str | None = None
) -> int:
    """Close every run and client's call that has no end in the log; return their number.

    Args:
        session_id: the session to close; None for all sessions, at the start.

    Raises:
        StoreError: some ends could not be written; the others were, if possible.
    """

    async def collect_open_ends() -> dict[str, Ends]:
        runs = {run.run_id: (run.session_id, run) for run in await store.open_runs()}
        calls = {row.tool_call_id: (row.session_id, row) for row in await store.open_client_calls()}
        ends: dict[str, Ends] = {}
        for name, (open_session_id, run) in runs.items():
            if session_id in (None, open_session_id):
                ends[f"run {name}"] = partial(_ends_of_run, run, store, clock)
        for name, (open_session_id, row) in calls.items():
            if session_id in (None, open_session_id):
                ends[f"tool call {name}"] = partial(_ends_of_call, row, store)
        return ends

    if not await collect_open_ends():
        return 0
    # Ends that are pending already must not be written twice.
    await store.flush()
    failures = []
    open_ends = await collect_open_ends()
    for work, find_ends in open_ends.items():
        try:
            await log.submit(log.encode(await find_ends()), closes_run=True).wait_committed()
            _log.info("%s was interrupted and is now closed", work)
        except StoreError as failure:
            failures.append(failure)
    if failures:
        raise failures[0]
    return len(open_ends)


async def close_open_work_at_start(store: Store, log: Log, clock: Clock) -> None:
    """Close open runs and calls at the start. A failing disk does not prevent the daemon from serving
    reads: the rest is closed when its session is next used.
    """
    try:
        await close_open_work(store, log, clock)
    except StoreError as failure:
        _log.error("not everything that was interrupted could be closed: %s", failure)


async def _ends_of_run(run: RunRecord, store: Store, clock: Clock) -> tuple[Event, ...]:
    tracker = await _walk(store, run)
    row = await store.session(run.session_id)
    leaf_id, revision = (None, 0) if row is None else (row.leaf_id, row.queue_revision)
    *ends, end = closing_events(tracker, "interrupted", leaf_id=leaf_id, now=clock.now())
    pending = await store.pending_inputs(run.session_id)
    state = SessionState(
        session_id=run.session_id, queue_revision=revision, **queue_fields(pending)
    )
    appended = append_waiting(state, run_id=run.run_id, leaf_id=leaf_after(ends, leaf_id))
    return (*build_unreported_usage(tracker), *ends, *appended, end)


async def _ends_of_call(row: ToolCallRow, store: Store) -> tuple[Event, ...]:
    return (await tracker_of(store, row.tool_call_id)).closing_events("interrupted")


async def _walk(store: Store, run: RunRecord) -> LifecycleTracker:
    tracker = LifecycleTracker(run.session_id, run.run_id, LOGGED)
    events = EventFilter(run_id=run.run_id)
    await for_each_event(store, events, lambda stored: tracker.note(event_of(stored)))
    return tracker
