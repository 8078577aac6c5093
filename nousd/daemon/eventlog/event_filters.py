"""Translates a client's filter of events into the filter of store and hub."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import UNSET, UnsetType

from nousd.errors import CommandRejected, InvalidPayload
from nousd.store.interface import Store
from nousd.store.records import EventFilter
from nousd.wire.commands import GetEvents
from nousd.wire.commands.subscribe import Subscribe, cursor, cursor_seq
from nousd.wire.events import EVENTS, FROZEN_EVENTS

FROZEN: Final = frozenset(FROZEN_EVENTS)


def event_filter(wish: Subscribe | GetEvents) -> EventFilter:
    """Return the filter that a subscription or a page request describes.

    Raises:
        InvalidPayload: it names an unknown event type.
    """
    return EventFilter(wish.session_id, wish.run_id, _types(wish.types))


def _types(names: str | tuple[str, ...]) -> frozenset[str] | None:
    if isinstance(names, str):
        return FROZEN if names == "v1" else None
    for name in names:
        if name not in EVENTS:
            raise InvalidPayload(f"types has no event type {name}")
    return frozenset(names)


def position(after: str, *, head: int) -> int:
    """Return the sequence number after which a reader continues.

    Raises:
        CommandRejected: ``cursor_beyond_head``; ``details.head`` names the newest event.
    """
    seq = cursor_seq(after)
    if seq > head:
        raise CommandRejected("cursor_beyond_head", details={"head": cursor(head)})
    return seq


async def pruned(
    store: Store, after: int, wanted: EventFilter, *, head: int
) -> Literal[True] | UnsetType:
    """Return True for a reader whose cursor lies among joined deltas, else UNSET."""
    if 0 < after < head and await store.is_pruned(after, wanted):
        return True
    return UNSET
