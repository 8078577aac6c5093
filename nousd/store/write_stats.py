"""Counts of a store's writes since it was opened.

One thread updates plain numbers; the event loop reads them without a lock. A reading may therefore
include only some of the updates of one commit; each number is correct.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from nousd.store.pending import PendingBatches
from nousd.store.records import StoredEvent
from nousd.wire.objects.metrics import Durations, LogMetrics

SYNC_BOUNDS: Final = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""Bucket bounds in seconds: from a disk that acknowledges syncs too early to a failing one."""


class WriteStats:
    """The counters. Only the writer thread calls methods other than ``read``."""

    __slots__ = (
        "_bytes",
        "_checkpoint_seconds",
        "_checkpoints",
        "_events",
        "_failures",
        "_sync_seconds",
        "_synced",
        "_unsynced",
    )

    def __init__(self) -> None:
        self._synced = [0] * (len(SYNC_BOUNDS) + 1)
        self._sync_seconds = 0.0
        self._unsynced = self._failures = 0
        self._events = self._bytes = 0
        self._checkpoints = 0
        self._checkpoint_seconds = 0.0

    def count_synced(self, seconds: float) -> None:
        """Count a synced commit and the seconds that it waited for the disk."""
        self._synced[bisect_left(SYNC_BOUNDS, seconds)] += 1
        self._sync_seconds += seconds

    def count_unsynced(self) -> None:
        """Count a commit that did not wait for the disk."""
        self._unsynced += 1

    def count_failed(self) -> None:
        """Count a commit that failed."""
        self._failures += 1

    def count_written(self, stored: Iterable[tuple[StoredEvent, ...]]) -> None:
        """Count the events of a commit."""
        sizes = [len(event.line) for events in stored for event in events]
        self._events += len(sizes)
        self._bytes += sum(sizes)

    def count_checkpoint(self, seconds: float) -> None:
        """Count a checkpoint, which moves content from the WAL into the database."""
        self._checkpoints += 1
        self._checkpoint_seconds += seconds

    def read(self, pending: PendingBatches, *, database_bytes: int, wal_bytes: int) -> LogMetrics:
        """Return the counts together with current sizes."""
        counts = tuple(self._synced)
        return LogMetrics(
            synced_commits=sum(counts),
            unsynced_commits=self._unsynced,
            failed_commits=self._failures,
            sync_seconds=Durations(bounds=SYNC_BOUNDS, counts=counts, sum=self._sync_seconds),
            events=self._events,
            bytes=self._bytes,
            artifacts=pending.artifacts,
            artifact_bytes=pending.artifact_bytes,
            checkpoints=self._checkpoints,
            checkpoint_seconds=self._checkpoint_seconds,
            queued_batches=len(pending),
            queued_bytes=pending.bytes,
            database_bytes=database_bytes,
            wal_bytes=wal_bytes,
        )
