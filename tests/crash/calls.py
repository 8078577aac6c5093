"""Tool calls: what clients were told of them and decided, held against the log and the next start.

Tell a ``CallRecord`` every call that a client made, every answer for one that waited and every rule that
was granted, feed it the events of the log, and ``check`` it; then show it each attempt as the daemon
tells it after a start, and the answers to calls that are sent again. It knows
protocol/semantics/tools.md and permissions.md alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.crash.sessions import SessionRecord
from tests.crash.violations import Violations

Payload = Mapping[str, Any]
AttemptKey = tuple[str, int]

_ENDED: Final = frozenset({"denied", "completed", "not_started"})


@dataclass(frozen=True)
class Made:
    """A call as a client made it."""

    session_id: str
    tool: str
    command: str
    client_call_id: str

    @property
    def key(self) -> tuple[str, str]:
        """The key by which a call that is sent again is the same call."""
        return self.session_id, self.client_call_id

    def payload(self) -> dict[str, Any]:
        """The command's payload; sending it again must run nothing."""
        return {
            "session_id": self.session_id,
            "tool": self.tool,
            "args": {"command": self.command},
            "client_call_id": self.client_call_id,
        }


@dataclass(frozen=True)
class _Answer:
    key: AttemptKey
    session_id: str
    decision: str
    by: str


@dataclass
class _Attempt:
    session_id: str
    is_of_run: bool
    state: str = "requested"
    by: str = ""
    executed: bool = False

    def end(self) -> None:
        """The attempt is over, however far it came."""
        if self.state != "denied":
            self.state = "completed" if self.executed else "not_started"


@dataclass
class CallRecord:
    """The known facts of the calls of all rounds.

    Args:
        accepted: those that a client made and was told to be accepted, by ``key``.
        changed: the attempts with events since the last check.
        decided: how many answers of clients were acknowledged.
    """

    violations: Violations
    sessions: SessionRecord
    accepted: dict[tuple[str, str], tuple[Made, str]] = field(default_factory=dict)
    changed: dict[AttemptKey, str] = field(default_factory=dict)
    decided: int = 0
    _attempts: dict[AttemptKey, _Attempt] = field(default_factory=dict)
    _started: set[str] = field(default_factory=set)
    _ids: dict[tuple[str, str], str] = field(default_factory=dict)
    _rules: dict[str, set[str]] = field(default_factory=dict)
    _granted: set[tuple[str, str]] = field(default_factory=set)
    _revoked: set[tuple[str, str]] = field(default_factory=set)
    _new_accepted: list[tuple[str, str]] = field(default_factory=list)
    _new_answers: list[_Answer] = field(default_factory=list)
    _new_grants: list[tuple[str, str]] = field(default_factory=list)
    _new_revoked: list[tuple[str, str]] = field(default_factory=list)
    _new_records: list[Payload] = field(default_factory=list)

    # --- what clients were told ---

    def told_accepted(self, made: Made, tool_call_id: str) -> None:
        """Take the acknowledgement of a call."""
        _, first = self.accepted.setdefault(made.key, (made, tool_call_id))
        same = first == tool_call_id
        self.violations.unless(same, f"{made} was acknowledged as {first} and {tool_call_id}")
        self._new_accepted.append(made.key)

    def told_decided(self, request: Payload, decision: str, by: str) -> None:
        """Take that a call which waited was ``approved`` or ``denied``: by this client, or before."""
        self.decided += by == "user"
        key = (request["tool_call_id"], request["attempt"])
        self._new_answers.append(_Answer(key, request["session_id"], decision, by))

    def told_granted(self, session_id: str, rule: str) -> None:
        """Take that a rule was granted, in a session or ("") in all."""
        self._new_grants.append((session_id, rule))

    def told_revoked(self, session_id: str, rule: str) -> None:
        """Take that a rule was taken back."""
        self._new_revoked.append((session_id, rule))

    def told_record(self, call: Payload) -> None:
        """Take an attempt as a client has read it."""
        self._new_records.append(call)

    # --- what the log says ---

    def read(self, type: str, payload: Payload) -> None:
        """Take the next event of the log."""
        if type == "session_updated" and not {"granted", "granted_in"}.isdisjoint(payload):
            self._grants(payload)
        elif type == "tool_call_requested":
            self._requested(payload)
        elif type in _RULES:
            key = (payload["tool_call_id"], payload.get("attempt", 1))
            attempt = self._attempts.get(key)
            if attempt is not None and not payload.get("origin"):
                self.changed[key] = attempt.session_id
                _RULES[type](self, key, attempt, payload)

    def check(self) -> None:
        """Check what clients were told since the last check against the log up to its head."""
        for key in self._new_accepted:
            made, told = self.accepted[key]
            good = self._ids.get(key) == told or self.sessions.is_lost(made.session_id)
            self.violations.unless(good, f"{made} was told as {told} and is {self._ids.get(key)}")
        for answer in self._new_answers:
            self._check_answer(answer)
        self._check_told_rules(self._new_grants, self._granted, "granted")
        self._check_told_rules(self._new_revoked, self._revoked, "taken back")
        for call in self._new_records:
            attempt = self._attempts.get((call["tool_call_id"], call["attempt"]))
            logged_state = None if attempt is None else attempt.state
            is_open = call["state"] not in _ENDED or self.sessions.is_lost(call["session_id"])
            good = is_open or call["state"] == logged_state
            self.violations.unless(good, f"{call} was told, by the log it is {attempt}")
        self._new_accepted.clear()
        self._new_answers.clear()
        self._new_grants.clear()
        self._new_revoked.clear()
        self._new_records.clear()

    # --- what the daemon says after a start ---

    def check_attempt(self, key: AttemptKey, call: Payload | None) -> None:
        """Check that the daemon shows an attempt as in its events, and ended."""
        attempt = self._attempts[key]
        if self.sessions.is_lost(attempt.session_id):
            self.violations.unless(call is None, f"{key} is of a deleted session: {call}")
            return
        told = None if call is None else (call["state"], call["executed"])
        good = told == (attempt.state, attempt.executed) and attempt.state in _ENDED
        self.violations.unless(good, f"{key} is told as {call}, by its events {attempt}")

    def check_rules(self, session_id: str, answer: Payload) -> None:
        """Check a session's ``list_permissions``: nothing is pending, and grants are in force."""
        self.violations.unless(not answer["pending"], f"{session_id}: waits by itself: {answer}")
        for place, key in ((session_id, "granted"), ("", "granted_everywhere")):
            expected = self._rules.get(place, set())
            good = set(answer[key]) == expected
            self.violations.unless(good, f"{place!r}: granted {answer[key]}, by events {expected}")

    def check_resent(self, made: Made, answer: Payload | None) -> None:
        """Check that a call, sent again, got its first acknowledgement again."""
        is_lost = self.sessions.is_lost(made.session_id)
        expected = None if is_lost else self._ids.get(made.key)
        told = None if answer is None else answer["tool_call_id"]
        self.violations.unless(told == expected, f"{made} is {expected} and, sent again, {told}")

    def _check_answer(self, answer: _Answer) -> None:
        if self.sessions.is_lost(answer.session_id):
            return
        attempt = self._attempts.get(answer.key)
        logged = None if attempt is None else (attempt.state == "denied", attempt.by)
        good = logged == (answer.decision == "denied", answer.by)
        self.violations.unless(good, f"{answer} was told, by the log it is {attempt}")

    def _check_told_rules(
        self, told: Iterable[tuple[str, str]], logged: set[tuple[str, str]], what: str
    ) -> None:
        for session_id, rule in told:
            good = (session_id, rule) in logged or self.sessions.is_lost(session_id)
            self.violations.unless(good, f"{rule} was told to be {what} in {session_id!r}")

    # --- one rule per event ---

    def _grants(self, payload: Payload) -> None:
        place, rules = payload["session_id"], set(payload.get("granted", ()))
        # All sessions of a campaign work in one folder.
        rules.update(*payload.get("granted_in", {}).values())
        before = self._rules.get(place, set())
        self._granted |= {(place, rule) for rule in rules - before}
        self._revoked |= {(place, rule) for rule in before - rules}
        self._rules[place] = rules

    def _requested(self, payload: Payload) -> None:
        session_id = payload["session_id"]
        key = (payload["tool_call_id"], payload["attempt"])
        # With a deleted session its attempts are forgotten, and a branch counts on from those left.
        new = key not in self._attempts or self.sessions.is_family_of_deleted(session_id)
        self.violations.unless(new, f"{key} was requested twice")
        self._attempts[key] = _Attempt(session_id, "run_id" in payload)
        self.changed[key] = session_id
        if "client_call_id" in payload:
            made = (session_id, payload["client_call_id"])
            self.violations.unless(made not in self._ids, f"{made} was made twice")
            self._ids[made] = payload["tool_call_id"]

    def _asked(self, _key: AttemptKey, attempt: _Attempt, _payload: Payload) -> None:
        attempt.state = "waiting"

    def _decided(self, key: AttemptKey, attempt: _Attempt, payload: Payload, state: str) -> None:
        self.violations.unless(not attempt.by, f"a second decision about {key}: {payload}")
        attempt.state, attempt.by = state, payload["by"]

    def _approved(self, key: AttemptKey, attempt: _Attempt, payload: Payload) -> None:
        self._decided(key, attempt, payload, "approved")

    def _denied(self, key: AttemptKey, attempt: _Attempt, payload: Payload) -> None:
        self._decided(key, attempt, payload, "denied")

    def _began(self, key: AttemptKey, attempt: _Attempt, _payload: Payload) -> None:
        allowed = attempt.state == "approved"
        self.violations.unless(allowed, f"{key} was started while it was {attempt}")
        again = key[0] not in self._started or attempt.by == "user"
        self.violations.unless(again, f"{key} ran again, and nobody was asked: {attempt}")
        self._started.add(key[0])
        attempt.state, attempt.executed = "started", True

    def _completed(self, key: AttemptKey, attempt: _Attempt, _payload: Payload) -> None:
        good = attempt.state == "started" or (attempt.state == "approved" and not attempt.is_of_run)
        self.violations.unless(good, f"{key} was completed while it was {attempt}")
        attempt.end()

    def _bracket_ended(self, _key: AttemptKey, attempt: _Attempt, _payload: Payload) -> None:
        attempt.end()


_RULES: Final[dict[str, Callable[[CallRecord, AttemptKey, _Attempt, Payload], None]]] = {
    "permission_requested": CallRecord._asked,
    "tool_call_approved": CallRecord._approved,
    "tool_call_denied": CallRecord._denied,
    "tool_call_started": CallRecord._began,
    "tool_call_completed": CallRecord._completed,
    "tool_execution_end": CallRecord._bracket_ended,
}
