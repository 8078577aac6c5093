"""The writing connection: groups of batches as transactions, their numbers, and failures made certain.

Numbers. ``log_state.next_seq`` says from where the next start of the daemon may number. It is raised by
a whole block, in the transaction that first needs a number beyond it, and that transaction is synced;
a clean close lowers it to the exact next number. So a number that was ever seen is never given to
another event, also when events that were not synced are lost with the power.

Doubt. A ``COMMIT`` that fails may leave all of its frames in the WAL: this process does not see them,
because the index of the WAL was not moved, but the next one would, when it builds the index anew. So
before the outcome of such a group is reported, the log is read and a small synced transaction of our
own is committed. If the group was there, this makes it durable. If not, this takes the place of its
first frame; every frame is chained to those before it, so the rest can never become valid again. While
this fails too, the group is in doubt: nothing else is committed before it succeeds, and if the process
dies first, the next one finds the whole group or nothing of it.

Suspicion. After a failed sync the kernel may regard pages as written that never were, and no later sync
reports it. The WAL then takes no further commit until its content was copied to the database and synced
there, and the WAL was restarted.

This module knows nothing of threads or callers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Final

import apsw
import msgspec

from nousd.errors import StoreError, StoreFull, StoreInDoubt, WriteFailed
from nousd.machine.projection.row_changes import ForgetSession, PutSession, RowChange, TouchSession
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
from nousd.store.sqlite.many_rows import ManyRows, Row
from nousd.store.sqlite.reserve import Reserve
from nousd.store.write_stats import WriteStats
from nousd.wire.codec.envelope import number_event
from nousd.wire.codec.upcasting import EVENT_SCHEMA_VERSION
from nousd.wire.events import DELTA_EVENTS

NUMBERS_PER_BLOCK: Final = 100_000
"""Numbers reserved with one fsync: a gap of at most this many after a crash, and one sync per this
many deltas."""

QUICK_PAGES: Final = 256
"""Pages (1 MiB) of the WAL that are moved between two commits: about as long as three of them."""

WAL_ROUNDS_MAX: Final = 4
"""How many times as long as it should be the WAL becomes before commits wait for it to be moved."""

_SYNCED: Final = "FULL"
"""The mode in which a commit is on the disk when it returns."""

_INSERT_EVENTS: Final = ManyRows(
    "SELECT * FROM (",
    8,
    ") WHERE column1 IS NOT NULL",
    insert="""
    INSERT INTO events
        (seq, type, session_id, run_id, line, schema_version, line_crc, previous_crc)
    """,
)


class Commits:
    """Owns the writing connection, and gives the reserve back when a commit needs the space.

    Invariants between commits: no event has the number ``_next`` or a larger one, nor ever had;
    unless a group is in doubt, ``_next <= _reserved``, and where they differ ``_reserved`` is on the
    disk as ``next_seq``.

    ``write_stats`` counts what is done.
    """

    def __init__(self, opened: OpenedLog, reserve: Reserve) -> None:
        self.write_stats = WriteStats()
        self._connection = opened.connection
        # A statement over many rows notes what it changes, in case it has to be undone. In a file that
        # costs several times the statement, and a disk may be full.
        self._connection.pragma("temp_store", "MEMORY")
        self._reserve = reserve
        self._checksums = Checksums()
        self._synchronous = ""
        self._next = opened.next_seq
        self._reserved = opened.next_seq
        # What an unclean end left in the WAL may not be on the disk yet, and will be promised.
        self._in_doubt = not opened.was_closed
        self._is_suspect = False
        self._must_truncate = False
        self._wal_pages = self._moved = 0
        self._checkpoint_at = WAL_PAGES
        self._background = Checkpointer(self._connection)
        self._background_helps = True
        self._connection.wal_autocheckpoint(0)

    # --- committing --------------------------------------------------------------------------

    def commit(self, batches: Sequence[Batch]) -> list[tuple[StoredEvent, ...]]:
        """Commit the batches as one transaction, and return their events with their numbers.

        Raises:
            StoreFull, WriteFailed: nothing of it is in the log, and nothing of it ever will be.
            StoreInDoubt: all of it may turn out to be in the log after a restart, or nothing.
        """
        try:
            self._make_certain()
            stored, after = _number_events(batches, self._next)
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

        Only the caller learns of it, so a failure leaves nothing in doubt: ``work`` must be right
        whether it turns up after a restart or not. It is refused while the space of the reserve is
        missing, and never takes from it.

        Raises:
            StoreFull, WriteFailed: this process will see nothing of it.
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
        """Write the batches into an open transaction; return the number up to which, once it is
        committed, numbers are reserved. ``after`` is the next number behind theirs.
        """
        reserved = self._reserved if after <= self._reserved else after + NUMBERS_PER_BLOCK
        self._synchronize(fully=reserved != self._reserved or any(map(_is_durable, batches)))
        self._connection.execute("BEGIN IMMEDIATE")
        if reserved != self._reserved:
            self._write_next(reserved)
        self._write(batches, stored)
        return reserved

    def _commit_transaction(self) -> None:
        """Commit what is open."""
        begun = perf_counter()
        self._connection.execute("COMMIT")
        if self._synchronous == _SYNCED:
            self.write_stats.count_synced(perf_counter() - begun)
        else:
            self.write_stats.count_unsynced()
        self._wal_pages += self._pages_written()

    def _write(self, batches: Sequence[Batch], stored: list[tuple[StoredEvent, ...]]) -> None:
        _INSERT_EVENTS.execute(
            self._connection,
            [_event_row(event, self._checksums) for events in stored for event in events],
        )
        changes: list[RowChange] = []
        for batch, events in zip(batches, stored, strict=True):
            if batch.artifacts:
                # What a session that was deleted before took with it is put again.
                self._apply(changes)
                changes.clear()
                for artifact in batch.artifacts:
                    _artifacts_sqlite.put_whole(self._connection, artifact, get_put_time(batch))
            for record, event in zip(batch.records, events, strict=True):
                changes += row_changes(record.event, event.seq, record.ts)
        self._apply(changes)

    def _apply(self, changes: Sequence[RowChange]) -> None:
        _rows_sqlite.apply(self._connection, _merge_touches(changes))
        self._must_truncate |= ForgetSession in map(type, changes)

    def _write_next(self, seq: int) -> None:
        self._connection.execute("UPDATE log_state SET next_seq = ?", (seq,))

    def _synchronize(self, *, fully: bool) -> None:
        """Set whether commits from now on are on the disk when they return."""
        wanted = _SYNCED if fully else "NORMAL"
        if wanted != self._synchronous:
            # Not through `execute`: its cache would skip the preparing, which is what sets it.
            self._connection.pragma("synchronous", wanted)
            self._synchronous = wanted

    # --- failures ----------------------------------------------------------------------------

    def _roll_back_after(self, error: Exception) -> StoreError:
        """Roll back after a failure; return the error for the callers."""
        failure = self._as_store_error(error)
        self._try_to_roll_back()
        return failure

    def _try_to_roll_back(self) -> None:
        try:
            self._roll_back()
        except apsw.Error as error:
            self._note_failed_sync(error)  # the next commit begins with trying again

    def _raise_unless_written(
        self, error: apsw.Error, stored: list[tuple[StoredEvent, ...]]
    ) -> None:
        """Return if the group whose ``COMMIT`` failed is durably in the log all the same.

        Raises:
            StoreFull, WriteFailed: it is not, and never will be.
            StoreInDoubt: that is unknown until a later start.
        """
        failure = self._as_store_error(error)
        self._in_doubt = True
        try:
            self._roll_back()
            is_there = self._is_in_log(stored)
            self._make_certain()
        except apsw.Error as another:
            self._as_store_error(another)
            raise StoreInDoubt(f"{failure}; whether it was written is not known") from error
        if not is_there:
            raise failure from error

    def _as_store_error(self, error: Exception) -> StoreError:
        """Record what the error says of the disk; return the store's error for it."""
        self._note_failed_sync(error)
        self._checksums.forget()
        if is_for_want_of_space(error, self._connection):
            self._reserve.give_back()
            return StoreFull(f"the log could not be written: {error}")
        return WriteFailed(f"the log could not be written: {error}")

    def _note_failed_sync(self, error: Exception) -> None:
        self._is_suspect |= _get_extended_code(error) == apsw.SQLITE_IOERR_FSYNC

    def _is_in_log(self, stored: list[tuple[StoredEvent, ...]]) -> bool:
        """True if a group is there. One without events is as if it were not: it changes nothing to
        write its artifacts again.
        """
        seqs = [event.seq for events in stored for event in events]
        found = self._connection.execute(
            "SELECT 1 FROM events WHERE seq = ?", (max(seqs, default=0),)
        )
        return found.get is not None

    def _make_certain(self) -> None:
        """Make the log certain and trustworthy again, unless it is.

        Raises:
            apsw.Error: it is not.
        """
        self._roll_back()
        if self._is_suspect or not self._background.is_busy:
            self._note_background()
        if self._is_suspect:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            self._is_suspect = False
        if self._in_doubt:
            self._synchronize(fully=True)
            # SQLite writes no frame for a row that stays as it is.
            reserved = max(self._next, self._reserved) + 1
            self._write_next(reserved)
            self._reserved = reserved
            self._in_doubt = False

    def begin(self) -> None:
        """Settle commits that an unclean end left unknown, before any read."""
        if self._in_doubt and self._empty_wal():
            self._in_doubt = False

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    # --- the WAL -----------------------------------------------------------------------------

    def tidy(self, then: Callable[[], None]) -> None:
        """Move what the WAL holds to the database once it is much, or holds deleted content.

        Most of it moves in the background; behind that ``then`` is called, for this to be called again.
        A failure costs no more than the space of the WAL; later ones make up for it.
        """
        is_too_long = self._wal_pages >= WAL_ROUNDS_MAX * self._checkpoint_at
        if self._background.is_busy and not is_too_long:
            return
        self._note_background()
        if not self._must_truncate and self._wal_pages < self._checkpoint_at:
            return
        pages, left = self._wal_size()
        if not self._must_truncate and pages < self._checkpoint_at:
            return
        if left > QUICK_PAGES and not is_too_long and self._background_helps:
            self._background.begin(then)
        elif self._must_truncate:
            self._must_truncate = not self._empty_wal()
        else:
            self._run_checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)
        self._background_helps = True

    def _note_background(self) -> None:
        """Take the outcome of what was moved in the background, once that is over."""
        try:
            done = self._background.outcome()
        except apsw.Error as error:
            self._background_helps = False
            self._note_failed_checkpoint(error)
        else:
            if done is not None:
                # A reader may hold on to all of it.
                self._background_helps = done.moved > self._moved
                self._note_checkpoint(done)

    def _note_checkpoint(self, done: CheckpointResult) -> None:
        self._moved = done.moved
        self._checkpoint_at = WAL_PAGES
        self.write_stats.count_checkpoint(done.seconds)

    def _note_failed_checkpoint(self, error: apsw.Error) -> None:
        self._note_failed_sync(error)
        self._checkpoint_at = WAL_PAGES + self._wal_pages

    def _empty_wal(self) -> bool:
        return self._run_checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def _run_checkpoint(self, mode: int) -> bool:
        """Move the WAL's content; return whether that succeeded. Does not wait for readers."""
        self._connection.set_busy_timeout(0)
        try:
            done = checkpoint(self._connection, mode)
        except apsw.Error as error:
            self._note_failed_checkpoint(error)
            return False
        finally:
            self._connection.set_busy_timeout(BUSY_MS_MAX)
        # While a reader holds on to it, the WAL is not begun anew and still has all of its pages.
        self._wal_pages = done.pages
        self._note_checkpoint(done)
        return True

    def _wal_size(self) -> tuple[int, int]:
        """Return how many pages it has, since it was begun anew, and how many of them were not moved."""
        try:
            known = checkpoint(self._connection, apsw.SQLITE_CHECKPOINT_NOOP)
        except apsw.Error as error:
            self._note_failed_sync(error)
            return self._wal_pages, self._wal_pages
        self._wal_pages, self._moved = known.pages, known.moved
        return known.pages, known.pages - known.moved

    def _pages_written(self) -> int:
        """Return how many pages went into the WAL since it was last asked. SQLite would tell it by a
        call from inside of each commit, which would have to wait there for the interpreter.
        """
        pages, _ = self._connection.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE, reset=True)
        return pages

    # --- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """Return the unused numbers of the block and close the connection.

        If the former fails, the next start leaves a gap in the numbers: no harm.
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
            self._connection.close()


def _get_extended_code(error: Exception) -> int:
    # An attribute of the instances only, where the code is SQLite's own.
    code: int = getattr(error, "extendedresult", apsw.SQLITE_OK)
    return code


def _number_events(batches: Sequence[Batch], seq: int) -> tuple[list[tuple[StoredEvent, ...]], int]:
    """Return the events of each batch, numbered from ``seq`` on, and the next number."""
    stored = []
    for batch in batches:
        events = tuple(
            [
                StoredEvent(
                    number,
                    record.type,
                    record.session_id,
                    record.run_id,
                    number_event(number, record.tail),
                )
                for number, record in enumerate(batch.records, seq)
            ]
        )
        seq += len(events)
        stored.append(events)
    return stored, seq


def _event_row(event: StoredEvent, checksums: Checksums) -> Row:
    return (
        event.seq,
        event.type,
        event.session_id,
        event.run_id,
        event.line,
        EVENT_SCHEMA_VERSION,
        *checksums.of(event),
    )


_BIRTH_AND_DEATH: Final = (PutSession, ForgetSession)


def _merge_touches(changes: Sequence[RowChange]) -> list[RowChange]:
    """Return changes with the last alone of a session's times of update, behind the rest: nobody sees
    one in the middle of a transaction, and each would move its indices.
    """
    ordered: list[RowChange] = []
    touches: dict[str, TouchSession] = {}
    for change in changes:
        if isinstance(change, TouchSession):
            earlier = touches.get(change.session_id)
            if change.queue_revision is None and earlier is not None:
                revision = earlier.queue_revision
                change = msgspec.structs.replace(change, queue_revision=revision)  # noqa: PLW2901
            touches[change.session_id] = change
            continue
        if isinstance(change, _BIRTH_AND_DEATH) and change.session_id in touches:
            # A session that is put begins with a time of its own, and a deleted one keeps its last: a
            # list goes on behind it from there.
            ordered.append(touches.pop(change.session_id))
        ordered.append(change)
    return [*ordered, *touches.values()]


def _is_durable(batch: Batch) -> bool:
    """Return whether its commit must be on the disk before anyone sees it."""
    if batch.artifacts or not batch.records:
        return True
    return any(record.type not in DELTA_EVENTS for record in batch.records)
