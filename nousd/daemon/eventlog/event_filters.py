"""Translates a client's filter of events into the filter of store and hub."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import UNSET, UnsetType

from nousd.errors import CommandRejected, InvalidPayload
from nousd.store.interface import Store
from nousd.store.records import EventFilter
from nousd.views.normalized.fold import VIEW_TYPES
from nousd.views.stream_position import FRAMES_MAX, StreamPosition, position_after_event
from nousd.wire.commands import GetEvents
from nousd.wire.commands.subscribe import Subscribe, cursor, cursor_seq
from nousd.wire.events import EVENTS, FROZEN_EVENTS

FROZEN: Final = frozenset(FROZEN_EVENTS)


def event_filter(command: Subscribe | GetEvents) -> EventFilter:
    """Return the filter that a subscription or a page request describes.

    Raises:
        InvalidPayload: it names an unknown event type, or types and a view.
    """
    if command.view is not None:
        if command.types != "v1":
            raise InvalidPayload("types is not for a view, which has types of its own")
        return EventFilter(command.session_id, command.run_id, VIEW_TYPES)
    return EventFilter(command.session_id, command.run_id, _types(command.types))


def _types(names: str | tuple[str, ...]) -> frozenset[str] | None:
    if isinstance(names, str):
        return FROZEN if names == "v1" else None
    for name in names:
        if name not in EVENTS:
            raise InvalidPayload(f"types has no event type {name}")
    return frozenset(names)


def position(command: Subscribe | GetEvents, *, head: int, default: int) -> StreamPosition:
    """Return the position after which a reader continues; without a view it is between two events.

    Args:
        default: the event number after which a reader continues if it names no position.

    Raises:
        CommandRejected: ``cursor_beyond_head``; ``details.head`` names the newest event.
        InvalidPayload: ``after_seq`` is given together with ``after``, or without a view.
    """
    if command.after_seq is None:
        after = position_after_event(
            default if command.after is None else cursor_seq(command.after)
        )
    elif command.view is None or command.after is not None:
        raise InvalidPayload("after_seq is for a view, and in place of after")
    else:
        seq, index = divmod(command.after_seq, FRAMES_MAX)
        after = StreamPosition(seq, index + 1)
    if after.seq > head:
        raise CommandRejected("cursor_beyond_head", details={"head": cursor(head)})
    return after


async def check_pruned(
    store: Store, after: int, filter_: EventFilter, *, head: int
) -> Literal[True] | UnsetType:
    """Return True if a reader that continues after ``after`` receives some text again, because deltas
    were joined; else UNSET.
    """
    if 0 < after < head and await store.is_pruned(after, filter_):
        return True
    return UNSET
