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
    """An event on its way into the log: numbered by the store, which owns the counter.

    Args:
        type: the event's name on the wire.
        run_id: the run it belongs to, or the client's own call (``wire.events.thread_of``).
        event: the payload, for the projections.
        tail: the encoded line from behind its number on (``codec.encode_event_tail``).
        ts: RFC 3339 UTC, the same text that stands in ``tail``.
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
        on_failure: called instead if the commit failed: with ``StoreInDoubt`` if it may turn out
            after a restart that it did not, else it is certain that it did.
        owed: what ends a run that nobody carries on, decided on the log alone. It is committed also
            behind a batch that failed, and if need be into the space that is kept for it.
    """

    records: tuple[Record, ...]
    on_commit: Callable[[tuple[StoredEvent, ...]], None]
    on_failure: Callable[[StoreError], None]
    artifacts: tuple[Artifact, ...] = ()
    owed: bool = False


def put_at(batch: Batch) -> str:
    """Return when a batch's artifacts count as put: with its events, and long ago without any."""
    return batch.records[0].ts if batch.records else ""


class EventFilter(msgspec.Struct, frozen=True):
    """Which events a reader wants; None means all. ``run_id`` may name a client's own call as well."""

    session_id: str | None = None
    run_id: str | None = None
    types: frozenset[str] | None = None


class Old(msgspec.Struct, frozen=True):
    """The deltas that may be pruned.

    Args:
        ended_before: RFC 3339 UTC; messages and tool executions that ended before this time.
        until: of those, the ones that ended with this event or an earlier one. Nobody may hold lines
            of such an event's message and read others of it later.
    """

    ended_before: str
    until: int


class Pruned(msgspec.Struct, frozen=True):
    """The result of one step of pruning: removed lines, and whether more may follow."""

    deltas: int
    more: bool
