"""The records of the log: events, batches, filters, pruning.

What the events mean is not known here.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from nousd.errors import StoreError
from nousd.store.artifacts import Artifact
from nousd.wire.events import Event


class Record(msgspec.Struct, frozen=True):
    """An event on its way into the log; the store gives it its number.

    Args:
        type: the event's name on the wire.
        run_id: the run of the event, or the client's own call (``wire.events.thread_of``).
        event: the payload, for the projections.
        tail: the encoded line after its number (``codec.encode_event_tail``).
        ts: RFC 3339 UTC, the same text as in ``tail``.
    """

    type: str
    session_id: str
    run_id: str | None
    event: Event
    tail: bytes
    ts: str


class StoredEvent(msgspec.Struct, frozen=True):
    """An event in the log. ``line`` is the whole NDJSON line with its LF."""

    seq: int
    type: str
    session_id: str
    run_id: str | None
    line: bytes

    @property
    def size(self) -> int:
        """The bytes of its line."""
        return len(self.line)


class Batch(msgspec.Struct, frozen=True):
    """Records that are committed together or not at all.

    Args:
        on_commit: called in the event loop with the stored events once they are committed; durably,
            unless every record is a delta.
        on_failure: called instead if the commit failed: with ``StoreInDoubt`` if a restart may show
            that it did not fail, otherwise the failure is certain.
        owed: the batch ends a run that nobody carries on, and was decided on the log alone. It is
            committed even after a batch that failed, and if need be into the reserved space.
    """

    records: tuple[Record, ...]
    on_commit: Callable[[tuple[StoredEvent, ...]], None]
    on_failure: Callable[[StoreError], None]
    artifacts: tuple[Artifact, ...] = ()
    owed: bool = False


def get_put_time(batch: Batch) -> str:
    """Return the time that a batch's artifacts count as put: that of its events, or long ago if it has
    none.
    """
    return batch.records[0].ts if batch.records else ""


class EventFilter(msgspec.Struct, frozen=True):
    """The events that a reader wants; None means all. ``run_id`` may also name a client's own call."""

    session_id: str | None = None
    run_id: str | None = None
    types: frozenset[str] | None = None


class OldDeltas(msgspec.Struct, frozen=True):
    """The deltas that may be pruned.

    Args:
        ended_before: RFC 3339 UTC; messages and tool executions that ended before this time.
        until: only messages and tool executions that ended with this event or an earlier one. No reader
            may hold lines of such a message and read others of it later.
    """

    ended_before: str
    until: int


class PruneResult(msgspec.Struct, frozen=True):
    """The result of one step of pruning: the number of removed lines, and whether more may follow."""

    deltas: int
    more: bool
