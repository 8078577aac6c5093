"""Pending approvals and questions of the interactive client, and the lines that answer them.

A line answers the oldest request, which is shown whole; each later one is announced by a line. One
thread receives requests, another the lines.

Somebody else may answer while a line is typed, and then the next request is shown. A line only answers
the request that was shown first while it was typed: a late "yes" does not count for the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from nousd.cli.render.request_lines import NoAnswer, answer_to, question_lines, request_lines
from nousd.client.answers import ReceivedEvent
from nousd.errors import Refused

Payload = Mapping[str, Any]

Ask = Callable[[str, Mapping[str, Any]], object]
"""Sends a command and returns its answer, or raises Refused."""

Say = Callable[[str], None]
"""Shows a text in one piece, without text of another thread in between."""

_DECISIONS: Final = {
    "y": "once",
    "yes": "once",
    "s": "session",
    "a": "always",
    "n": "deny",
    "no": "deny",
}
"""typed word -> decision."""

_TOO_LATE: Final = "(not sent: what you answer is over)"

_HOW: Final = "  y yes, s for the session, a always, n [REASON] no"
_HOW_ONCE: Final = "  y yes, n [REASON] no"
_HOW_TO_ANSWER: Final = "  a number or your own words; /reject [REASON] leaves it"


class _Command(NamedTuple):
    """The command that a line stands for."""

    type: str
    payload: dict[str, Any]


class _Request:
    """A call that waits for approval."""

    def __init__(self, payload: Payload) -> None:
        self._payload = payload

    @property
    def lines(self) -> list[str]:
        what, *why = request_lines(self._payload)
        how = _HOW_ONCE if "outside" in self._payload else _HOW
        return [f"? {what}", *(f"  {line}" for line in why), how]

    @property
    def brief(self) -> str:
        return f"(after that: {request_lines(self._payload)[0]})"

    def answered(self, line: str) -> _Command:
        """Return the answer in a line, once it is complete.

        Raises:
            NoAnswer: the line is not an answer.
        """
        word, _, reason = line.partition(" ")
        decision = _DECISIONS.get(word.lower())
        if decision is None or (reason and decision != "deny"):
            raise NoAnswer("(a call waits for you: y, s, a or n)")
        named = {key: self._payload[key] for key in ("tool_call_id", "attempt", "input_hash")}
        more = {"reason": reason} if reason else {}
        return _Command("confirm_tool", {**named, "decision": decision, **more})

    def rejected(self, reason: str) -> _Command:
        return self.answered(f"n {reason}".strip())

    def may_mean(self, line: str) -> bool:
        """Return whether a line can be an answer to this."""
        with suppress(NoAnswer):
            return bool(self.answered(line))
        return False


class _Question:
    """A question of a tool; of several questions the next one is shown."""

    def __init__(self, payload: Payload) -> None:
        self._payload = payload
        self._answers: list[dict[str, Any]] = []

    @property
    def lines(self) -> list[str]:
        what, *options = question_lines(self._payload["questions"][len(self._answers)])
        return [f"? {what}", *options, _HOW_TO_ANSWER]

    @property
    def brief(self) -> str:
        return f"(after that: {question_lines(self._payload['questions'][0])[0]})"

    def answered(self, line: str) -> _Command | None:
        """Take the answer to one question; return the command once all have one.

        Raises:
            NoAnswer: the line is not an answer.
        """
        questions = self._payload["questions"]
        self._answers.append(answer_to(questions[len(self._answers)], line))
        if len(self._answers) < len(questions):
            return None
        answers, self._answers = self._answers, []
        named = {"question_id": self._payload["question_id"]}
        return _Command("answer_question", {**named, "answers": answers})

    def rejected(self, reason: str) -> _Command:
        more = {"reason": reason} if reason else {}
        return _Command("reject_question", {"question_id": self._payload["question_id"], **more})

    def may_mean(self, _line: str) -> bool:
        """Any line can be an answer to this."""
        return True


class OpenRequests:
    """All pending requests by id, the oldest first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, _Request | _Question] = {}
        self._sent: set[str] = set()
        self._shown = ""
        """The id of the request that was last shown whole."""
        self._meant: _Request | _Question | None = None
        """The id of the request that the line being typed answers."""

    def begin_line(self) -> None:
        """Note that a line is being typed: it answers the request that is shown, or is shown next."""
        _, oldest = self._oldest()
        with self._lock:
            self._meant = oldest

    def add_listed(self, pending: list[Payload], questions: list[Payload]) -> list[str]:
        """Add pending requests; return the lines that show them."""
        asked = [("permission_requested", each) for each in pending]
        asked += [("question_asked", each) for each in questions]
        return [line for type_, payload in asked for line in self._add(type_, payload)]

    def note(self, event: ReceivedEvent) -> list[str]:
        """Take an event; return the lines to show."""
        if event.type in ("permission_requested", "question_asked"):
            return self._add(event.type, event.payload)
        if event.type in _ENDS and self._forget(event.payload.get(_ENDS[event.type], "")):
            return [f"(over: {event.payload.get('reason', 'answered')})", *self._next()]
        return []

    def clear(self) -> None:
        """Forget everything, because another session is shown from now on."""
        with self._lock:
            self._waiting.clear()
            self._sent.clear()
            self._shown = ""
            self._meant = None

    def take(self, line: str, ask: Ask, say: Say) -> bool:
        """Send the answer in a line; return whether it was one."""
        id, oldest = self._oldest()
        if self._is_too_late(oldest, line):
            _say_all([_TOO_LATE, *(oldest.lines if oldest else ())], say)
            return True
        if oldest is None:
            return False
        try:
            command = oldest.answered(line)
        except NoAnswer as error:
            say(str(error))
            return isinstance(oldest, _Question)
        if command is None:
            _say_all(oldest.lines, say)
        else:
            self._send(id, command, ask, say)
        return True

    def reject(self, reason: str, ask: Ask, say: Say) -> None:
        """Deny the pending request."""
        id, oldest = self._oldest()
        if self._is_too_late(oldest):
            _say_all([_TOO_LATE, *(oldest.lines if oldest else ())], say)
        elif oldest is None:
            say("nothing waits for you")
        else:
            self._send(id, oldest.rejected(reason), ask, say)

    def _is_too_late(self, oldest: _Request | _Question | None, line: str = "n") -> bool:
        """Return whether a line answers a request that has ended."""
        with self._lock:
            meant = self._meant
        return meant is not None and meant is not oldest and meant.may_mean(line)

    def _add(self, type_: str, payload: Payload) -> list[str]:
        is_request = type_ == "permission_requested"
        id = payload["tool_call_id" if is_request else "question_id"]
        asked = _Request(payload) if is_request else _Question(payload)
        with self._lock:
            if id in self._waiting:
                return []
            self._waiting[id] = asked
        return self._next() or [asked.brief]

    def _next(self) -> list[str]:
        """Return the lines that show the request that a line answers now, if it was not shown yet."""
        id, oldest = self._oldest()
        with self._lock:
            if oldest is None or id == self._shown:
                return []
            self._shown = id
            if self._meant is None:
                self._meant = oldest
        return oldest.lines

    def _oldest(self) -> tuple[str, _Request | _Question | None]:
        """Return the first request without a sent answer."""
        with self._lock:
            open_ones = (each for each in self._waiting.items() if each[0] not in self._sent)
            return next(open_ones, ("", None))

    def _forget(self, id: str) -> bool:
        with self._lock:
            self._sent.discard(id)
            if self._shown == id:
                # There may be another request about the same call.
                self._shown = ""
            return self._waiting.pop(id, None) is not None

    def _send(self, id: str, command: _Command, ask: Ask, say: Say) -> None:
        self._sent.add(id)
        try:
            ask(command.type, command.payload)
        except Refused as refused:
            if refused.message not in _OVER:
                self._sent.discard(id)
                raise
            self._forget(id)
            say(f"{refused}")
        _say_all(self._next(), say)


def _say_all(lines: list[str], say: Say) -> None:
    if lines:
        say("\n".join(lines))


_OVER: Final = frozenset(
    {
        "already_decided",
        "already_answered",
        "tool_call_not_found",
        "tool_call_not_pending",
        "question_not_found",
    }
)
"""Refusals that mean: nobody waits for the answer any more."""

_ENDS: Final = {
    "tool_call_approved": "tool_call_id",
    "tool_call_denied": "tool_call_id",
    "question_answered": "question_id",
    "question_rejected": "question_id",
}
"""The events that end a request -> the key of its id."""
