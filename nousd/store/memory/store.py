"""The log in memory: for tests under a fake clock, and for a daemon that is to forget everything.

It gives the same answers as ``sqlite`` without a file, a thread or a clock: what is submitted in
one tick of the event loop is committed together in a later one, so a run under an autojump clock is
the same every time. It is unbounded, because it is a log; nothing in it is durable.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import islice

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
from nousd.store.records import Batch, EventFilter, Old, Pruned, StoredEvent, put_at
from nousd.store.rows import Defaults, InputRow, Path, SessionRow, ToolCallRow
from nousd.store.session_list import EVERY_SESSION, SessionFilter, SessionPage
from nousd.store.write_stats import WriteStats
from nousd.wire.codec.envelope import number_event
from nousd.wire.limits import PENDING_COUNTED_MAX
from nousd.wire.objects.entries import Entry
from nousd.wire.objects.inputs import QueuedInput
from nousd.wire.objects.metrics import LogMetrics, PendingInputs
from nousd.wire.responses.runs import RunRecord
from nousd.wire.responses.transcripts import TreeNode


@asynccontextmanager
async def open_store(*, before_commit: Callable[[], None] = lambda: None) -> AsyncIterator[Store]:
    """Open an empty log; leaving the context commits what is queued.

    Args:
        before_commit: called before each commit. A StoreError that it raises fails the commit; a
            StoreFull spares batches that are ``owed``, for which there is always space.
    """
    store = MemoryStore(before_commit)
    try:
        yield store
    finally:
        with trio.CancelScope(shield=True):
            await store.aclose()


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
            stored = self._stored(batch, seq)
            self._write_stats.wrote((stored,))
            outcomes.append(stored)
            seq += len(batch.records)
        self._count_commit(failure)
        return outcomes

    def _count_commit(self, failure: StoreError | None) -> None:
        if failure is None:
            self._write_stats.unsynced()
        else:
            self._write_stats.failed()

    def _stored(self, batch: Batch, seq: int) -> tuple[StoredEvent, ...]:
        """Numbers a batch from behind ``seq`` on, and keeps it."""
        rows = self._rows
        for artifact in batch.artifacts:
            _artifacts_memory.put_whole(rows, artifact, put_at(batch))
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
        if artifact_id in _artifacts_memory.unused(self._rows, put_before):
            del self._rows.artifacts[artifact_id]
        return False

    def _refuse_if_closing(self) -> None:
        if self._closing:
            raise StoreError("the store is closed")

    async def prune_deltas(self, old: Old) -> Pruned:
        await trio.lowlevel.checkpoint()
        self._refuse_if_closing()
        return _pruning_memory.prune(self._rows, old)

    # --- reads -------------------------------------------------------------------------------

    async def events_after(
        self,
        after: int,
        wanted: EventFilter,
        *,
        limit: int,
        bytes_max: int,
        until: int | None = None,
    ) -> tuple[StoredEvent, ...]:
        last = self.head if until is None else min(until, self.head)
        await trio.lowlevel.checkpoint()
        page: list[StoredEvent] = []
        size = 0
        events = self._rows.events
        for index in range(bisect_right(events, after, key=_seq), len(events)):
            event = events[index]
            if event.seq > last:
                break
            if not _matches(event, wanted):
                continue
            size += len(event.line)
            if len(page) == limit or (page and size > bytes_max):
                break
            page.append(event)
        return tuple(page)

    async def is_pruned(self, cursor: int, wanted: EventFilter) -> bool:
        await trio.lowlevel.checkpoint()
        events = self._rows.events
        behind = islice(events, bisect_right(events, cursor, key=_seq), None)
        joined_from = self._rows.joined_from
        return any(
            joined_from.get(event.seq, event.seq) <= cursor and _matches(event, wanted)
            for event in behind
        )

    async def defaults(self) -> Defaults:
        await trio.lowlevel.checkpoint()
        return self._rows.defaults

    async def session(self, session_id: str) -> SessionRow | None:
        await trio.lowlevel.checkpoint()
        return self._rows.sessions.get(session_id)

    async def sessions(
        self,
        wanted: SessionFilter = EVERY_SESSION,
        *,
        limit: int,
        before: str | None,
        offset: int = 0,
    ) -> SessionPage:
        await trio.lowlevel.checkpoint()
        return queries.sessions(self._rows, wanted, limit=limit, before=before, offset=offset)

    async def children(self, session_id: str) -> tuple[str, ...]:
        await trio.lowlevel.checkpoint()
        return queries.children(self._rows, session_id)

    async def overridden(self) -> tuple[str, ...]:
        await trio.lowlevel.checkpoint()
        return queries.overridden(self._rows)

    async def entry(self, session_id: str, entry_id: str) -> Entry | None:
        await trio.lowlevel.checkpoint()
        row = self._rows.entries[session_id].get(entry_id)
        return None if row is None else row.entry

    async def path(self, session_id: str, leaf_id: str, *, limit: int, bytes_max: int) -> Path:
        await trio.lowlevel.checkpoint()
        rows = self._rows.entries[session_id]
        newest_first: list[Entry] = []
        size = 0
        row = rows.get(leaf_id)
        while row is not None:
            size += row.size
            if len(newest_first) == limit or (newest_first and size > bytes_max):
                break
            newest_first.append(row.entry)
            row = None if row.parent_id is None else rows.get(row.parent_id)
        return Path(tuple(reversed(newest_first)), row is not None)

    async def tree(self, session_id: str, *, after: str | None, limit: int) -> tuple[TreeNode, ...]:
        await trio.lowlevel.checkpoint()
        rows = sorted(self._rows.entries[session_id].values(), key=lambda row: row.seq)
        start = _place_behind(after, [row.entry.id for row in rows])
        return tuple(row.node for row in rows[start : start + limit])

    async def pending_inputs(self, session_id: str) -> tuple[QueuedInput, ...]:
        await trio.lowlevel.checkpoint()
        rows = self._rows.inputs[session_id].values()
        return tuple(row.input for row in rows if row.state == "pending")

    async def pending_counts(self) -> PendingInputs:
        await trio.lowlevel.checkpoint()
        pending = (
            row.input.kind
            for rows in self._rows.inputs.values()
            for row in rows.values()
            if row.state == "pending"
        )
        counts: Counter[str] = Counter(islice(pending, PENDING_COUNTED_MAX + 1))
        return PendingInputs.of(counts, truncated=counts.total() > PENDING_COUNTED_MAX)

    async def input_by_client_id(self, session_id: str, client_message_id: str) -> InputRow | None:
        await trio.lowlevel.checkpoint()
        rows = self._rows.inputs[session_id].values()
        return next((row for row in rows if row.input.client_message_id == client_message_id), None)

    async def run(self, run_id: str) -> RunRecord | None:
        await trio.lowlevel.checkpoint()
        return self._rows.runs.get(run_id)

    async def runs(
        self, session_id: str | None, *, limit: int, before: str | None
    ) -> tuple[RunRecord, ...]:
        await trio.lowlevel.checkpoint()
        newest_first = list(reversed(self._rows.runs.values()))
        start = _place_behind(before, [run.run_id for run in newest_first])
        wanted = (
            run
            for run in newest_first[start:]
            if session_id is None or run.session_id == session_id
        )
        return tuple(islice(wanted, limit))

    async def open_runs(self) -> tuple[RunRecord, ...]:
        await trio.lowlevel.checkpoint()
        return tuple(run for run in self._rows.runs.values() if run.status == "running")

    async def tool_call(self, tool_call_id: str, attempt: int | None) -> ToolCallRow | None:
        await trio.lowlevel.checkpoint()
        return queries.tool_call(self._rows, tool_call_id, attempt)

    async def tool_call_by_client_id(
        self, session_id: str, client_call_id: str
    ) -> ToolCallRow | None:
        await trio.lowlevel.checkpoint()
        return queries.tool_call_by_client_id(self._rows, session_id, client_call_id)

    async def tool_calls(
        self, session_id: str | None, run_id: str | None, *, limit: int, before: int
    ) -> tuple[ToolCallRow, ...]:
        await trio.lowlevel.checkpoint()
        return queries.tool_calls(self._rows, session_id, run_id, limit, before)

    async def unanswered_calls(
        self, session_id: str | None, *, limit: int
    ) -> tuple[ToolCallRow, ...]:
        await trio.lowlevel.checkpoint()
        return queries.unanswered_calls(self._rows, session_id, limit)

    async def open_client_calls(self) -> tuple[ToolCallRow, ...]:
        await trio.lowlevel.checkpoint()
        return queries.open_client_calls(self._rows)

    async def artifact_info(self, artifact_id: str) -> ArtifactInfo | None:
        await trio.lowlevel.checkpoint()
        stored = self._rows.artifacts.get(artifact_id)
        return None if stored is None else stored.info

    async def artifact_range(self, artifact_id: str, offset: int, length: int) -> bytes:
        await trio.lowlevel.checkpoint()
        stored = self._rows.artifacts.get(artifact_id)
        return b"" if stored is None else stored.data[offset : offset + length]

    async def artifact(self, artifact_id: str) -> Artifact | None:
        await trio.lowlevel.checkpoint()
        stored = self._rows.artifacts.get(artifact_id)
        if stored is None:
            return None
        return Artifact(stored.info.id, stored.info.media_type, stored.data)

    async def unused_artifacts(self, put_before: str, *, limit: int) -> tuple[str, ...]:
        await trio.lowlevel.checkpoint()
        return tuple(islice(_artifacts_memory.unused(self._rows, put_before), limit))


def _place_behind(last: str | None, ids: list[str]) -> int:
    """Return where the page behind ``last`` begins: nowhere, if that is not in the list."""
    if last is None:
        return 0
    return ids.index(last) + 1 if last in ids else len(ids)


def _seq(event: StoredEvent) -> int:
    return event.seq


def _matches(event: StoredEvent, wanted: EventFilter) -> bool:
    return (
        (wanted.types is None or event.type in wanted.types)
        and (wanted.session_id is None or event.session_id == wanted.session_id)
        and (wanted.run_id is None or event.run_id == wanted.run_id)
    )


def _is_paid_for(batch: Batch, failure: StoreError) -> bool:
    return batch.owed and isinstance(failure, StoreFull)
