"""The one thread that writes: group commit, numbers, and what a failed commit takes with it.

Theory of operation. The event loop hands over batches, the thread takes all that are waiting (up to a
bound) and commits them as one transaction, then tells the loop with one call what became of each.
While a commit is on its way to the disk the next group gathers, so the cost of an fsync is shared by
whoever waited for it.

Failure. A batch is decided on the state that the batches before it leave. So when a group fails, all
that was submitted before the loop learned of it must fail too. Each batch carries the loop's ``epoch``;
a failure makes the writer's epoch larger than that of the failed group, and what arrives with a
smaller one is failed unseen. The loop takes over the new epoch together with the failure.

Numbers. ``log_state.next_seq`` says from where the next start of the daemon may number. It is raised by
a whole block, in the transaction that first needs a number beyond it, and that transaction is synced;
a clean close lowers it to the exact next number. So a number that was ever seen is never given to
another event, also when events that were not synced are lost with the power.

Chores. Between two groups the thread may be given other work on the log, such as the joining of old
deltas. A chore is one transaction, as short as a group; its failure is its own, and fails no batch.

The thread knows neither trio nor callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from queue import Empty, SimpleQueue
from typing import Any, Final

import apsw
import msgspec

from nousd.errors import StoreError
from nousd.machine.projection import ForgetSession, row_changes
from nousd.store import _row_writes
from nousd.store._database import BUSY_MS_MAX
from nousd.store._pending import Outcome, batch_bytes
from nousd.store.interface import Batch, StoredEvent
from nousd.wire.codec import number_event
from nousd.wire.events import DELTA_EVENTS
from nousd.wire.lifting import EVENT_SCHEMA_VERSION

NUMBERS_PER_BLOCK: Final = 100_000
"""Numbers reserved with one fsync: a gap of at most this many after a crash, and one sync per this
many deltas."""

_INSERT_EVENT: Final = f"""
    INSERT INTO events (schema_version, seq, type, session_id, run_id, line)
    VALUES ({EVENT_SCHEMA_VERSION}, ?, ?, ?, ?, ?)
"""

GROUP_EVENTS_MAX: Final = 4096
GROUP_BYTES_MAX: Final = 4 * 1024 * 1024
"""A group is closed once it is past one of these; so one transaction, and the wait of whoever comes
next, stays short. One batch is never split, however large."""


class Job(msgspec.Struct, frozen=True):
    """A batch, and the epoch in which it was decided."""

    epoch: int
    batch: Batch


class Chore(msgspec.Struct, frozen=True):
    """Work on the log that is no batch.

    Args:
        work: called in the writer's thread, inside of a transaction of its own.
        report: called there with what ``work`` returned once that is committed, or with a StoreError:
            then nothing of it is in the log.
    """

    work: Callable[[apsw.Connection], Any]
    report: Callable[[Any], None]


class _Stop:
    """Stands in the queue behind the last job."""


STOP: Final = _Stop()

Report = Callable[[Sequence[Outcome], int], None]
"""Called in the writer's thread with what became of the oldest jobs, and the epoch from now on."""


class Writer:
    """Owns the writing connection. ``run`` is the thread; ``jobs`` is the way to it.

    Invariants between groups: no event has the number ``_next`` or a larger one, nor ever had;
    ``_next <= _reserved``; where they differ, ``_reserved`` is on the disk as ``next_seq``.
    """

    def __init__(self, connection: apsw.Connection, next_seq: int, report: Report) -> None:
        self.jobs: SimpleQueue[Job | Chore | _Stop] = SimpleQueue()
        self._connection = connection
        self._report = report
        self._epoch = 0
        self._failure = StoreError("nothing failed yet")
        self._stopping = False
        self._synchronous = ""
        self._next = next_seq
        self._reserved = next_seq
        self._must_truncate = False
        self._chore: Chore | None = None

    def run(self) -> None:
        """Commits until ``STOP`` is taken from the queue, then closes the connection."""
        try:
            while not self._stopping:
                group = self._take_group()
                if group:
                    self._report(self._outcomes(group), self._epoch)
                self._do_chore()
                self._truncate_wal()
            self._write_exact_next()
        finally:
            self._connection.close()

    def _take_group(self) -> list[Job]:
        """Waits for a job, and takes those that are waiting behind it."""
        group: list[Job] = []
        events = size = 0
        job = self.jobs.get()
        while True:
            if isinstance(job, _Stop):
                self._stopping = True
                return group
            if isinstance(job, Chore):
                self._chore = job
                return group
            group.append(job)
            events += len(job.batch.records)
            size += batch_bytes(job.batch)
            if events >= GROUP_EVENTS_MAX or size >= GROUP_BYTES_MAX:
                return group
            try:
                job = self.jobs.get_nowait()
            except Empty:
                return group

    def _outcomes(self, group: list[Job]) -> list[Outcome]:
        stale = sum(1 for _ in takewhile(lambda job: job.epoch < self._epoch, group))
        outcomes: list[Outcome] = [self._failure] * stale
        batches = [job.batch for job in group[stale:]]
        if not batches:
            return outcomes
        try:
            return [*outcomes, *self._commit(batches)]
        except apsw.Error as error:
            self._failure = StoreError(f"the log could not be written: {error}")
            self._failure.__cause__ = error
            self._epoch = group[-1].epoch + 1
            return [self._failure] * len(group)

    def _commit(self, batches: list[Batch]) -> list[tuple[StoredEvent, ...]]:
        """Commits the batches as one transaction.

        Raises:
            apsw.Error: nothing of it is in the log, and no number was used up.
        """
        stored = _numbered(batches, self._next)
        after = self._next + sum(len(events) for events in stored)
        reserved = self._reserved if after <= self._reserved else after + NUMBERS_PER_BLOCK
        self._undo_open_transaction()
        self._synchronize(fully=reserved != self._reserved or any(map(_is_durable, batches)))
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            if reserved != self._reserved:
                self._write_next(reserved)
            self._write(batches, stored)
            self._connection.execute("COMMIT")
        except apsw.Error:
            self._undo_open_transaction()
            raise
        self._next, self._reserved = after, reserved
        return stored

    def _write(self, batches: list[Batch], stored: list[tuple[StoredEvent, ...]]) -> None:
        self._connection.executemany(
            _INSERT_EVENT,
            [
                (event.seq, event.type, event.session_id, event.run_id, event.line)
                for events in stored
                for event in events
            ],
        )
        for batch, events in zip(batches, stored, strict=True):
            for artifact in batch.artifacts:
                _row_writes.put_artifact(self._connection, artifact)
            for record, event in zip(batch.records, events, strict=True):
                for change in row_changes(record.event, event.seq, record.ts):
                    _row_writes.apply(self._connection, change)
                    self._must_truncate |= isinstance(change, ForgetSession)

    def _do_chore(self) -> None:
        """Does the chore that closed the group, if one did."""
        chore, self._chore = self._chore, None
        if chore is None:
            return
        self._undo_open_transaction()
        outcome: Any
        try:
            self._synchronize(fully=False)
            self._connection.execute("BEGIN")
            outcome = chore.work(self._connection)
            self._connection.execute("COMMIT")
        except (apsw.Error, msgspec.MsgspecError) as error:
            self._undo_open_transaction()
            outcome = StoreError(f"the log could not be written: {error}")
            outcome.__cause__ = error
        chore.report(outcome)

    def _write_next(self, seq: int) -> None:
        self._connection.execute("UPDATE log_state SET next_seq = ?", (seq,))

    def _synchronize(self, *, fully: bool) -> None:
        """Sets whether commits from now on are on the disk when they return."""
        wanted = "FULL" if fully else "NORMAL"
        if wanted != self._synchronous:
            # Not through `execute`: its cache would skip the preparing, which is what sets it.
            self._connection.pragma("synchronous", wanted)
            self._synchronous = wanted

    def _undo_open_transaction(self) -> None:
        """Rolls back what a failure left open; if that fails too, the next group tries again."""
        if not self._connection.in_transaction:
            return
        try:
            self._connection.execute("ROLLBACK")
        except apsw.Error:
            return

    def _truncate_wal(self) -> None:
        """Removes deleted content from the WAL too; a reader that is busy puts it off."""
        if not self._must_truncate:
            return
        self._connection.set_busy_timeout(0)
        try:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            self._must_truncate = False
        except apsw.Error:
            return
        finally:
            self._connection.set_busy_timeout(BUSY_MS_MAX)

    def _write_exact_next(self) -> None:
        """Gives back the rest of the block. If it fails, the next start leaves a gap: no harm."""
        if self._next == self._reserved:
            return
        self._undo_open_transaction()
        try:
            self._synchronize(fully=True)
            self._write_next(self._next)
        except apsw.Error:
            return


def _numbered(batches: list[Batch], seq: int) -> list[tuple[StoredEvent, ...]]:
    """Returns the events of each batch, numbered from ``seq`` on."""
    stored = []
    for batch in batches:
        events = tuple(
            StoredEvent(
                number,
                record.type,
                record.session_id,
                record.run_id,
                number_event(number, record.tail),
            )
            for number, record in enumerate(batch.records, seq)
        )
        seq += len(events)
        stored.append(events)
    return stored


def _is_durable(batch: Batch) -> bool:
    """Whether its commit must be on the disk before anybody is told."""
    if batch.artifacts or not batch.records:
        return True
    return any(record.type not in DELTA_EVENTS for record in batch.records)
