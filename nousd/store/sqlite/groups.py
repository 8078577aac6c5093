"""Numbers the events of a group of batches, and merges its changes of rows, for one transaction."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nousd.machine.projection.row_changes import ForgetSession, PutSession, RowChange, TouchSession
from nousd.store.records import Batch, StoredEvent
from nousd.wire.codec.envelope import number_event
from nousd.wire.events import DELTA_EVENTS


def number_events(batches: Sequence[Batch], seq: int) -> tuple[list[tuple[StoredEvent, ...]], int]:
    """Return the events of each batch, numbered from ``seq`` on, and the next number."""
    stored = []
    for batch in batches:
        events = tuple(
            [
                StoredEvent(
                    number,
                    record.type,
                    record.session_id,
                    record.run_id,
                    number_event(number, record.tail),
                )
                for number, record in enumerate(batch.records, seq)
            ]
        )
        seq += len(events)
        stored.append(events)
    return stored, seq


def merge_touches(changes: Sequence[RowChange]) -> list[RowChange]:
    """Keep only the last update time of each session, after the other changes: no reader sees the middle
    of a transaction, and each update would change the indexes.
    """
    ordered: list[RowChange] = []
    touches: dict[str, TouchSession] = {}
    for change in changes:
        # ``isinstance`` takes ten times as long to return False for a struct.
        if type(change) is TouchSession:
            earlier = touches.get(change.session_id)
            if change.queue_revision is None and earlier is not None:
                revision = earlier.queue_revision
                change = msgspec.structs.replace(change, queue_revision=revision)  # noqa: PLW2901
            touches[change.session_id] = change
            continue
        if (
            type(change) is PutSession or type(change) is ForgetSession
        ) and change.session_id in touches:
            # A new session starts with an update time of its own. A deleted one keeps its last, so that
            # a list can continue after it.
            ordered.append(touches.pop(change.session_id))
        ordered.append(change)
    return [*ordered, *touches.values()]


def is_durable(batch: Batch) -> bool:
    """Return whether the commit of a batch must be on disk before anyone sees it."""
    if batch.artifacts or not batch.records:
        return True
    return any(record.type not in DELTA_EVENTS for record in batch.records)
