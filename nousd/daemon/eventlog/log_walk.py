"""Reads the events of one run or call, from first to last, a page at a time.

Readers that follow the log as it grows use the hub themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from nousd.daemon.eventlog.hub import Hub
from nousd.store.interface import Store
from nousd.store.records import EventFilter, StoredEvent
from nousd.wire.codec.envelope import decode_event, event_in
from nousd.wire.events import Event

_PAGE_EVENTS: Final = 1024
_PAGE_BYTES: Final = 4 * 1024 * 1024


async def for_each_event(
    store: Store,
    event_filter: EventFilter,
    take: Callable[[StoredEvent], object],
    *,
    after: int = 0,
    until: int | None = None,
) -> None:
    """Call ``take`` with every stored event after ``after``, in order. Other tasks run between two
    pages.

    Args:
        until: sequence number of the last event; None for the newest.

    Raises:
        StoreError: the log could not be read.
    """
    while page := await store.events_after(
        after, event_filter, limit=_PAGE_EVENTS, bytes_max=_PAGE_BYTES, until=until
    ):
        for stored in page:
            take(stored)
        after = page[-1].seq


async def for_each_published_event(
    hub: Hub, event_filter: EventFilter, take: Callable[[StoredEvent], object], *, after: int
) -> None:
    """Call ``take`` with every event after ``after`` that is published now, in order. The log is only
    read for events that are no longer in the hub's window. Other tasks run between two pages.

    Raises:
        StoreError: the log could not be read.
    """
    head = hub.head
    while after < head:
        page, after = await hub.events_after(after, event_filter, limit=_PAGE_EVENTS)
        for stored in page:
            take(stored)
        await trio.lowlevel.checkpoint()


def event_of(stored: StoredEvent) -> Event:
    """Return a stored event as its struct."""
    return event_in(decode_event(stored.line))
