"""The writing connection: commits groups of batches, numbers their events, and resolves failed commits.

Numbers. ``log_state.next_seq`` is the number from which the next start of the daemon continues. It is
raised by a whole block, in the transaction that first needs a number beyond it, and that transaction is
synced; a clean close lowers it to the exact next number. So a number that was ever visible is never
given to another event, even if events that were not synced are lost in a power failure.

Doubt. A ``COMMIT`` that fails may leave all of its frames in the WAL. This process does not see them,
because the index of the WAL was not updated, but the next process would, when it rebuilds the index. So
before the outcome of such a group is reported, the log is read and a small transaction is committed and
synced. If the group is in the log, this makes it durable. If not, the transaction overwrites the first
frame of the group; every frame is chained to those before it, so the rest can never become valid again.
While this fails too, the group is in doubt: nothing else is committed until it succeeds, and if the
process dies first, the next one finds the whole group or nothing of it.

Suspicion. After a failed sync, the kernel may regard pages as written that never were, and no later sync
reports it. The WAL then takes no further commit until all of its content was copied to the database and
synced there, and the WAL was restarted. All of it, because SQLite counts pages as copied that it has not
synced: it syncs the database only if the copy reaches the end of the WAL, which moves while others
commit. It forgets that count when the first connection opens the file, so all of them are closed before.

This module does not know threads or callers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any, Final

import apsw

from nousd.errors import StoreError, StoreFull, StoreInDoubt, WriteFailed
from nousd.machine.projection.row_changes import ForgetSession, RowChange
from nousd.machine.projection.row_projection import row_changes
from nousd.store.records import Batch, StoredEvent, get_put_time
from nousd.store.sqlite import artifacts as _artifacts_sqlite
from nousd.store.sqlite import rows as _rows_sqlite
from nousd.store.sqlite.checkpoints import Checkpointer, CheckpointResult, checkpoint
from nousd.store.sqlite.checksums import Checksums
from nousd.store.sqlite.database import (
    BUSY_MS_MAX,
    UNREADABLE,
    WAL_PAGES,
    OpenedLog,
    is_for_want_of_space,
)
from nousd.store.sqlite.groups import is_durable, merge_touches, number_events
from nousd.store.sqlite.many_rows import ManyRows, Row
from nousd.store.sqlite.reserve import Reserve
from nousd.store.write_stats import WriteStats
from nousd.wire.codec.upcasting import EVENT_SCHEMA_VERSION

NUMBERS_PER_BLOCK: Final = 100_000
"""Numbers reserved with one fsync: the largest gap after a crash, and the number of deltas per sync."""

QUICK_PAGES: Final = 256
"""Pages (1 MiB) of the WAL that are moved between two commits, in about the time of three commits."""

WAL_ROUNDS_MAX: Final = 4
"""Multiple of its target size that the WAL reaches before commits wait for a checkpoint."""

_SYNCED: Final = "FULL"
"""The mode in which a commit is on disk when it returns."""

_INSERT_EVENTS: Final = ManyRows(
    "SELECT * FROM (",
    8,
    ") WHERE column1 IS NOT NULL",
    insert="""
    INSERT INTO events
        (seq, type, session_id, run_id, line, schema_version, line_crc, previous_crc)
    """,
)


PauseReaders = Callable[[], AbstractContextManager[None]]


class Commits:
    """Owns the writing connection, and releases the reserve when a commit needs the space.

    Invariants between commits: no event has, or ever had, the number ``_next`` or a larger one; unless a
    group is in doubt, ``_next <= _reserved``, and where they differ ``_reserved`` is on disk as
    ``next_seq``.

    ``write_stats`` counts the writes.

    Args:
        pause_readers: closes all reading connections, and opens none within its block.
    """

    def __init__(self, opened: OpenedLog, reserve: Reserve, pause_readers: PauseReaders) -> None:
        self.write_stats = WriteStats()
        self._reopen = opened.reopen
        self._pause_readers = pause_readers
        self._use(opened.connection)
        self._reserve = reserve
        self._checksums = Checksums()
        self._next = opened.next_seq
        self._reserved = opened.next_seq
        # After an unclean shutdown, commits in the WAL may not be on disk, and readers rely on them.
        self._in_doubt = not opened.was_closed
        self._is_suspect = False
        self._must_truncate = False
        self._wal_pages = self._moved = 0
        self._checkpoint_at = WAL_PAGES
        self._background = Checkpointer(self._connection)
        self._background_helps = True

    def _use(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._is_open = True
        self._synchronous = ""
        # A statement over many rows records its changes, in case it has to be undone. In a file, this
        # costs several times as much as the statement, and the disk may be full.
        connection.pragma("temp_store", "MEMORY")
        connection.wal_autocheckpoint(0)

    # --- committing --------------------------------------------------------------------------

    def commit(self, batches: Sequence[Batch]) -> list[tuple[StoredEvent, ...]]:
        """Commit the batches as one transaction; return their events with their numbers.

        Raises:
            StoreFull, WriteFailed: none of it is in the log, and none of it ever will be.
            StoreInDoubt: after a restart, the log contains either all of it or none.
        """
        try:
            self._make_certain()
            stored, after = number_events(batches, self._next)
            reserved = self._begin(batches, stored, after)
        except UNREADABLE as error:
            raise self._roll_back_after(error) from error
        self._next = after
        try:
            self._commit_transaction()
        except apsw.Error as error:
            self._raise_unless_written(error, stored)
        else:
            self._reserved = reserved
        self.write_stats.count_written(stored)
        return stored

    def do(
        self, work: Callable[[apsw.Connection], Any], *, durable: bool, empties_wal: bool = False
    ) -> Any:
        """Commit the changes of ``work`` in one transaction; return its result.

        Only the caller sees the result, so a failure leaves nothing in doubt: ``work`` must be correct
        whether or not its changes appear after a restart. It is refused while the space of the reserve
        is missing, and never uses that space.

        Raises:
            StoreFull, WriteFailed: this process will see none of the changes.
            StoreError: raised by ``work``.
        """
        self._reserve.require()
        try:
            self._make_certain()
            self._synchronize(fully=durable)
            self._connection.execute("BEGIN")
            outcome = work(self._connection)
            self._commit_transaction()
        except (*UNREADABLE, StoreError) as error:
            failure = self._failure_of_chore(error)
            self._try_to_roll_back()
            raise failure from error
        self._must_truncate |= empties_wal
        return outcome

    def _failure_of_chore(self, error: Exception) -> StoreError:
        if isinstance(error, StoreError):
            return error
        self._note_failed_sync(error)
        kind = StoreFull if is_for_want_of_space(error, self._connection) else WriteFailed
        return kind(f"the log could not be changed: {error}")

    def _begin(
        self, batches: Sequence[Batch], stored: list[tuple[StoredEvent, ...]], after: int
    ) -> int:
        """Begin a transaction and write the batches; return the new end of the reserved numbers, which
        takes effect with the commit. ``after`` is the next number after those of the batches.
        """
        reserved = self._reserved if after <= self._reserved else after + NUMBERS_PER_BLOCK
        self._synchronize(fully=reserved != self._reserved or any(map(is_durable, batches)))
        self._connection.execute("BEGIN IMMEDIATE")
        if reserved != self._reserved:
            self._write_next(reserved)
        self._write(batches, stored)
        return reserved

    def _commit_transaction(self) -> None:
        """Commit the open transaction."""
        started = perf_counter()
        self._connection.execute("COMMIT")
        if self._synchronous == _SYNCED:
            self.write_stats.count_synced(perf_counter() - started)
        else:
            self.write_stats.count_unsynced()
        self._wal_pages += self._pages_written()

    def _write(self, batches: Sequence[Batch], stored: list[tuple[StoredEvent, ...]]) -> None:
        checksums_of = self._checksums.of
        rows: list[Row] = [
            (
                event.seq,
                event.type,
                event.session_id,
                event.run_id,
                event.line,
                EVENT_SCHEMA_VERSION,
                *checksums_of(event),
            )
            for events in stored
            for event in events
        ]
        _INSERT_EVENTS.execute(self._connection, rows)
        changes: list[RowChange] = []
        for batch, events in zip(batches, stored, strict=True):
            if batch.artifacts:
                # A session deleted earlier in the group may delete an artifact that is put again here.
                self._apply(changes)
                changes.clear()
                for artifact in batch.artifacts:
                    _artifacts_sqlite.put_whole(self._connection, artifact, get_put_time(batch))
            for record, event in zip(batch.records, events, strict=True):
                changes += row_changes(record.event, event.seq, record.ts)
        self._apply(changes)

    def _apply(self, changes: Sequence[RowChange]) -> None:
        _rows_sqlite.apply(self._connection, merge_touches(changes))
        self._must_truncate |= ForgetSession in map(type, changes)

    def _write_next(self, seq: int) -> None:
        self._connection.execute("UPDATE log_state SET next_seq = ?", (seq,))

    def _synchronize(self, *, fully: bool) -> None:
        """Set whether later commits are on disk when they return."""
        mode = _SYNCED if fully else "NORMAL"
        if mode != self._synchronous:
            # Not with `execute`: its cache would skip preparing the statement, which sets the mode.
            self._connection.pragma("synchronous", mode)
            self._synchronous = mode

    # --- failures ----------------------------------------------------------------------------

    def _roll_back_after(self, error: Exception) -> StoreError:
        """Roll back after a failure; return the error for the callers."""
        failure = self._handle_failed_write(error)
        self._try_to_roll_back()
        return failure

    def _try_to_roll_back(self) -> None:
        try:
            self._roll_back()
        except apsw.Error as error:
            self._note_failed_sync(error)  # the next commit tries again first

    def _raise_unless_written(
        self, error: apsw.Error, stored: list[tuple[StoredEvent, ...]]
    ) -> None:
        """Return if the group is durably in the log although its ``COMMIT`` failed.

        Raises:
            StoreFull, WriteFailed: it is not in the log, and never will be.
            StoreInDoubt: whether it is in the log is unknown until a later start.
        """
        failure = self._handle_failed_write(error)
        self._in_doubt = True
        try:
            self._roll_back()
            is_there = self._is_in_log(stored)
            self._make_certain()
        except apsw.Error as another:
            self._handle_failed_write(another)
            raise StoreInDoubt(f"{failure}; whether it was written is not known") from error
        if not is_there:
            raise failure from error

    def _handle_failed_write(self, error: Exception) -> StoreError:
        """Note a failed write, release the reserve if the disk is full, and return the store's error."""
        self._note_failed_sync(error)
        self._checksums.forget()
        if is_for_want_of_space(error, self._connection):
            self._reserve.give_back()
            return StoreFull(f"the log could not be written: {error}")
        return WriteFailed(f"the log could not be written: {error}")

    def _note_failed_sync(self, error: Exception) -> None:
        self._is_suspect |= _get_extended_code(error) == apsw.SQLITE_IOERR_FSYNC

    def _is_in_log(self, stored: list[tuple[StoredEvent, ...]]) -> bool:
        """Return whether a group is in the log. A group without events counts as missing: writing its
        artifacts again changes nothing.
        """
        seqs = [event.seq for events in stored for event in events]
        found = self._connection.execute(
            "SELECT 1 FROM events WHERE seq = ?", (max(seqs, default=0),)
        )
        return found.get is not None

    def _make_certain(self) -> None:
        """Resolve any doubt and suspicion.

        Raises:
            apsw.Error: the log is still in doubt or suspect.
        """
        if self._is_suspect or not self._background.is_busy:
            self._note_background()
        self._roll_back()
        if self._is_open and (self._is_suspect or self._in_doubt):
            self._synchronize(fully=not self._is_suspect)
            # SQLite writes no frame for an unchanged row, so the number must change.
            reserved = max(self._next, self._reserved) + 1
            self._write_next(reserved)
            self._reserved = reserved
        if self._is_suspect:
            self._copy_wal_again()
            self._is_suspect = False
        self._in_doubt = False

    def _copy_wal_again(self) -> None:
        """Copy all of the WAL to the database, also the pages that SQLite counts as copied.

        Raises:
            apsw.Error: it failed, or another process has the log open.
        """
        with self._pause_readers():
            self._background.disconnect()
            self._close_without_copying()
            try:
                self._use(self._reopen())
            except apsw.Error as error:
                # Not an error of the disk, about which only an open connection could say more.
                raise apsw.CantOpenError(str(error)) from error
            if checkpoint(self._connection, apsw.SQLITE_CHECKPOINT_NOOP).moved:
                raise apsw.BusyError("another process has the log open")
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def _close_without_copying(self) -> None:
        if self._is_open:
            self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self._connection.close()
            self._is_open = False

    def begin(self) -> None:
        """Resolve commits whose outcome an unclean shutdown left open, before any read."""
        if self._in_doubt and self._empty_wal():
            self._in_doubt = False

    def _roll_back(self) -> None:
        if self._is_open and self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    # --- the WAL -----------------------------------------------------------------------------

    def tidy(self, on_done: Callable[[], None]) -> None:
        """Move the content of the WAL to the database once it is large or includes deleted content.

        Most of it moves in the background; ``on_done`` is called afterwards, and must cause another
        call. A failure costs only the space of the WAL; later calls make up for it.
        """
        is_too_long = self._wal_pages >= WAL_ROUNDS_MAX * self._checkpoint_at
        if self._background.is_busy and not is_too_long:
            return
        self._note_background()
        if self._is_suspect:
            return  # the next commit copies all of it; a checkpoint would only copy what SQLite counts
        if not self._must_truncate and self._wal_pages < self._checkpoint_at:
            return
        pages, unmoved = self._wal_size()
        if not self._must_truncate and pages < self._checkpoint_at:
            return
        if unmoved > QUICK_PAGES and not is_too_long and self._background_helps:
            self._background.begin(on_done)
        elif self._must_truncate:
            self._must_truncate = not self._empty_wal()
        else:
            self._run_checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)
        self._background_helps = True

    def _note_background(self) -> None:
        """Wait for the checkpoint in the background, if any, and record its result."""
        try:
            result = self._background.outcome()
        except apsw.Error as error:
            self._background_helps = False
            self._note_failed_checkpoint(error)
        else:
            if result is not None:
                # A reader may hold back all of it.
                self._background_helps = result.moved > self._moved
                self._note_checkpoint(result)

    def _note_checkpoint(self, result: CheckpointResult) -> None:
        self._moved = result.moved
        self._checkpoint_at = WAL_PAGES
        self.write_stats.count_checkpoint(result.seconds)

    def _note_failed_checkpoint(self, error: apsw.Error) -> None:
        self._note_failed_sync(error)
        self._checkpoint_at = WAL_PAGES + self._wal_pages

    def _empty_wal(self) -> bool:
        return self._run_checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def _run_checkpoint(self, mode: int) -> bool:
        """Run a checkpoint; return whether it succeeded. Does not wait for readers."""
        self._connection.set_busy_timeout(0)
        try:
            result = checkpoint(self._connection, mode)
        except apsw.Error as error:
            self._note_failed_checkpoint(error)
            return False
        finally:
            self._connection.set_busy_timeout(BUSY_MS_MAX)
        # While a reader uses it, the WAL is not restarted and keeps all of its pages.
        self._wal_pages = result.pages
        self._note_checkpoint(result)
        return True

    def _wal_size(self) -> tuple[int, int]:
        """Return the number of pages in the WAL since its restart, and how many are not moved yet."""
        try:
            known = checkpoint(self._connection, apsw.SQLITE_CHECKPOINT_NOOP)
        except apsw.Error as error:
            self._note_failed_sync(error)
            return self._wal_pages, self._wal_pages
        self._wal_pages, self._moved = known.pages, known.moved
        return known.pages, known.pages - known.moved

    def _pages_written(self) -> int:
        """Return the number of pages written to the WAL since the last call. SQLite's own callback for
        this runs inside each commit, and would have to wait there for the interpreter lock.
        """
        pages, _ = self._connection.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE, reset=True)
        return pages

    # --- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """Return the unused numbers of the block, and close the connection.

        If the numbers cannot be returned, the next start leaves a harmless gap.
        """
        try:
            self._note_background()
            self._background.close()
            self._make_certain()
            if self._next != self._reserved:
                self._synchronize(fully=True)
                self._write_next(self._next)
        except apsw.Error:
            return
        finally:
            if self._is_suspect:
                self._close_without_copying()  # the next start copies all
            else:
                self._connection.close()


def _get_extended_code(error: Exception) -> int:
    # Only instances have this attribute, and only if the error code comes from SQLite.
    code: int = getattr(error, "extendedresult", apsw.SQLITE_OK)
    return code
