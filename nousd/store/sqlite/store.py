"""The log in one SQLite file: a writer thread, a few readers, and the event loop between them.

The loop never waits for the disk. ``writer`` commits in its own thread; the plain functions of
``queries``, ``session_queries`` and ``call_queries`` run in worker threads on a few read-only
connections; ``database`` opens the file. This module connects them and contains no SQL.
"""

from __future__ import annotations

import pathlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, Protocol, TypeVar

import apsw
import trio

from nousd.errors import StoreError, StoreFull
from nousd.store.artifacts import ArtifactInfo, ArtifactSource
from nousd.store.interface import Store
from nousd.store.pending import Outcome, PendingBatches
from nousd.store.records import Batch, EventFilter, OldDeltas, PruneResult, StoredEvent
from nousd.store.sqlite import artifacts as _artifacts_sqlite
from nousd.store.sqlite import branching as _branching
from nousd.store.sqlite import call_queries as _call_queries
from nousd.store.sqlite import deleting as _deleting
from nousd.store.sqlite import pruning as _pruning_sqlite
from nousd.store.sqlite import queries as _queries
from nousd.store.sqlite import session_queries as _session_queries
from nousd.store.sqlite.artifact_writes import ArtifactWrites
from nousd.store.sqlite.commits import Commits
from nousd.store.sqlite.database import (
    BUSY_MS_MAX,
    UNREADABLE,
    Connect,
    open_for_reading,
    open_for_writing,
)
from nousd.store.sqlite.reserve import RESERVE_BYTES, Reserve
from nousd.store.sqlite.writer import STOP, WAKE, Chore, Job, Writer, is_followed
from nousd.wire.objects.metrics import LogMetrics

RESERVE_SUFFIX: Final = ".reserve"
"""Suffix of the file beside the database that reserves space for the ends of open runs."""

P = ParamSpec("P")
T = TypeVar("T")


@asynccontextmanager
async def open_store(
    path: pathlib.Path, *, connect: Connect = apsw.Connection
) -> AsyncIterator[Store]:
    """Open the log at ``path``, and create it if it is missing. Leaving the block commits the queue.

    Args:
        connect: opens the writing connection. Tests pass one that observes it, or makes it fail.

    Raises:
        StoreTooNew: a newer version of nousd wrote it; it was not changed.
        StoreFull: the disk lacks even the space to open it.
        StoreError: it is not a log of nousd, or cannot be opened.
    """
    readers = Readers(path)
    opened = await trio.to_thread.run_sync(_open, path, connect, readers)
    store = SqliteStore(opened, readers, path)
    try:
        yield store
    finally:
        with trio.CancelScope(shield=True):
            await store.aclose()


class _OpenedStore(NamedTuple):
    head: int
    commits: Commits
    reserve: Reserve


def _open(path: pathlib.Path, connect: Connect, readers: Readers) -> _OpenedStore:
    """Open the log; release its reserve if the disk is full."""
    reserve = Reserve(path.with_suffix(RESERVE_SUFFIX), RESERVE_BYTES)
    try:
        opened = open_for_writing(path, connect)
    except StoreFull:
        reserve.give_back()
        opened = open_for_writing(path, connect)
    commits = Commits(opened, reserve, readers.pause)
    commits.begin()
    reserve.place()
    return _OpenedStore(opened.head, commits, reserve)


def _size_of(path: pathlib.Path) -> int:
    """Return the size of a file in bytes; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


class _End(Protocol):
    """The end of a thread, as trio reports it."""

    def unwrap(self) -> None: ...


class _ChoreResult:
    """The result of a chore that a caller awaits; only the first result counts."""

    def __init__(self) -> None:
        self._outcome: Any = None
        self._resolved = trio.Event()

    def resolve(self, outcome: Any) -> None:
        if not self._resolved.is_set():
            self._outcome = outcome
            self._resolved.set()

    async def wait(self) -> Any:
        await self._resolved.wait()
        if isinstance(self._outcome, StoreError):
            raise self._outcome
        return self._outcome


def _read(
    query: Callable[Concatenate[apsw.Connection, P], T],
) -> Callable[Concatenate[SqliteStore, P], Coroutine[Any, Any, T]]:
    """Return a method of the store that runs a query in a reader thread."""

    async def read(self: SqliteStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._readers.read(lambda rows: query(rows, *args, **kwargs))

    return read


class SqliteStore:
    """See ``interface.Store``."""

    def __init__(self, opened: _OpenedStore, readers: Readers, path: pathlib.Path) -> None:
        self._pending = PendingBatches(opened.head)
        self._write_stats = opened.commits.write_stats
        self._path = path
        self._readers = readers
        self._token = trio.lowlevel.current_trio_token()
        self._epoch = 0
        self._refusal: StoreError | None = None
        self._is_holding = False
        """Whether the writer may hold the newest batch open for the one that follows it."""
        self._chore_results: set[_ChoreResult] = set()
        self._artifact_writes = ArtifactWrites(self._do)
        self._writer = Writer(opened.commits, opened.reserve, self._report)
        self._writer_end: _End | None = None
        self._writer_ended = trio.Event()
        trio.lowlevel.start_thread_soon(self._writer.run, self._deliver, "nousd log writer")

    # --- in the writer thread ----------------------------------------------------------------

    def _report(self, outcomes: Sequence[Outcome], epoch: int) -> None:
        self._token.run_sync_soon(self._settle, outcomes, epoch)

    def _deliver(self, end: _End) -> None:
        self._token.run_sync_soon(self._end, end)

    # --- in the event loop -------------------------------------------------------------------

    def _settle(self, outcomes: Sequence[Outcome], epoch: int) -> None:
        self._epoch = epoch
        self._pending.settle(outcomes)

    def _end(self, end: _End) -> None:
        """Fail the jobs that the writer thread did not reach."""
        self._writer_end = end
        self._refusal = self._refusal or StoreError("the log's writer has stopped")
        self._pending.fail_all(self._refusal)
        for result in self._chore_results:
            result.resolve(self._refusal)
        self._writer_ended.set()

    def _refuse(self) -> None:
        """Fail batches that were submitted too late, in the order of submission."""
        assert self._refusal is not None
        if self._writer_ended.is_set():
            self._pending.fail_all(self._refusal)

    @property
    def head(self) -> int:
        return self._pending.head

    async def figures(self) -> LogMetrics:
        database, wal = await trio.to_thread.run_sync(self._sizes)
        return self._write_stats.read(self._pending, database_bytes=database, wal_bytes=wal)

    def _sizes(self) -> tuple[int, int]:
        return _size_of(self._path), _size_of(self._path.with_name(self._path.name + "-wal"))

    def after_commits(self, callback: Callable[[], None]) -> None:
        self._pending.after_commits(callback)

    async def wait_room(self) -> None:
        await self._pending.wait_room()

    def submit(self, batch: Batch) -> None:
        is_awaited = self._pending.is_awaited
        size = self._pending.add(batch)
        if self._refusal is None:
            self._is_holding = not is_awaited and is_followed(batch)
            self._writer.jobs.put(Job(self._epoch, batch, size, self._is_holding))
        else:
            self._token.run_sync_soon(self._refuse)

    def commit_now(self) -> None:
        self._pending.mark_awaited()
        if self._is_holding:
            self._is_holding = False
            self._writer.jobs.put(WAKE)

    async def flush(self) -> None:
        await self._pending.wait_settled()

    async def prune_deltas(self, old: OldDeltas) -> PruneResult:
        return await self._do(lambda rows: _pruning_sqlite.prune(rows, old))

    async def put_artifact(
        self, source: ArtifactSource, media_type: str, *, now: str
    ) -> ArtifactInfo:
        put = await self._artifact_writes.put(source, media_type, now)
        self._pending.put(put.size_bytes)
        return put

    async def renew_artifact(self, artifact_id: str, *, now: str) -> ArtifactInfo | None:
        return await self._do(lambda rows: _artifacts_sqlite.renew(rows, artifact_id, now))

    async def drop_artifact(self, artifact_id: str, *, put_before: str) -> bool:
        def drop(rows: apsw.Connection) -> bool:
            if self._artifact_writes.is_under_way(artifact_id):
                return False
            return _artifacts_sqlite.drop(rows, artifact_id, put_before)

        return await self._do(drop)

    async def copy_entries(self, parent_id: str, branch_id: str) -> None:
        while await self._do(lambda rows: _branching.copy_step(rows, parent_id, branch_id)):
            pass

    async def drop_rows(self, session_id: str) -> bool:
        more = await self._do(lambda rows: _deleting.drop_step(rows, session_id))
        if not more:
            await self._do(lambda _rows: None, empties_wal=True)
        return more

    async def _do(
        self,
        work: Callable[[apsw.Connection], T],
        *,
        durable: bool = False,
        empties_wal: bool = False,
    ) -> T:
        """Run a chore in the writer, in the order of submission, and wait for its result.

        Args:
            durable: its changes are on disk when this returns.
            empties_wal: soon afterwards, the WAL contains no content that was deleted before.

        Raises:
            StoreError: the chore was not done.
        """
        if self._refusal is not None:
            raise self._refusal
        result = _ChoreResult()
        self._chore_results.add(result)
        self._writer.jobs.put(
            Chore(
                work,
                lambda outcome: self._token.run_sync_soon(result.resolve, outcome),
                durable,
                empties_wal,
            )
        )
        try:
            value: T = await result.wait()
        finally:
            self._chore_results.remove(result)
        return value

    async def aclose(self) -> None:
        """Commit the queue and close the file; a later submit fails.

        Raises:
            Exception: the bug that ended the writer early, if one did.
        """
        self._refusal = self._refusal or StoreError("the store is closed")
        # Close the writing connection last, so that SQLite removes the WAL.
        await self._readers.aclose()
        self._writer.jobs.put(STOP)
        await self._writer_ended.wait()
        assert self._writer_end is not None
        self._writer_end.unwrap()

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
        return await self._readers.read(
            lambda rows: _queries.events_after(
                rows, after, event_filter, head=head, limit=limit, bytes_max=bytes_max
            )
        )

    is_pruned = _read(_queries.is_pruned)
    defaults = _read(_queries.defaults)
    session = _read(_session_queries.session)
    sessions = _read(_session_queries.sessions)
    search = _read(_session_queries.search)
    children = _read(_session_queries.children)
    list_overridden_sessions = _read(_session_queries.list_overridden_sessions)
    next_deletion = _read(_session_queries.next_deletion)
    entry = _read(_queries.entry)
    path = _read(_queries.path)
    tree = _read(_queries.tree)
    pending_inputs = _read(_queries.pending_inputs)
    pending_counts = _read(_queries.pending_counts)
    input = _read(_queries.input)
    input_by_client_id = _read(_queries.input_by_client_id)
    run = _read(_queries.run)
    runs = _read(_queries.runs)
    open_runs = _read(_queries.open_runs)
    tool_call = _read(_call_queries.tool_call)
    tool_call_by_client_id = _read(_call_queries.tool_call_by_client_id)
    tool_calls = _read(_call_queries.tool_calls)
    list_unanswered_calls = _read(_call_queries.list_unanswered_calls)
    open_client_calls = _read(_call_queries.open_client_calls)
    artifact_info = _read(_artifacts_sqlite.info)
    artifact_range = _read(_artifacts_sqlite.part)
    artifact = _read(_artifacts_sqlite.whole)
    list_unused_artifacts = _read(_artifacts_sqlite.list_unused)
    list_uncreated_branches = _read(_branching.list_uncreated)
    list_unfinished_deletions = _read(_deleting.list_unfinished)


READERS_MAX: Final = 4
"""Maximum number of concurrent reads; further reads wait for a connection."""

PAUSE_SECONDS_MAX: Final = 60.0
"""How long a read waits while the writer has the file for itself, after a failure of the disk."""


class Readers:
    """A small pool of connections, each used by one worker thread at a time."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._idle: list[apsw.Connection] = []
        self._limiter = trio.CapacityLimiter(READERS_MAX)
        self._closed = False
        self._changed = threading.Condition()
        self._reading = 0
        self._is_paused = False

    async def read(self, query: Callable[[apsw.Connection], T]) -> T:
        """Call ``query`` in a worker thread, on a consistent state of the database.

        Raises:
            StoreError: the database could not be read, or the store is closed.
        """
        return await trio.to_thread.run_sync(self._read, query, limiter=self._limiter)

    def _read(self, query: Callable[[apsw.Connection], T]) -> T:
        if self._closed:
            raise StoreError("the store is closed")
        with self._changed:
            if not self._changed.wait_for(lambda: not self._is_paused, PAUSE_SECONDS_MAX):
                raise StoreError("the log could not be read: its disk is slow")
            self._reading += 1
        try:
            return self._read_now(query)
        finally:
            with self._changed:
                self._reading -= 1
                self._changed.notify_all()

    def _read_now(self, query: Callable[[apsw.Connection], T]) -> T:
        try:
            connection = self._take()
            with ExitStack() as on_failure:
                # An unfinished statement holds its connection at an old state of the log.
                on_failure.callback(connection.close, True)
                with connection:
                    answer = query(connection)
                on_failure.pop_all()
            self._idle.append(connection)
        except UNREADABLE as error:
            raise StoreError(f"the log could not be read: {error}") from error
        return answer

    def _take(self) -> apsw.Connection:
        try:
            return self._idle.pop()
        except IndexError:
            return open_for_reading(self._path)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Close every connection, and open none within the block: reads wait. Called in another thread.

        Raises:
            apsw.BusyError: a read takes too long.
        """
        with self._changed:
            self._is_paused = True
        try:
            with self._changed:
                if not self._changed.wait_for(lambda: not self._reading, BUSY_MS_MAX / 1000):
                    raise apsw.BusyError("a read of the log has not ended")
                while self._idle:
                    self._idle.pop().close()
            yield
        finally:
            with self._changed:
                self._is_paused = False
                self._changed.notify_all()

    async def aclose(self) -> None:
        """Wait for the reads in progress, and close every connection."""
        self._closed = True
        holders = [object() for _ in range(READERS_MAX)]
        for holder in holders:
            await self._limiter.acquire_on_behalf_of(holder)
        for connection in self._idle:
            connection.close()
        for holder in holders:
            self._limiter.release_on_behalf_of(holder)
