"""``nousd check --salvage``: copies everything readable from a damaged log into a new log.

The damaged log is only read. The steps, in order:

1. Read the events through SQLite as far as possible (``damaged_tables``), and after any error also from
   the pages themselves (``pages``). An event that is intact in several places is taken once.
2. Restore lost events whose content is completely in the rows: entries, inputs and starts of runs
   (``repair``). They keep their numbers.
3. Rebuild the rows by folding the events (``refold``). A deleted session stays deleted: its tombstone is
   among the events, so the fold discards its other events, even from stale pages.
4. Add events that repair states that a daemon cannot use: a session without its first event, a run
   whose events do not balance (``repair``). Their numbers are above all that were ever assigned.

At the end ``OUT``, complete and on disk, is renamed to its final name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from zlib import crc32

import apsw
import msgspec

from nousd.admin.check import artifacts
from nousd.admin.check.findings import (
    FINDINGS_MAX,
    PROGRESS_EVENTS,
    Finding,
    Findings,
    Progress,
    no_progress,
)
from nousd.admin.check.refold import Refold
from nousd.admin.check.run_audit import RunWalker
from nousd.admin.reading.damaged_tables import SEQ_MAX, EventReader, RowReader, Stretch
from nousd.admin.reading.lines import STORED_LINE, LoggedEvent, StoredLine, read_line
from nousd.admin.reading.log_files import complaints, open_damaged, size_of, wal_of
from nousd.admin.reading.pages import PageReader
from nousd.admin.salvage.repair import (
    adopt,
    build_logged_event,
    build_repair_events,
    restore_events,
)
from nousd.errors import StoreError, StoreTooNew
from nousd.runtime_paths import locations
from nousd.runtime_paths.locks import holder_of, state_lock_file
from nousd.store.sqlite.commits import NUMBERS_PER_BLOCK
from nousd.store.sqlite.database import flush_to_disk, inspect, open_for_writing
from nousd.wire.events import DELTA_EVENTS, Event

_EVENT_BYTES_MIN: Final = 64
"""Every event line is longer; this bounds the number of events in a file."""

_SEQ_GUESSED_MAX: Final = 2**40
"""Replaces the counter if it cannot be read: more events than any log has."""


class SalvageReport(msgspec.Struct, frozen=True):
    """The result of salvaging a damaged log.

    Args:
        read: events that SQLite could read.
        from_pages: events that were only found on the pages themselves.
        restored: lost events restored from their rows.
        added: new events that end interrupted runs or begin sessions that lost their first event.
        missing: (first, last) numbers of damaged ranges in which nothing was found.
        findings: losses and repairs; ``untold`` is the number of those that are not listed.
    """

    path: str
    read: int
    from_pages: int
    restored: int
    added: int
    missing: Sequence[Stretch]
    findings: Sequence[Finding]
    untold: int
    errors: int

    @property
    def summary(self) -> str:
        """One line for people."""
        total = self.read + self.from_pages + self.restored
        lost = f"{self.errors} losses, see above" if self.errors else "nothing is known to be lost"
        return (
            f"{self.path}: {total} events ({self.from_pages} from pages that SQLite cannot reach,"
            f" {self.restored} from rows), {self.added} added: {lost}"
        )


def salvage(path: Path, out: Path, *, progress: Progress = no_progress) -> SalvageReport:
    """Create ``out``, a new state folder with everything readable from the log at ``path``.

    Raises:
        StoreError: a daemon has the log open, ``out`` exists or cannot be written, or no event was
            found. Nothing is left at ``out``, and the log is unchanged.
        StoreTooNew: the log is not damaged but written by a newer version.
    """
    if not size_of(path):
        raise StoreError(f"there is no log at {path}")
    holder = holder_of(state_lock_file(path.parent))
    if holder is not None:
        raise StoreError(f"a daemon ({holder}) is at work on {path}: stop it first")
    if os.path.lexists(out):
        raise StoreError(f"{out} exists; a salvage overwrites nothing")
    try:
        with _create_partial_folder(out) as half:
            report = _Salvage(path, locations.database_file(half), progress).run(out)
            half.rename(out)
            return report
    except OSError as error:
        raise StoreError(f"{out} cannot be written: {error.strerror}") from error
    except apsw.Error as error:
        raise StoreError(f"{out} cannot be written: {error}") from error


@contextmanager
def _create_partial_folder(out: Path) -> Iterator[Path]:
    half = out.with_name(f".{out.name}.{os.getpid()}")
    half.mkdir(mode=0o700)
    half.chmod(0o700)
    try:
        yield half
    finally:
        shutil.rmtree(half, ignore_errors=True)


class _Salvage:
    """One salvage: from the log at ``path`` to the new one at ``target``."""

    def __init__(self, path: Path, target: Path, progress: Progress) -> None:
        self._path = path
        self._target = target
        self._progress = progress
        self._findings = Findings()
        self._damaged_lines: dict[int, str] = {}
        self._out = open_for_writing(target, apsw.Connection).connection
        self._out.pragma("synchronous", "OFF")

    def run(self, out: Path) -> SalvageReport:
        with ExitStack() as stack:
            stack.callback(self._out.close)
            source = self._open_source(stack)
            rows = RowReader(source)
            self._out.execute("BEGIN")
            next_seq = rows.one("log_state", "next_seq", "1", ())
            highest = next_seq[0] if next_seq else _SEQ_GUESSED_MAX
            read, unreadable = self._read_events(source, highest)
            from_pages = self._read_pages(source, unreadable)
            if not read + from_pages:
                raise StoreError(f"not one event was found in {self._path}")
            restored = sum(map(self._put, restore_events(self._out, rows)))
            refold = Refold(self._out, lambda *branch: adopt(self._out, rows, *branch))
            runs = self._fold(refold)
            first = max(self._head() + 1, next_seq[0] if next_seq else self._beyond())
            added = self._mend(refold, build_repair_events(self._out, rows, runs), first)
            artifacts.take_rows(self._out, rows)
            artifacts.keep_whole_and_used(self._out)
            self._out.execute("UPDATE log_state SET next_seq = ?", (first + added,))
            missing = self._report_missing(unreadable, first)
            self._report_losses(rows)
            self._out.execute("COMMIT")
            self._finish()
        return SalvageReport(
            path=str(out),
            read=read,
            from_pages=from_pages,
            restored=restored,
            added=added,
            missing=missing,
            findings=self._findings.kept,
            untold=self._findings.unlisted,
            errors=self._findings.errors,
        )

    # --- events --------------------------------------------------------------------------------

    def _open_source(self, stack: ExitStack) -> apsw.Connection | None:
        """Return a connection to the log, or None if SQLite cannot read it; report SQLite's findings."""
        # No process has the log open, so an existing index of the WAL is useless.
        source = stack.enter_context(open_damaged(self._path))
        try:
            source.pragma("schema_version")
        except apsw.Error as error:
            self._findings.add(str(self._path), f"cannot be read by SQLite: {error}")
            return None
        for complaint in complaints(source, "main"):
            self._findings.add("the database", f"is damaged: {complaint}")
        if not self._findings.errors:
            self._refuse_too_new()
        return source

    def _refuse_too_new(self) -> None:
        try:
            inspect(self._path)
        except StoreTooNew:
            raise
        except StoreError as error:
            self._findings.add(str(self._path), str(error))

    def _read_events(
        self, source: apsw.Connection | None, highest: int
    ) -> tuple[int, Sequence[Stretch]]:
        if source is None:
            return 0, [Stretch(1, SEQ_MAX)]
        before = self._out.total_changes()
        reader = EventReader(source, self._take_row, highest)
        reader.read()
        return self._out.total_changes() - before, _merge_stretches(reader.unreadable)

    def _take_row(self, stored: StoredLine) -> None:
        logged = read_line(stored)
        if isinstance(logged, str):
            self._damaged_lines[stored.seq] = logged
        else:
            self._put(logged)

    def _put(self, logged: LoggedEvent) -> bool:
        """Insert an event unless its number is taken; return whether it was inserted."""
        self._out.execute(
            """
            INSERT OR IGNORE INTO events
                (seq, schema_version, type, session_id, run_id, line, joined_from, line_crc)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?)
            """,
            (
                logged.seq,
                logged.schema_version,
                logged.type,
                logged.event.session_id,
                logged.thread,
                logged.line,
                logged.joined_from,
                None if logged.type in DELTA_EVENTS else crc32(logged.line),
            ),
        )
        return bool(self._out.changes())

    def _read_pages(self, source: apsw.Connection | None, unreadable: Sequence[Stretch]) -> int:
        """Search the pages for more events if anything was wrong; return the number of new ones.

        If nothing was wrong, only the WAL is suspicious: SQLite reads it up to the first damaged frame
        and ignores the others silently. Their events are newer than all that it has read.
        """
        is_whole = not (
            source is None or self._findings.errors or unreadable or self._damaged_lines
        )
        head = self._head() if is_whole else 0
        restored = 0
        with PageReader(self._path, wal_of(self._path)) as pages:
            if is_whole and not pages.wal_frames:
                return 0
            for row in pages.rows():
                if isinstance(row, StoredLine):
                    restored += self._take_raw(row, head)
                else:
                    artifacts.take_raw(self._out, row)
        return restored - self._drop_joined()

    def _drop_joined(self) -> int:
        """Drop deltas from stale pages that a joined delta replaces; return their number."""
        before = self._out.total_changes()
        joined = "SELECT run_id, type, joined_from, seq FROM events WHERE joined_from IS NOT NULL"
        self._out.executemany(
            "DELETE FROM events WHERE run_id = ? AND type = ? AND seq >= ? AND seq < ?",
            list(self._out.execute(joined)),
        )
        return self._out.total_changes() - before

    def _take_raw(self, stored: StoredLine, head: int) -> bool:
        query = "SELECT 1 FROM events WHERE seq = ?"
        if stored.seq <= head or self._out.execute(query, (stored.seq,)).get:
            return False
        logged = read_line(stored)
        return not isinstance(logged, str) and self._put(logged)

    # --- rows ----------------------------------------------------------------------------------

    def _fold(self, refold: Refold) -> RunWalker:
        """Rebuild the rows from the events; return the state of the runs."""
        runs = RunWalker(refold.has_ended)
        query = f"SELECT {STORED_LINE} FROM events ORDER BY seq"  # noqa: S608
        for count, row in enumerate(self._out.execute(query), 1):
            logged = read_line(StoredLine(*row))
            assert not isinstance(logged, str), logged
            fault = runs.follow(logged)
            if fault is not None:
                self._findings.add(f"run {logged.run_id}", f"{fault} (evt-{logged.seq})")
            refold.apply(logged)
            if count % PROGRESS_EVENTS == 0:
                self._progress(count)
        return runs

    def _mend(self, refold: Refold, events: Iterator[Event], first: int) -> int:
        """Append new events, numbered from ``first``; return how many."""
        seq = first
        for event in events:
            ts = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            logged = build_logged_event(seq, event, ts)
            if logged is None:
                continue
            self._put(logged)
            refold.apply(logged)
            of = logged.thread or event.session_id
            self._findings.add(f"evt-{seq}", f"was added: {logged.type} of {of}", "note")
            seq += 1
        return seq - first

    # --- numbers -------------------------------------------------------------------------------

    def _head(self) -> int:
        head: int = self._out.execute("SELECT coalesce(max(seq), 0) FROM events").get
        return head

    def _beyond(self) -> int:
        """Return a number above all that were ever assigned, for a log whose counter is unreadable."""
        return self._head() + NUMBERS_PER_BLOCK + size_of(self._path) // _EVENT_BYTES_MIN

    # --- report ------------------------------------------------------------------------------

    def _report_missing(self, unreadable: Sequence[Stretch], end: int) -> Sequence[Stretch]:
        """Report and return the ranges without events; ``end`` is the first number after the log's."""
        gaps = []
        query = "SELECT seq FROM events WHERE seq BETWEEN ? AND ? ORDER BY seq"
        for first, last in unreadable:
            bound = min(last, end - 1)
            expected = first
            for (seq,) in self._out.execute(query, (first, bound)):
                if seq > expected:
                    gaps.append(Stretch(expected, seq - 1))
                expected = seq + 1
            if expected <= bound:
                gaps.append(Stretch(expected, bound))
        for first, last in gaps:
            where = f"evt-{first}" if first == last else f"evt-{first} to evt-{last}"
            self._findings.add(where, "was not found: lost, or a number that was never given")
        return gaps[:FINDINGS_MAX]

    def _report_losses(self, rows: RowReader) -> None:
        """Report the known losses."""
        for seq, fault in self._damaged_lines.items():
            if self._out.execute("SELECT 1 FROM events WHERE seq = ?", (seq,)).get is None:
                self._findings.add(f"evt-{seq}", f"is lost: it {fault}")
        for session_id, entry_id, parent_id in self._out.execute(_ORPHANS):
            self._findings.add(
                f"entry {entry_id} of {session_id}", f"hangs on the lost entry {parent_id}"
            )
        for session_id, artifact_id in self._out.execute(_ARTIFACTS_LOST):
            self._findings.add(f"artifact {artifact_id} of {session_id}", "is lost")
        for table in sorted(rows.failed):
            self._findings.add(
                f"the table {table}",
                "could not be read whole; its rows were made again from the events",
                "note",
            )

    def _finish(self) -> None:
        """Move the WAL into the database file and flush it to disk."""
        self._out.pragma("synchronous", "FULL")
        complaint = self._out.pragma("integrity_check")
        assert complaint == "ok", complaint
        self._out.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        flush_to_disk(self._target)
        flush_to_disk(self._target.parent)


_ORPHANS: Final = """
    SELECT e.session_id, e.entry_id, e.parent_id FROM entries AS e
    LEFT JOIN entries AS p ON p.session_id = e.session_id AND p.entry_id = e.parent_id
    WHERE e.parent_id IS NOT NULL AND p.entry_id IS NULL
"""
_ARTIFACTS_LOST: Final = """
    SELECT session_id, artifact_id FROM artifact_uses
    WHERE artifact_id NOT IN (SELECT artifact_id FROM artifacts)
"""


def _merge_stretches(stretches: Sequence[Stretch]) -> Sequence[Stretch]:
    """Return the stretches in order, with neighbours merged."""
    joined: list[Stretch] = []
    for first, last in sorted(stretches):
        if joined and first <= joined[-1].last + 1:
            joined[-1] = Stretch(joined[-1].first, max(joined[-1].last, last))
        else:
            joined.append(Stretch(first, last))
    return joined
