"""The records of the log: events, batches, filters, pruning.

This module does not interpret the events.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from nousd.errors import StoreError
from nousd.store.artifacts import Artifact
from nousd.wire.events import Event


class Record(msgspec.Struct, frozen=True):
    """An event to be stored; the store assigns its number.

    Args:
        type: the event's name on the wire.
        run_id: the run of the event, or the id of the client's own call (``wire.events.thread_of``).
        event: the payload, for the projections.
        tail: the part of the encoded line after the number (``codec.encode_event_tail``).
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
        """The length of the line in bytes."""
        return len(self.line)


class Batch(msgspec.Struct, frozen=True):
    """Records that are committed together or not at all.

    Args:
        on_commit: called in the event loop with the stored events once they are committed. The commit
            is durable unless every record is a delta.
        on_failure: called instead if the commit failed. After ``StoreInDoubt``, a restart may show that
            the batch was committed; after any other error, it certainly was not.
        closes_run: the batch ends a run that no longer executes, and was decided on the log alone. It is
            committed even after a failed batch, and into the reserved space if necessary.
    """

    records: tuple[Record, ...]
    on_commit: Callable[[tuple[StoredEvent, ...]], None]
    on_failure: Callable[[StoreError], None]
    artifacts: tuple[Artifact, ...] = ()
    closes_run: bool = False


def get_put_time(batch: Batch) -> str:
    """Return the time when the artifacts of a batch count as put: the time of its events, or the empty
    string, which precedes all times, if it has none.
    """
    return batch.records[0].ts if batch.records else ""


class EventFilter(msgspec.Struct, frozen=True):
    """A filter of events; None matches all. ``run_id`` may also name a client's own call."""

    session_id: str | None = None
    run_id: str | None = None
    types: frozenset[str] | None = None


class OldDeltas(msgspec.Struct, frozen=True):
    """The deltas that may be pruned.

    Args:
        ended_before: RFC 3339 UTC; only messages and tool executions that ended before this time.
        until: only messages and tool executions whose end event has at most this number. No reader may
            have read a part of such a message and still need the rest.
    """

    ended_before: str
    until: int


class PruneResult(msgspec.Struct, frozen=True):
    """The result of one pruning step: the number of removed lines, and whether to run another."""

    deltas: int
    more: bool
