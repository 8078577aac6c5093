"""Runs and their tools: what clients were told of them, held against the log and the next start.

Feed a ``RunRecord`` the events of the log and the marks that commands have left in a file, tell it what
clients were told, and ``check`` it. Whether the events of a run are balanced is the matter of
``tests.harness.lifecycle``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.crash.sessions import SessionRecord
from tests.crash.violations import Violations

Payload = Mapping[str, Any]

MARK: Final = re.compile(r"MARK-[\w-]+")
"""What a bash command leaves in a file when it runs. Each text that asks for one has its own."""


@dataclass
class _Run:
    session_id: str
    status: str | None = None
    speaker: str = ""
    answers: tuple[str, ...] = ()


class RunRecord:
    """The known facts of runs. ``ended``: the runs that have ended since the last check."""

    def __init__(self, violations: Violations, sessions: SessionRecord) -> None:
        self.violations = violations
        self.count = 0
        self.tool_calls = 0
        self.ended: list[str] = []
        self._sessions = sessions
        self._down_since: str | None = None
        self._runs: dict[str, _Run] = {}
        self._new_runs: list[tuple[str, str]] = []
        self._new_results: list[Payload] = []
        self._new_ends: list[Payload] = []
        self._sessions_of_marks: dict[str, str] = {}
        self._marks_of_calls: dict[str, str] = {}
        self._calls_of_marks: Counter[str] = Counter()
        self._marks_due: set[str] = set()
        self._marks: Counter[str] = Counter()

    # --- what clients were told ---

    def told_started(self, run_id: str, session_id: str) -> None:
        """Take a run that a client started or submitted an input to."""
        self._new_runs.append((run_id, session_id))

    def told_result(self, result: Payload) -> None:
        """Take the result of a prompt that waited for its run."""
        self.told_started(result["run_id"], result["session_id"])
        self._new_results.append(result)

    def told_run(self, record: Payload) -> None:
        """Take the record of a run that a client has read."""
        self.told_started(record["run_id"], record["session_id"])
        if record["status"] != "running":
            self._new_ends.append(record)

    def asked(self, session_id: str, text: str) -> None:
        """Take a text that was sent, whatever the answer; its marks may appear from now on."""
        for mark in MARK.findall(text):
            self._sessions_of_marks[mark] = session_id

    def died(self, now: str) -> None:
        """Take the time at which a daemon ended uncleanly, as events tell it."""
        self._down_since = now

    # --- what the log says ---

    def read(self, type: str, payload: Payload, ts: str) -> None:
        """Take the next event of the log."""
        rule = _RULES.get(type)
        if rule is not None:
            rule(self, payload, ts)

    def check(self, marks: Iterable[str]) -> None:
        """Check all that is new against the log up to its head, while nothing runs.

        Args:
            marks: what ran commands have left since the last check.
        """
        for run_id, session_id in self._new_runs:
            good = run_id in self._runs or self._sessions.is_lost(session_id)
            self.violations.unless(good, f"{run_id} was acknowledged and never began")
        for result in self._new_results:
            self._check_result(result)
        for record in self._new_ends:
            self._check_end(record["run_id"], record["session_id"], record["status"])
        self._new_runs.clear()
        self._new_results.clear()
        self._new_ends.clear()
        self._check_marks(Counter(marks))

    # --- what the daemon says after a start ---

    def check_run(self, run: Payload) -> None:
        """Check a run's record against its events."""
        known = self._runs.get(run["run_id"])
        ended = None if known is None else known.status
        self.violations.unless(run["status"] == ended, f"{run}, by its events {ended}")

    def _check_result(self, result: Payload) -> None:
        self._check_end(result["run_id"], result["session_id"], result["status"])
        known = self._runs.get(result["run_id"])
        # Which of them counts is tested elsewhere; "" if no turn took the prompt.
        good = known is None or result["output"] in ("", *known.answers)
        self.violations.unless(good, f"the result {result} is by the log {known}")

    def _check_end(self, run_id: str, session_id: str, status: str) -> None:
        known = self._runs.get(run_id)
        ended = None if known is None else known.status
        good = status == ended or self._sessions.is_lost(session_id)
        self.violations.unless(good, f"{run_id} was told to be {status}, by the log it is {ended}")

    def _check_marks(self, touched: Counter[str]) -> None:
        self._marks.update(touched)
        for mark in touched:
            ran, calls = self._marks[mark], self._calls_of_marks[mark]
            # A deleted session has taken the events of its calls along.
            family = self._sessions.is_family_of_deleted(self._sessions_of_marks.get(mark, ""))
            good = ran <= calls or family
            self.violations.unless(good, f"{mark} ran {ran} times for {calls} begun calls")
        for mark in self._marks_due:
            self.violations.unless(mark in self._marks, f"{mark} is said to have run and has not")
        self._marks_due.clear()

    # --- one rule per event ---

    def _agent_start(self, payload: Payload, _ts: str) -> None:
        self.count += 1
        self._runs[payload["run_id"]] = _Run(payload["session_id"])

    def _agent_end(self, payload: Payload, ts: str) -> None:
        run_id, status = payload["run_id"], payload["status"]
        known = self._runs.get(run_id)
        if known is None:
            self.violations.append(f"agent_end of {run_id}, which never began")
            return
        self.violations.unless(known.status is None, f"second agent_end of {run_id}")
        known.status = status
        self.ended.append(run_id)
        if self._down_since is not None and ts >= self._down_since:
            good = status == "interrupted"
            self.violations.unless(good, f"{run_id} was cut off and ended {status}")

    def _message_start(self, payload: Payload, _ts: str) -> None:
        if (run := self._runs.get(payload["run_id"])) is not None:
            run.speaker = payload["role"]

    def _message_end(self, payload: Payload, _ts: str) -> None:
        run = self._runs.get(payload["run_id"])
        if run is not None and run.speaker == "assistant":
            run.answers += (payload["text"],)

    def _tool_start(self, payload: Payload, _ts: str) -> None:
        self.tool_calls += 1
        for mark in MARK.findall(str(payload["args"])):
            self._marks_of_calls[payload["tool_call_id"]] = mark
            self._calls_of_marks[mark] += 1

    def _tool_end(self, payload: Payload, _ts: str) -> None:
        mark = self._marks_of_calls.pop(payload["tool_call_id"], None)
        if mark is None:
            return
        if not payload["executed"]:
            self._calls_of_marks[mark] -= 1
        elif not payload["is_error"]:
            self._marks_due.add(mark)

    def _call_requested(self, payload: Payload, _ts: str) -> None:
        # Those of runs are counted by their brackets.
        if "run_id" not in payload:
            for mark in MARK.findall(str(payload["args"])):
                self._marks_of_calls[payload["tool_call_id"]] = mark

    def _call_started(self, payload: Payload, _ts: str) -> None:
        if "run_id" not in payload and payload["tool_call_id"] in self._marks_of_calls:
            self._calls_of_marks[self._marks_of_calls[payload["tool_call_id"]]] += 1

    def _call_completed(self, payload: Payload, _ts: str) -> None:
        if "run_id" not in payload:
            self.tool_calls += 1
            mark = self._marks_of_calls.pop(payload["tool_call_id"], None)
            if mark is not None and not payload["is_error"]:
                self._marks_due.add(mark)


_RULES: Final[dict[str, Callable[[RunRecord, Payload, str], None]]] = {
    "agent_start": RunRecord._agent_start,
    "agent_end": RunRecord._agent_end,
    "message_start": RunRecord._message_start,
    "message_end": RunRecord._message_end,
    "tool_execution_start": RunRecord._tool_start,
    "tool_execution_end": RunRecord._tool_end,
    "tool_call_requested": RunRecord._call_requested,
    "tool_call_started": RunRecord._call_started,
    "tool_call_completed": RunRecord._call_completed,
}
