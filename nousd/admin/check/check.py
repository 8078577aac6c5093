"""``nousd check``: verifies a log completely without changing anything.

It rebuilds the log's rows from its events, in a separate database, and compares them. So it needs disk
space for the rows (``SQLITE_TMPDIR``, else ``/var/tmp``), and memory for one event and the open runs.

A daemon may be running: everything is read in one transaction, which is one snapshot of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import apsw
import msgspec

from nousd.admin.check import artifacts, checksums
from nousd.admin.check.compare import TABLES, Table, differences, meanings_in
from nousd.admin.check.findings import PROGRESS_EVENTS, Finding, Findings, Progress, no_progress
from nousd.admin.check.refold import Refold
from nousd.admin.check.run_audit import RunWalker
from nousd.admin.reading.deletions import EVENT_IS_KEPT, find_doomed
from nousd.admin.reading.lines import STORED_LINE, StoredLine, read_line
from nousd.admin.reading.log_files import complaints, open_log_beside, require_finished, size_of
from nousd.errors import StoreError
from nousd.store.sqlite.database import inspect


class CheckReport(msgspec.Struct, frozen=True):
    """The findings of a check.

    Args:
        untold: the number of findings that are not listed.
        events: the number of events; ``head`` is the number of the last event.
        bytes: size of the database and its WAL.
    """

    path: str
    findings: Sequence[Finding]
    untold: int = 0
    errors: int = 0
    events: int = 0
    head: int = 0
    bytes: int = 0

    @property
    def summary(self) -> str:
        """One line for people."""
        advice = "; --salvage OUT saves what can be read" if self.bytes else ""
        found = f"{self.errors} errors{advice}" if self.errors else "no damage"
        unlisted = f" ({self.untold} findings not shown)" if self.untold else ""
        size = f"{self.events} events up to evt-{self.head}, {self.bytes} bytes"
        return f"{self.path}: {size}: {found}{unlisted}"


def check(path: Path, *, progress: Progress = no_progress) -> CheckReport:
    """Check the log at ``path``; a file that is not a nousd log is a finding too."""
    findings = Findings()
    look = _Look(findings, progress)
    if _is_worth_opening(path, findings):
        try:
            with open_log_beside(path, "log") as connection:
                look.at(connection, path)
        except StoreError as error:
            findings.add(str(path), f"cannot be checked: {error}")
    return CheckReport(
        path=str(path),
        findings=findings.kept,
        untold=findings.unlisted,
        errors=findings.errors,
        events=look.events,
        head=look.head,
        bytes=size_of(path),
    )


def _is_worth_opening(path: Path, findings: Findings) -> bool:
    """Check the file before SQLite opens it; return whether it can be a log with content."""
    subject = str(path)
    try:
        inspect(path)
        require_finished(path)
    except StoreError as error:
        findings.add(subject, str(error).removeprefix(f"{subject} "))
        return False
    if not path.exists():
        findings.add(subject, "is not there: no daemon was ever started on this folder")
        return False
    if path.stat().st_size == 0:
        findings.add(subject, "is empty: the next start makes a new log of it")
        return False
    return True


class _Look:
    """One check of an open log: the rebuilt database is ``main``, the log itself ``log``."""

    def __init__(self, findings: Findings, progress: Progress) -> None:
        self.events = self.head = 0
        self._findings = findings
        self._progress = progress

    def at(self, connection: apsw.Connection, path: Path) -> None:
        """Run the steps in order; a step that fails is a finding.

        The transaction is rolled back when the connection closes.
        """
        connection.execute("BEGIN")
        self._take(str(path), self._pages, connection)
        self._take("the deletions", self._deletions, connection)
        self._take("the checksums", self._checksums, connection)
        if self._take("the log", self._walk, connection):
            # Rows are compared only if all events could be read; otherwise all would seem wrong.
            for table in TABLES:
                self._take(f"the table {table.name}", partial(self._rows, table), connection)
            self._take("the settings of new sessions", self._defaults, connection)
        self._take("the counter", self._counter, connection)
        self._take("the entries", self._bodies, connection)
        self._take("the artifacts", self._artifacts, connection)

    def _take(
        self, where: str, step: Callable[[apsw.Connection], None], connection: apsw.Connection
    ) -> bool:
        try:
            step(connection)
        except (apsw.Error, UnicodeError, ValueError) as error:
            self._findings.add(where, f"cannot be read: {error}")
            return False
        return True

    def _pages(self, connection: apsw.Connection) -> None:
        for complaint in complaints(connection, "log"):
            self._findings.add("the database", f"is damaged: {complaint}")

    def _deletions(self, connection: apsw.Connection) -> None:
        for session_id in find_doomed(connection, "log"):
            self._findings.add(f"session {session_id}", _BEING_DELETED, "note")

    # --- events --------------------------------------------------------------------------------

    def _walk(self, connection: apsw.Connection) -> None:
        """Read every event once: verify its line and its position in its run, and rebuild its rows."""
        rows = Refold(connection, partial(_adopt, connection))
        runs = RunWalker(rows.has_ended)
        for row in connection.execute(_EVENTS):
            self.events += 1
            self.head = row[0]
            logged = read_line(StoredLine(*row))
            if isinstance(logged, str):
                self._findings.add(f"evt-{self.head}", logged)
                continue
            fault = runs.follow(logged)
            if fault is not None:
                self._findings.add(f"run {logged.run_id}", f"{fault} (evt-{self.head})")
            rows.apply(logged)
            if self.events % PROGRESS_EVENTS == 0:
                self._progress(self.events)
        for open_run in runs.open_runs:
            self._findings.add(f"run {open_run}", _OPEN_RUN, "note")

    def _checksums(self, connection: apsw.Connection) -> None:
        for fault in checksums.faults(connection):
            self._findings.add(fault.where, fault.what)

    def _counter(self, connection: apsw.Connection) -> None:
        counters = list(connection.execute("SELECT next_seq FROM log.log_state"))
        if len(counters) != 1:
            self._findings.add("the counter", f"has {len(counters)} rows instead of one")
            return
        [(next_seq,)] = counters
        if self.head >= next_seq:
            self._findings.add(
                "the counter", f"says evt-{next_seq} comes next, and evt-{self.head} is there"
            )

    # --- rows ----------------------------------------------------------------------------------

    def _rows(self, table: Table, connection: apsw.Connection) -> None:
        for where, what in differences(connection, table):
            self._findings.add(where, what)

    def _defaults(self, connection: apsw.Connection) -> None:
        """Compare the active session and the defaults; a deleted session's events may have set them."""
        rebuilt, stored = (
            connection.execute(query).get for query in (_STATE_REBUILT, _STATE_STORED)
        )
        if stored is None:
            return  # a fault of the counter too, reported there
        any_deleted = connection.execute("SELECT 1 FROM main.sessions WHERE deleted").get
        if stored[0] is not None and not Refold(connection, _adopt_nothing).has_session(stored[0]):
            self._findings.add("the active session", f"is {stored[0]}, which is not there")
        meaning = meanings_in(connection.pragma("user_version", schema="log"))["settings"]
        if any_deleted is None and (rebuilt[0], meaning(rebuilt[1])) != (
            stored[0],
            meaning(stored[1]),
        ):
            self._findings.add("the settings of new sessions", "differ from their events")

    def _bodies(self, connection: apsw.Connection) -> None:
        for session_id, entry_id in connection.execute(_WITHOUT_BODY):
            self._findings.add(f"entry {entry_id} of {session_id}", "has lost its body")
        for (seq,) in connection.execute(_WITHOUT_ENTRY):
            self._findings.add(f"the body of entry {seq}", "belongs to no session")

    def _artifacts(self, connection: apsw.Connection) -> None:
        for fault in artifacts.faults(connection):
            self._findings.add(fault.where, fault.what, fault.severity)


_OPEN_RUN: Final = "has no end: it is at work, or will be closed at the next start"

_BEING_DELETED: Final = "is being deleted: the next start drops what is left of it"

_EVENTS: Final = f"SELECT {STORED_LINE} FROM log.events WHERE {EVENT_IS_KEPT} ORDER BY seq"  # noqa: S608
_STATE_REBUILT: Final = "SELECT active_session_id, defaults FROM main.log_state"
_STATE_STORED: Final = "SELECT active_session_id, defaults FROM log.log_state"
_WITHOUT_BODY: Final = """
    SELECT e.session_id, e.entry_id FROM log.entries AS e
    LEFT JOIN log.entry_bodies AS b ON b.seq = e.seq WHERE b.seq IS NULL
"""
_WITHOUT_ENTRY: Final = """
    SELECT b.seq FROM log.entry_bodies AS b
    WHERE NOT EXISTS (SELECT 1 FROM log.entries AS e WHERE e.seq = b.seq)
"""

_ADOPT: Final = (
    """
    INSERT OR IGNORE INTO main.entries (session_id, entry_id, parent_id, seq, role, snippet)
    SELECT session_id, entry_id, parent_id, seq, role, snippet FROM log.entries
    WHERE session_id = :branch AND seq < :first
    """,
    """
    INSERT OR IGNORE INTO main.entry_bodies (seq, body) SELECT seq, body FROM log.entry_bodies
    WHERE seq IN (SELECT seq FROM log.entries WHERE session_id = :branch AND seq < :first)
    """,
    "DELETE FROM main.artifact_uses WHERE session_id = :branch",
    """
    INSERT OR IGNORE INTO main.artifact_uses (session_id, artifact_id)
    SELECT session_id, artifact_id FROM log.artifact_uses WHERE session_id = :branch
    """,
)


def _adopt(connection: apsw.Connection, branch: str, first: int) -> None:
    for statement in _ADOPT:
        connection.execute(statement, {"branch": branch, "first": first})


def _adopt_nothing(_branch: str, _first: int) -> None:
    pass
