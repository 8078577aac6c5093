"""What clients of a daemon were told, held against what its log says after crashes.

Tell a ``CrashRecord`` every acknowledgement and event line that a client got, feed it the log from its
start, and it collects the violations of what the daemon promises. It knows the wire and nothing of
how the load is made, who dies when, or of the daemon.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.lifecycle import LifecycleChecker

Payload = Mapping[str, Any]

MARK: Final = re.compile(r"MARK-[\w-]+")
"""What a bash command leaves in a file when it runs. Each text that asks for one has its own."""


@dataclass
class _Input:
    session_id: str
    text: str
    state: str = "pending"
    in_entry: bool = False


@dataclass(frozen=True)
class Handed:
    """An input as a client handed it in."""

    type: str
    session_id: str
    text: str
    client_message_id: str

    def payload(self) -> dict[str, Any]:
        """The command's payload; sending it again must change nothing."""
        waits = {"wait": False} if self.type == "prompt" else {}
        return {
            "session_id": self.session_id,
            "text": self.text,
            "client_message_id": self.client_message_id,
            **waits,
        }


class CrashRecord:
    """Collects ``violations``, each a line for people. Checks cost what is new, not what there is."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.accepted: dict[str, Handed] = {}
        self.log: dict[int, bytes] = {}
        self.runs: dict[str, str | None] = {}
        self.changed_sessions: set[str] = set()
        self.ended_runs: list[str] = []
        self.seen_events = 0
        self.tool_calls = 0
        self._lifecycle = LifecycleChecker()
        self._down_since: str | None = None
        self._new_inputs: list[str] = []
        self._new_runs: list[str] = []
        self._new_cleared: list[str] = []
        self._seen: dict[int, bytes] = {}
        self._inputs: dict[str, _Input] = {}
        self._client_message_ids: set[tuple[str, str]] = set()
        self._marks_of_calls: dict[str, str] = {}
        self._calls_of_marks: Counter[str] = Counter()
        self._marks_due: set[str] = set()
        self._marks: Counter[str] = Counter()

    @property
    def head(self) -> int:
        """The number of the newest event that was read."""
        return max(self.log, default=0)

    # --- what clients were told ---

    def told_accepted(self, handed: Handed, answer: Payload) -> None:
        """Takes the acknowledgement of an input."""
        input_id = answer["input_id"]
        if input_id in self.accepted:
            self._expect(handed == self.accepted[input_id], f"{input_id} is given for two inputs")
            return
        self.accepted[input_id] = handed
        self._new_inputs.append(input_id)
        self._new_runs.append(answer["run_id"])

    def told_started(self, answer: Payload) -> None:
        """Takes the acknowledgement of a ``resume``."""
        self._new_runs.append(answer["run_id"])

    def told_cleared(self, answer: Payload) -> None:
        """Takes the acknowledgement of an ``abort`` or a ``clear_queue``."""
        self._new_cleared += [item["input_id"] for item in answer["cleared"]]

    def told_event(self, line: bytes) -> None:
        """Takes an event line that a subscriber got."""
        self.seen_events += 1
        seq = _seq(json.loads(line))
        self._expect(self._seen.setdefault(seq, line) == line, f"evt-{seq} was told in two ways")

    def died(self, now: str) -> None:
        """Takes the time at which a daemon ended uncleanly, as events tell it."""
        self._down_since = now

    # --- what the log says ---

    def read(self, line: bytes) -> None:
        """Takes the next event line of the log."""
        event = json.loads(line)
        try:
            self._lifecycle.feed(line)
        except AssertionError as error:
            self.violations.append(str(error))
        self.log[_seq(event)] = line
        payload = event["payload"]
        if "session_id" in payload:
            self.changed_sessions.add(payload["session_id"])
        rule = _RULES.get(event["type"])
        if rule is not None:
            rule(self, payload, event["ts"])

    def check(self, marks: Iterable[str]) -> None:
        """Checks all that is new, when the log was read to its head and nothing runs.

        Args:
            marks: what ran commands have left since the last check.
        """
        try:
            self._lifecycle.finish()
        except AssertionError as error:
            self.violations.append(str(error))
        self._check_told()
        touched = Counter(marks)
        self._marks.update(touched)
        for mark in touched:
            ran, calls = self._marks[mark], self._calls_of_marks[mark]
            self._expect(ran <= calls, f"{mark} ran {ran} times for {calls} begun calls")
        for mark in self._marks_due:
            self._expect(mark in self._marks, f"{mark} is said to have run and has not")
        self._marks_due.clear()

    def check_queue(self, session_id: str, inputs: Sequence[Payload]) -> None:
        """Checks a session's ``get_queue`` against its events."""
        told = {item["input_id"]: item["text"] for item in inputs}
        expected = {
            input_id: item.text
            for input_id, item in self._inputs.items()
            if (item.session_id, item.state) == (session_id, "pending")
        }
        self._expect(told == expected, f"queue of {session_id}: {told}, by its events {expected}")

    def check_run(self, run: Payload) -> None:
        """Checks a run's record against its events."""
        ended = self.runs.get(run["run_id"])
        self._expect(run["status"] == ended, f"{run}, by its events {ended}")

    def check_resent(self, handed: Handed, first: str, answer: Payload | None) -> None:
        """Checks that an accepted input, handed in again, got its first acknowledgement again."""
        again = None if answer is None else answer.get("input_id")
        self._expect(again == first, f"{handed} was {first} and, sent again, {again}")

    def check_reread(self, lines: Iterable[bytes]) -> None:
        """Checks that the whole log, read again, is what it was."""
        again = {_seq(json.loads(line)): line for line in lines}
        for seq in sorted(again.keys() | self.log.keys()):
            same = again.get(seq) == self.log.get(seq)
            self._expect(same, f"evt-{seq} is not what it was: {again.get(seq)!r}")

    def _check_told(self) -> None:
        for seq, line in self._seen.items():
            self._expect(self.log.get(seq) == line, f"seen, but not so in the log: {line!r}")
        for input_id in self._new_inputs:
            handed, logged = self.accepted[input_id], self._inputs.get(input_id)
            self._expect(logged is not None, f"{input_id} was accepted and is not in the log")
            same = logged is None or logged.text == handed.text
            self._expect(same, f"the text of {input_id} has changed: {logged}")
        for input_id in self._new_cleared:
            cleared = self._inputs.get(input_id)
            good = cleared is not None and cleared.state == "cleared"
            self._expect(good, f"{input_id} was told to be cleared: {cleared}")
        for run_id in self._new_runs:
            self._expect(run_id in self.runs, f"{run_id} was acknowledged and never began")
        for new in (self._seen, self._new_inputs, self._new_cleared, self._new_runs):
            new.clear()

    def _expect(self, good: bool, violation: str) -> None:
        if not good:
            self.violations.append(violation)

    # --- one rule per event ---

    def _agent_start(self, payload: Payload, _ts: str) -> None:
        self.runs[payload["run_id"]] = None

    def _agent_end(self, payload: Payload, ts: str) -> None:
        run_id, status = payload["run_id"], payload["status"]
        if run_id not in self.runs:
            self.violations.append(f"agent_end of {run_id}, which never began")
            return
        self._expect(self.runs[run_id] is None, f"second agent_end of {run_id}")
        self.runs[run_id] = status
        self.ended_runs.append(run_id)
        if self._down_since is not None and ts >= self._down_since:
            self._expect(status == "interrupted", f"{run_id} was cut off and ended {status}")

    def _queue_update(self, payload: Payload, _ts: str) -> None:
        for item in payload["inputs"]:
            self._change(payload["change"], payload["session_id"], item)

    def _change(self, change: str, session_id: str, item: Payload) -> None:
        input_id = item["input_id"]
        if change == "accepted":
            self._expect(input_id not in self._inputs, f"{input_id} is in the log twice")
            self._inputs[input_id] = _Input(session_id, item["text"])
            given = (session_id, item.get("client_message_id", input_id))
            self._expect(given not in self._client_message_ids, f"{given} was accepted twice")
            self._client_message_ids.add(given)
            return
        known = self._inputs.get(input_id)
        if known is None or known.state != "pending":
            self.violations.append(f"{input_id} was {change} while it was {known}")
            return
        self._expect(
            item["text"] == known.text, f"the text of {input_id} changed as it was {change}"
        )
        if change != "promoted":
            known.state = change

    def _entry_appended(self, payload: Payload, _ts: str) -> None:
        entry = payload["entry"]
        if entry.get("role") != "user":
            return
        inputs = [self._inputs.get(input_id) for input_id in entry.get("input_ids", [])]
        found = [item for item in inputs if item is not None]
        whole = len(found) == len(inputs) and entry["text"] == "\n".join(i.text for i in found)
        self._expect(whole, f"a user's entry is not its inputs: {entry}")
        for item in found:
            self._expect(not item.in_entry, f"an input is in two entries: {item}")
            item.in_entry = True

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


def _seq(event: Payload) -> int:
    return int(event["id"].removeprefix("evt-"))


_RULES: Final[dict[str, Callable[[CrashRecord, Payload, str], None]]] = {
    "agent_start": CrashRecord._agent_start,
    "agent_end": CrashRecord._agent_end,
    "queue_update": CrashRecord._queue_update,
    "entry_appended": CrashRecord._entry_appended,
    "tool_execution_start": CrashRecord._tool_start,
    "tool_execution_end": CrashRecord._tool_end,
}
