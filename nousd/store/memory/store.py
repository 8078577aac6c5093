"""The log in memory, for tests under a fake clock and for replay.

It gives the same answers as ``sqlite`` without a file, a thread or a clock. Batches submitted in one
tick of the event loop are committed together in a later one, so a run under an autojump clock is
deterministic. Its size is unbounded, because it is a log; nothing in it is durable.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

import trio

from nousd.errors import StoreError, StoreFull
from nousd.machine.projection.row_projection import row_changes
from nousd.store.artifacts import Artifact, ArtifactInfo, ArtifactSource
from nousd.store.interface import Store
from nousd.store.memory import artifacts as _artifacts_memory
from nousd.store.memory import pruning as _pruning_memory
from nousd.store.memory import queries
from nousd.store.memory.rows import Rows
from nousd.store.pending import Outcome, PendingBatches
from nousd.store.records import (
    Batch,
    EventFilter,
    OldDeltas,
    PruneResult,
    StoredEvent,
    get_put_time,
)
from nousd.store.write_stats import WriteStats
from nousd.wire.codec.envelope import number_event
from nousd.wire.objects.metrics import LogMetrics

P = ParamSpec("P")
T = TypeVar("T")


@asynccontextmanager
async def open_store(*, before_commit: Callable[[], None] = lambda: None) -> AsyncIterator[Store]:
    """Open an empty log. Leaving the block commits the queue.

    Args:
        before_commit: called before each commit. A StoreError that it raises fails the commit; a
            StoreFull spares batches with ``closes_run``, for which there is always space.
    """
    store = MemoryStore(before_commit)
    try:
        yield store
    finally:
        with trio.CancelScope(shield=True):
            await store.aclose()


def _read(
    query: Callable[Concatenate[Rows, P], T],
) -> Callable[Concatenate[MemoryStore, P], Coroutine[Any, Any, T]]:
    """Return the method of the store that runs a query on its rows."""

    async def read(self: MemoryStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        await trio.lowlevel.checkpoint()
        return query(self._rows, *args, **kwargs)

    return read


class MemoryStore:
    """See ``interface.Store``."""

    def __init__(self, before_commit: Callable[[], None]) -> None:
        self._before_commit = before_commit
        self._rows = Rows()
        self._pending = PendingBatches(head=0)
        self._write_stats = WriteStats()
        self._queued: list[Batch] = []
        self._token = trio.lowlevel.current_trio_token()
        self._closing = False

    @property
    def head(self) -> int:
        return self._pending.head

    def after_commits(self, callback: Callable[[], None]) -> None:
        self._pending.after_commits(callback)

    async def wait_room(self) -> None:
        await self._pending.wait_room()

    async def figures(self) -> LogMetrics:
        await trio.lowlevel.checkpoint()
        return self._write_stats.read(self._pending, database_bytes=0, wal_bytes=0)

    def submit(self, batch: Batch) -> None:
        if not self._queued:
            self._token.run_sync_soon(self._commit)
        self._queued.append(batch)
        self._pending.add(batch)

    def commit_now(self) -> None:
        """Do nothing: no batch is held open here."""

    async def flush(self) -> None:
        await self._pending.wait_settled()

    async def aclose(self) -> None:
        """Commit the queue; a later submit fails."""
        group = self._take_group()
        outcomes = self._outcomes(group)
        self._closing = True
        self._pending.settle(outcomes)
        await self.flush()

    def _commit(self) -> None:
        self._pending.settle(self._outcomes(self._take_group()))

    def _take_group(self) -> list[Batch]:
        group, self._queued = self._queued, []
        return group

    def _outcomes(self, group: list[Batch]) -> list[Outcome]:
        if self._closing:
            return [StoreError("the store is closed")] * len(group)
        failure: StoreError | None = None
        try:
            self._before_commit()
        except StoreError as error:
            failure = error
        seq = self.head
        outcomes: list[Outcome] = []
        for batch in group:
            if failure is not None and not _is_paid_for(batch, failure):
                outcomes.append(failure)
                continue
            stored = self._store_batch(batch, seq)
            self._write_stats.count_written((stored,))
            outcomes.append(stored)
            seq += len(batch.records)
        self._count_commit(failure)
        return outcomes

    def _count_commit(self, failure: StoreError | None) -> None:
        if failure is None:
            self._write_stats.count_unsynced()
        else:
            self._write_stats.count_failed()

    def _store_batch(self, batch: Batch, seq: int) -> tuple[StoredEvent, ...]:
        """Number the events of a batch after ``seq``, and store it."""
        rows = self._rows
        for artifact in batch.artifacts:
            _artifacts_memory.put_whole(rows, artifact, get_put_time(batch))
        stored = []
        for number, record in enumerate(batch.records, seq + 1):
            line = number_event(number, record.tail)
            event = StoredEvent(number, record.type, record.session_id, record.run_id, line)
            stored.append(event)
            rows.events.append(event)
            for change in row_changes(record.event, number, record.ts):
                rows.apply(change)
        return tuple(stored)

    async def put_artifact(
        self, source: ArtifactSource, media_type: str, *, now: str
    ) -> ArtifactInfo:
        data = await _artifacts_memory.read_whole(source)
        self._refuse_if_closing()
        self._before_commit()
        _artifacts_memory.put_whole(self._rows, Artifact(source.artifact_id, media_type, data), now)
        put = _artifacts_memory.renew(self._rows, source.artifact_id, now)
        assert put is not None
        self._pending.put(put.size_bytes)
        return put

    async def renew_artifact(self, artifact_id: str, *, now: str) -> ArtifactInfo | None:
        await trio.lowlevel.checkpoint()
        self._refuse_if_closing()
        return _artifacts_memory.renew(self._rows, artifact_id, now)

    async def drop_artifact(self, artifact_id: str, *, put_before: str) -> bool:
        await trio.lowlevel.checkpoint()
        self._refuse_if_closing()
        if artifact_id in _artifacts_memory.list_unused(self._rows, put_before, limit=sys.maxsize):
            del self._rows.artifacts[artifact_id]
        return False

    def _refuse_if_closing(self) -> None:
        if self._closing:
            raise StoreError("the store is closed")

    async def copy_entries(self, parent_id: str, branch_id: str) -> None:  # noqa: ARG002
        """Copy nothing: the commit that creates a branch copies all entries at once here."""
        await trio.lowlevel.checkpoint()

    async def list_uncreated_branches(self) -> tuple[str, ...]:
        await trio.lowlevel.checkpoint()
        return ()

    async def list_unfinished_deletions(self) -> tuple[str, ...]:
        """Return none: the commit that deletes a session drops its rows."""
        await trio.lowlevel.checkpoint()
        return ()

    async def drop_rows(self, session_id: str) -> bool:  # noqa: ARG002
        await trio.lowlevel.checkpoint()
        return False

    async def prune_deltas(self, old: OldDeltas) -> PruneResult:
        await trio.lowlevel.checkpoint()
        self._refuse_if_closing()
        return _pruning_memory.prune(self._rows, old)

    # --- reads -------------------------------------------------------------------------------

    async def events_after(
        self,
        after: int,
        event_filter: EventFilter,
        *,
        limit: int,
        bytes_max: int,
        until: int | None = None,
    ) -> tuple[StoredEvent, ...]:
        head = self.head if until is None else min(until, self.head)
        await trio.lowlevel.checkpoint()
        return queries.events_after(
            self._rows, after, event_filter, head=head, limit=limit, bytes_max=bytes_max
        )

    is_pruned = _read(queries.is_pruned)
    defaults = _read(queries.defaults)
    session = _read(queries.session)
    sessions = _read(queries.sessions)
    search = _read(queries.search)
    children = _read(queries.children)
    list_overridden_sessions = _read(queries.list_overridden_sessions)
    next_deletion = _read(queries.next_deletion)
    entry = _read(queries.entry)
    path = _read(queries.path)
    tree = _read(queries.tree)
    pending_inputs = _read(queries.pending_inputs)
    pending_counts = _read(queries.pending_counts)
    input = _read(queries.input)
    input_by_client_id = _read(queries.input_by_client_id)
    run = _read(queries.run)
    runs = _read(queries.runs)
    open_runs = _read(queries.open_runs)
    tool_call = _read(queries.tool_call)
    tool_call_by_client_id = _read(queries.tool_call_by_client_id)
    tool_calls = _read(queries.tool_calls)
    list_unanswered_calls = _read(queries.list_unanswered_calls)
    open_client_calls = _read(queries.open_client_calls)
    artifact_info = _read(_artifacts_memory.info)
    artifact_range = _read(_artifacts_memory.part)
    artifact = _read(_artifacts_memory.whole)
    list_unused_artifacts = _read(_artifacts_memory.list_unused)


def _is_paid_for(batch: Batch, failure: StoreError) -> bool:
    return batch.closes_run and isinstance(failure, StoreFull)
