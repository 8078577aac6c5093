"""Batches between ``submit`` and their one callback: the part of every store in the event loop.

It tracks their order and size, the ``head`` that the loop knows, and the count of stored artifacts. How
a batch is committed is up to the store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import trio

from nousd.errors import StoreError
from nousd.store.interface import PENDING_BATCHES_MAX, PENDING_BYTES_MAX
from nousd.store.records import Batch, StoredEvent

Outcome = tuple[StoredEvent, ...] | StoreError
"""The outcome of a batch: its stored events, or the error."""


class PendingBatches:
    """The batches that have had no callback yet, oldest first.

    Invariants: ``bytes`` is the total size of the batches; every batch is settled once, in the order in
    which it was added; a batch is removed before its callback is called.
    """

    def __init__(self, head: int) -> None:
        self.head = head
        self.bytes = 0
        self.artifacts = 0
        self.artifact_bytes = 0
        self._batches: deque[tuple[Batch, int]] = deque()
        self._added = 0
        self._settled = 0
        self._awaited = 0
        self._progress = trio.lowlevel.ParkingLot()
        self._after_commits: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, batch: Batch) -> int:
        """Add a batch; return its size: the bytes of its lines and artifacts."""
        size = 0
        for record in batch.records:
            size += len(record.tail)
        for artifact in batch.artifacts:
            size += len(artifact.data)
        self._batches.append((batch, size))
        self._added += 1
        self.bytes += size
        return size

    def mark_awaited(self) -> None:
        """Record that a caller waits for one of the batches added so far."""
        self._awaited = self._added

    @property
    def is_awaited(self) -> bool:
        """Return whether a batch that was added before ``mark_awaited`` is still not settled."""
        return self._settled < self._awaited

    def settle(self, outcomes: Iterable[Outcome]) -> None:
        """Settle the oldest batches by calling their callbacks, which may add further batches."""
        for outcome in outcomes:
            batch, size = self._batches.popleft()
            self._settled += 1
            self.bytes -= size
            if isinstance(outcome, StoreError):
                batch.on_failure(outcome)
                continue
            if outcome:
                self.head = outcome[-1].seq
            for artifact in batch.artifacts:
                self.put(len(artifact.data))
            batch.on_commit(outcome)
        for callback in self._after_commits:
            callback()
        self._progress.unpark_all()

    def after_commits(self, callback: Callable[[], None]) -> None:
        """See ``Store.after_commits``."""
        self._after_commits.append(callback)

    def put(self, size_bytes: int) -> None:
        """Count an artifact that was stored."""
        self.artifacts += 1
        self.artifact_bytes += size_bytes

    def fail_all(self, error: StoreError) -> None:
        """Settle every batch as failed."""
        self.settle([error] * len(self._batches))

    async def wait_room(self) -> None:
        if len(self._batches) > 1:
            # A producer that is ahead of the commits lets other tasks run.
            await trio.lowlevel.checkpoint()
        else:
            # A schedule point would take the interpreter lock from the thread that commits the batch.
            await trio.lowlevel.checkpoint_if_cancelled()
        while self.bytes >= PENDING_BYTES_MAX or len(self._batches) >= PENDING_BATCHES_MAX:
            await self._progress.park()

    async def wait_settled(self) -> None:
        """Wait until everything added so far is settled."""
        await trio.lowlevel.checkpoint()
        added = self._added
        while self._settled < added:
            await self._progress.park()
