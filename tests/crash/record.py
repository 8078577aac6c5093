"""What clients of a daemon were told, held against what its log says after crashes.

Tell a ``CrashRecord`` every acknowledgement and event line that a client got, feed it the log from its
start, and it collects the violations of what the daemon promises. It knows the wire and nothing of
how the load is made, who dies when, or of the daemon. The parts have files of their own:
``inputs``, ``runs``, ``calls`` and ``sessions``; here are the log and its events
as such.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.crash.calls import CallRecord
from tests.crash.inputs import InputRecord
from tests.crash.runs import RunRecord
from tests.crash.sessions import SessionRecord
from tests.crash.violations import Violations
from tests.harness.lifecycle import LifecycleChecker

Payload = Mapping[str, Any]


@dataclass(frozen=True)
class _Logged:
    line: bytes
    type: str
    session_id: str


class CrashRecord:
    """Collects ``violations``. The cost of a check depends on the new events only."""

    def __init__(self) -> None:
        self.violations = Violations()
        self.sessions = SessionRecord(self.violations)
        self.inputs = InputRecord(self.violations, self.sessions)
        self.runs = RunRecord(self.violations, self.sessions)
        self.calls = CallRecord(self.violations, self.sessions)
        self.seen_events = 0
        self._lifecycle = LifecycleChecker()
        self._log: dict[int, _Logged] = {}
        self._seqs: list[int] = []
        self._seqs_of: dict[str, list[int]] = {}
        self._seen: dict[int, bytes] = {}
        self._read_events: list[Payload] = []
        self._cursor = 0
        self._times: list[str] = []

    @property
    def head(self) -> int:
        """The number of the newest event that was read."""
        return self._seqs[-1] if self._seqs else 0

    @property
    def events(self) -> int:
        """The number of events in the log."""
        return len(self._log)

    # --- what clients were told ---

    def told_event(self, line: bytes) -> None:
        """Take an event line that a subscriber got."""
        self.seen_events += 1
        seq = _seq(json.loads(line))
        same = self._seen.setdefault(seq, line) == line
        self.violations.unless(same, f"evt-{seq} was told in two ways")

    def told_read_event(self, event: Payload) -> None:
        """Take an event that a client got as an answer."""
        self.seen_events += 1
        self._read_events.append(event)

    def told_cursor(self, cursor: str) -> None:
        """Take a cursor that a client received."""
        self._cursor = max(self._cursor, int(cursor.removeprefix("evt-")))

    # --- what the log says ---

    def read(self, line: bytes) -> None:
        """Take the next event line of the log."""
        event = json.loads(line)
        try:
            self._lifecycle.feed(line)
        except AssertionError as error:
            self.violations.append(str(error))
        seq, type, payload = _seq(event), event["type"], event["payload"]
        self._log[seq] = _Logged(line, type, payload.get("session_id", ""))
        self._seqs.append(seq)
        self._seqs_of.setdefault(self._log[seq].session_id, []).append(seq)
        self._times.append(event["ts"])
        self.sessions.read(type, payload)
        self.inputs.read(type, payload)
        self.runs.read(type, payload, event["ts"])
        self.calls.read(type, payload)
        if type == "session_deleted":
            for gone in self._seqs_of.pop(payload["session_id"])[:-1]:
                del self._log[gone]

    def check(self, marks: Iterable[str], *, head: int) -> None:
        """Check all that is new, when the log was read to its head and nothing runs.

        Args:
            marks: what ran commands have left since the last check.
            head: the newest event there is, as the daemon says.
        """
        try:
            self._lifecycle.finish()
        except AssertionError as error:
            self.violations.append(str(error))
        good = self._cursor <= head
        self.violations.unless(good, f"evt-{self._cursor} was told, the log ends at evt-{head}")
        self._check_seen()
        self.sessions.check()
        self.inputs.check()
        self.runs.check(marks)
        self.calls.check()

    def check_stream(
        self, after: int, lines: Sequence[bytes], types: frozenset[str] | None
    ) -> None:
        """Check the lines of a subscriber: the bytes of the log, without gaps and duplicates.

        Args:
            after: where it began.
            types: what it asked for; None: everything.
        """
        told = [line for line in lines if not self._is_of_deleted(line)]
        last = _seq(json.loads(told[-1])) if told else after
        reached = self._seqs[bisect_right(self._seqs, after) : bisect_right(self._seqs, last)]
        logged = [self._log[seq] for seq in reached if seq in self._log]
        expected = [each.line for each in logged if types is None or each.type in types]
        for each in set(told) ^ set(expected):
            where = "in the log only" if each in expected else "in the stream only"
            self.violations.append(f"after evt-{after}, {where}: {each!r}")
        good = told == expected or set(told) != set(expected)
        self.violations.unless(good, f"after evt-{after} a stream has another order or duplicates")

    def check_reread(self, lines: Iterable[bytes]) -> None:
        """Check that the whole log, read again, is unchanged."""
        again = {_seq(json.loads(line)): line for line in lines}
        for seq in sorted(again.keys() | self._log.keys()):
            logged = self._log.get(seq)
            good = logged is not None and again.get(seq) == logged.line
            self.violations.unless(good, f"evt-{seq} is not what it was: {again.get(seq)!r}")

    def wrote_between(self, start: str, end: str) -> bool:
        """True if an event since the last ``forget_times`` has a time between the two."""
        return any(start <= ts <= end for ts in self._times)

    def forget_times(self) -> None:
        """Forget the times of the events read so far."""
        self._times.clear()

    def _check_seen(self) -> None:
        for seq, line in self._seen.items():
            logged = self._log.get(seq)
            good = self._is_of_deleted(line) or (logged is not None and logged.line == line)
            self.violations.unless(good, f"seen, but not so in the log: {line!r}")
        for event in self._read_events:
            logged = self._log.get(_seq(event))
            good = event["payload"].get("session_id") in self.sessions.deleted or (
                logged is not None and json.loads(logged.line) == event
            )
            self.violations.unless(good, f"read, but not so in the log: {event}")
        self._seen.clear()
        self._read_events.clear()

    def _is_of_deleted(self, line: bytes) -> bool:
        event = json.loads(line)
        if event["type"] == "session_deleted":
            return False
        return event["payload"].get("session_id") in self.sessions.deleted


def _seq(event: Payload) -> int:
    return int(event["id"].removeprefix("evt-"))
