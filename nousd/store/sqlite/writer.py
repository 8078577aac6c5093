"""The writer thread: group commit, and the failure of jobs after a failed commit.

Theory of operation. The event loop queues batches; the thread takes all that are waiting (up to a
bound), commits them as one transaction, then reports all outcomes to the loop with one call. While a
commit is on its way to the disk, the next group gathers, so its members share the cost of an fsync.

Failure. A batch is decided on the state that the batches before it leave. So when a group fails, every
batch submitted before the loop learned of the failure must fail too. Each batch carries the loop's
``epoch``; a failure makes the writer's epoch larger than that of the failed group, and batches with a
smaller one fail without being tried. The loop adopts the new epoch together with the failure.

Followers. Some events are followed by others at once: a message of a run by the input of the next model
call, the start of a message by its content, the end of an answer by its first call or the end of its
turn, and the start of a call that has no effect by its end. Alone they would cost a commit, and the next
batch, which a caller waits for, would wait for both commits. So a group that ends with such an event is
held open for a moment, unless a caller waits for it. Each follower may be followed in turn.

A full disk. While the reserve is not in place, nothing new begins: a batch that does not close a run is
refused unless the space for the reserve can be allocated again. So the first input for which there is
space ends this state, without a timer. Batches that close runs are decided on the log alone; they are
always tried, even after a failure.

Chores. Between two groups the thread can do other work on the log, such as joining old deltas: one
transaction, as short as a group, whose failure fails no batch.

The thread does not know trio, callbacks, or the content of a transaction (``commits``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final

import apsw
import msgspec
from msgspec import UNSET

from nousd.errors import StoreError, StoreFull, StoreInDoubt, WriteFailed
from nousd.store.pending import Outcome
from nousd.store.records import Batch
from nousd.store.sqlite.commits import Commits
from nousd.store.sqlite.reserve import Reserve
from nousd.wire.events import EntryAppended, MessageEnd, MessageStart, ToolCallStarted
from nousd.wire.objects.entries import MessageEntry

GROUP_EVENTS_MAX: Final = 4096
GROUP_BYTES_MAX: Final = 4 * 1024 * 1024
"""A group is closed once it exceeds one of these limits, so that its transaction, and the wait of the
next batch, stay short. One batch is never split, however large."""

_FOLLOWED: Final = frozenset((MessageStart, MessageEnd, ToolCallStarted))

FOLLOWING_SECONDS_MAX: Final = 0.002
"""How long a group is held open for the next follower: about the time of four commits on a fast disk."""

HOLDING_SECONDS_MAX: Final = 0.01
"""How long a group is held open in all."""


class Job(msgspec.Struct, frozen=True):
    """A batch of ``size`` bytes, the epoch in which it was decided, and whether it ``is_followed``."""

    epoch: int
    batch: Batch
    size: int
    is_followed: bool = False


class Chore(msgspec.Struct, frozen=True):
    """Work on the log that is not a batch.

    Args:
        work: called in the writer thread, inside a transaction of its own.
        report: called in that thread with the result of ``work`` after its commit, or with a StoreError
            if none of its changes are in the log.
        durable: whether its changes must be on disk when it is reported.
        empties_wal: whether to empty the WAL afterwards, because it holds deleted content.
    """

    work: Callable[[apsw.Connection], Any]
    report: Callable[[Any], None]
    durable: bool = False
    empties_wal: bool = False


class _Stop:
    """The last item of the queue."""


STOP: Final = _Stop()


class Wake:
    """Wakes the thread when the WAL needs tidying, or when a group must not be held open any longer."""


WAKE: Final = Wake()

Report = Callable[[Sequence[Outcome], int], None]
"""Called in the writer thread with the outcomes of the oldest jobs and the writer's new epoch."""


class Writer:
    """The writer; ``run`` is the function of its thread, ``jobs`` its queue."""

    def __init__(self, commits: Commits, reserve: Reserve, report: Report) -> None:
        self.jobs: SimpleQueue[Job | Chore | Wake | _Stop] = SimpleQueue()
        self._commits = commits
        self._reserve = reserve
        self._report = report
        self._epoch = 0
        self._failure: StoreError = WriteFailed("nothing failed yet")
        self._stopping = False
        self._chore: Chore | None = None

    def run(self) -> None:
        """Commit until the queue yields ``STOP``, then close the connection."""
        try:
            while not self._stopping:
                group = self._take_group()
                if group:
                    self._report(self._outcomes(group), self._epoch)
                self._do_chore()
                self._commits.tidy(self._wake)
        finally:
            self._commits.close()

    def _wake(self) -> None:
        """Make the thread tidy the WAL even if no job arrives."""
        self.jobs.put(WAKE)

    def _take_group(self) -> list[Job]:
        """Wait for a job, and take the jobs queued behind it."""
        group: list[Job] = []
        events = size = 0
        until = math.inf
        job = self.jobs.get()
        while True:
            if isinstance(job, _Stop):
                self._stopping = True
                return group
            if isinstance(job, Chore):
                self._chore = job
                return group
            if isinstance(job, Wake):
                return group
            group.append(job)
            events += len(job.batch.records)
            size += job.size
            if events >= GROUP_EVENTS_MAX or size >= GROUP_BYTES_MAX:
                return group
            try:
                if job.is_followed:
                    now = monotonic()
                    until = min(until, now + HOLDING_SECONDS_MAX)
                    job = self.jobs.get(timeout=max(0.0, min(FOLLOWING_SECONDS_MAX, until - now)))
                else:
                    job = self.jobs.get_nowait()
            except Empty:
                return group

    def _do_chore(self) -> None:
        """Run the chore that closed the group, if one did."""
        chore, self._chore = self._chore, None
        if chore is None:
            return
        outcome: Any
        try:
            outcome = self._commits.do(
                chore.work, durable=chore.durable, empties_wal=chore.empties_wal
            )
        except StoreError as failure:
            outcome = failure
        chore.report(outcome)

    def _outcomes(self, group: list[Job]) -> list[Outcome]:
        """Commit a group; its batches that close runs get a second try once the reserve is released."""
        had_reserve = self._reserve.in_place
        outcomes = self._attempt(group)
        if had_reserve and not self._reserve.in_place:
            repeatable = [
                index for index, job in enumerate(group) if _can_repeat(job, outcomes[index])
            ]
            repeated = self._attempt([group[index] for index in repeatable])
            for index, outcome in zip(repeatable, repeated, strict=True):
                outcomes[index] = outcome
        return outcomes

    def _attempt(self, jobs: list[Job]) -> list[Outcome]:
        """Commit the admissible jobs in one transaction; return the outcome of each job."""
        refusals = [self._refusal(job) for job in jobs]
        batches = [
            job.batch for job, refusal in zip(jobs, refusals, strict=True) if refusal is None
        ]
        try:
            stored = iter(self._commits.commit(batches) if batches else ())
        except StoreError as failure:
            self._commits.write_stats.count_failed()
            self._fail_what_follows(jobs, failure)
            return [failure if refusal is None else refusal for refusal in refusals]
        return [next(stored) if refusal is None else refusal for refusal in refusals]

    def _refusal(self, job: Job) -> StoreError | None:
        """Return the error of a job that must not be tried; None if it may be tried."""
        if job.batch.closes_run:
            return None
        if job.epoch < self._epoch:
            return self._failure
        if self._reserve.in_place:
            return None
        try:
            self._reserve.require()
        except StoreFull as failure:
            self._fail_what_follows([job], failure)
            return failure
        return None

    def _fail_what_follows(self, jobs: list[Job], failure: StoreError) -> None:
        """Fail every batch submitted before the loop can know of the failure of these jobs."""
        self._epoch = max(self._epoch, jobs[-1].epoch + 1)
        # Unlike the failed group, these batches were certainly not written.
        self._failure = (
            WriteFailed("an earlier commit failed")
            if isinstance(failure, StoreInDoubt)
            else failure
        )


def is_followed(batch: Batch) -> bool:
    """Return whether another batch is expected at once, judging by the events."""
    if not batch.records:
        return False
    event = batch.records[-1].event
    if type(event) is EntryAppended:
        # A client's own message has no run, and nothing need follow it.
        return isinstance(event.entry, MessageEntry) and event.run_id is not UNSET
    # ``isinstance`` takes ten times as long to return False for a struct.
    return type(event) in _FOLLOWED


def _can_repeat(job: Job, outcome: Outcome) -> bool:
    """Return whether a failed batch may be tried again: it closes a run and is certainly not logged."""
    is_certain = isinstance(outcome, StoreError) and not isinstance(outcome, StoreInDoubt)
    return job.batch.closes_run and is_certain
