"""Pending approvals and questions of the interactive client, and the lines that answer them.

A line answers the oldest request, which is shown in full; later ones are announced by one line each.

A line answers only the request that was shown when its typing began: not one that appeared later, nor
the next one if another client answered the first meanwhile. A pasted line does not decide a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from nousd.cli.output import harmless, snippet
from nousd.cli.render.change_lines import change_lines, without_texts
from nousd.cli.render.refusals import refusal_text
from nousd.cli.render.request_lines import (
    NoAnswer,
    answer_to,
    call_lines,
    question_lines,
    request_line,
    rule_line,
    why_lines,
)
from nousd.client.answers import ReceivedEvent
from nousd.errors import Refused

Payload = Mapping[str, Any]

Ask = Callable[[str, Mapping[str, Any]], object]
"""Sends a command and returns its answer, or raises Refused."""

Say = Callable[[str], None]
"""Shows a text in one piece."""

_DECISIONS: Final = {
    "y": "once",
    "yes": "once",
    "s": "session",
    "a": "always",
    "n": "deny",
    "no": "deny",
}
"""Typed word -> decision."""

_TOO_LATE: Final = "(not sent: what you answer is over)"

_TOO_EARLY: Final = "(not sent: you began to type before this was shown)"
_PASTED: Final = "(not sent: a call is decided by hand, not by a paste)"

_HINT: Final = "  y yes, s for the session, a always, n [REASON] no"
_HINT_FOR_GOOD: Final = "  y allows that from now on, n goes back"
_HINT_ONCE: Final = "  y yes, n [REASON] no"
_HINT_QUESTION: Final = "  a number or your own words; /reject [REASON] leaves it"


class _Command(NamedTuple):
    """The command that carries an answer."""

    type: str
    payload: dict[str, Any]


class _Request:
    """A call that waits for approval. "Always" needs a second confirmation, which shows the rule."""

    def __init__(self, payload: Payload, folder: str) -> None:
        self._payload = payload
        self._folder = folder
        self._asked_for_rule = False
        self._has_rule = "rule" in payload and "outside" not in payload

    @property
    def lines(self) -> list[str]:
        if self._asked_for_rule:
            rule = harmless(rule_line(self._payload["rule"]), one_line=True)
            question = "? always allow, without asking, every call that this rule covers:"
            return [question, f"  {rule}", _HINT_FOR_GOOD]
        question, *args = call_lines(without_texts(self._payload))
        change = change_lines(self._payload, self._folder)
        hint = _HINT if self._has_rule else _HINT_ONCE
        return [
            f"? {question}",
            *(f"  {line}" for line in (*args, *change, *why_lines(self._payload))),
            hint,
        ]

    @property
    def brief(self) -> str:
        return f"(after that: {snippet(request_line(without_texts(self._payload)))})"

    def take_answer(self, line: str) -> _Command | None:
        """Return the command for the answer in a line; None if the user must answer once more.

        Raises:
            NoAnswer: the line is not an answer.
        """
        decision, reason = self._decision(line)
        confirms_rule, self._asked_for_rule = self._asked_for_rule, False
        if confirms_rule:
            return self._command("always", "") if decision == "once" else None
        if decision == "always" and self._has_rule:
            self._asked_for_rule = True
            return None
        return self._command(decision, reason)

    def build_rejection(self, reason: str) -> _Command:
        return self._command("deny", reason)

    def may_mean(self, line: str) -> bool:
        """Return whether a line can answer this request."""
        with suppress(NoAnswer):
            return bool(self._decision(line))
        return False

    def _decision(self, line: str) -> tuple[str, str]:
        word, _, reason = line.partition(" ")
        decision = _DECISIONS.get(word.lower())
        if decision is None or (reason and decision != "deny"):
            raise NoAnswer("(a call waits for you: y, s, a or n)")
        return decision, reason

    def _command(self, decision: str, reason: str) -> _Command:
        ids = {key: self._payload[key] for key in ("tool_call_id", "attempt", "input_hash")}
        more = {"reason": reason} if reason else {}
        return _Command("confirm_tool", {**ids, "decision": decision, **more})


class _Question:
    """Questions of a tool, which are shown one after the other."""

    def __init__(self, payload: Payload) -> None:
        self._payload = payload
        self._answers: list[dict[str, Any]] = []

    @property
    def lines(self) -> list[str]:
        question, *options = question_lines(self._payload["questions"][len(self._answers)])
        return [f"? {question}", *options, _HINT_QUESTION]

    @property
    def brief(self) -> str:
        return f"(after that: {question_lines(self._payload['questions'][0])[0]})"

    def take_answer(self, line: str) -> _Command | None:
        """Record the answer to one question; return the command when all are answered.

        Raises:
            NoAnswer: the line is not an answer.
        """
        questions = self._payload["questions"]
        self._answers.append(answer_to(questions[len(self._answers)], line))
        if len(self._answers) < len(questions):
            return None
        answers, self._answers = self._answers, []
        ids = {"question_id": self._payload["question_id"]}
        return _Command("answer_question", {**ids, "answers": answers})

    def build_rejection(self, reason: str) -> _Command:
        more = {"reason": reason} if reason else {}
        return _Command("reject_question", {"question_id": self._payload["question_id"], **more})

    def may_mean(self, _line: str) -> bool:
        """Return True: any line can answer a question."""
        return True


class OpenRequests:
    """All pending requests by id, the oldest first."""

    def __init__(self) -> None:
        self.folder = ""
        """The workspace of the session, for relative paths."""
        self._pending: dict[str, _Request | _Question] = {}
        self._sent: set[str] = set()
        self._shown = ""
        """The id of the request that was last shown in full."""
        self._target: _Request | _Question | None = None
        """The request that the line being typed answers."""
        self._is_typing = False

    def begin_line(self, *, is_typing: bool = False) -> None:
        """Make the next line answer the oldest request, or the next one that is shown.

        Args:
            is_typing: whether the line was begun already, so that it answers no later request.
        """
        self._is_typing = is_typing
        _, self._target = self._oldest()

    def note_typing(self, is_typing: bool) -> None:  # noqa: FBT001  a callback with one argument
        """Note that typing of a line began, or that the line was erased."""
        self._is_typing = is_typing
        if not is_typing:
            self.begin_line()

    def add_listed(self, pending: list[Payload], questions: list[Payload]) -> list[str]:
        """Add the pending requests that the daemon listed; return the lines that show them."""
        events = [("permission_requested", each) for each in pending]
        events += [("question_asked", each) for each in questions]
        return [line for type_, payload in events for line in self._add(type_, payload)]

    def note(self, event: ReceivedEvent, client: str = "") -> list[str]:
        """Update the requests with an event; return the lines to show.

        Args:
            client: the name of another client that caused the event, or "".
        """
        if event.type in ("permission_requested", "question_asked"):
            return self._add(event.type, event.payload)
        if event.type in _END_EVENTS and self._forget(
            event.payload.get(_END_EVENTS[event.type], "")
        ):
            by = f", by {client}" if client else ""
            return [f"(over: {event.payload.get('reason', 'answered')}{by})", *self._next()]
        return []

    def clear(self) -> None:
        """Forget all requests, because another session is shown now."""
        self._pending.clear()
        self._sent.clear()
        self._shown = ""
        self._target = None

    def take(self, line: str, ask: Ask, say: Say, *, pasted: bool = False) -> bool:
        """Send the answer in a line; return whether the line was treated as one.

        Args:
            pasted: whether part of the line was not typed.
        """
        id, oldest = self._oldest()
        reason = self._why_not(oldest, line, pasted=pasted)
        if reason:
            say("\n".join([reason, *(oldest.lines if oldest else ())]))
            return True
        if oldest is None or (self._target is None and isinstance(oldest, _Question)):
            return False
        try:
            command = oldest.take_answer(line)
        except NoAnswer as error:
            say(str(error))
            return isinstance(oldest, _Question)
        if command is None:
            say("\n".join(oldest.lines))
        else:
            self._send(id, command, ask, say)
        return True

    def reject(self, reason: str, ask: Ask, say: Say) -> None:
        """Reject the oldest pending request."""
        id, oldest = self._oldest()
        refusal = self._why_not(oldest, "n")
        if refusal:
            say("\n".join([refusal, *(oldest.lines if oldest else ())]))
        elif oldest is None:
            say("nothing waits for you")
        else:
            self._send(id, oldest.build_rejection(reason), ask, say)

    def _why_not(
        self, oldest: _Request | _Question | None, line: str, *, pasted: bool = False
    ) -> str:
        """Return why a line is not accepted as an answer; "" if it is, or if it is not an answer."""
        target = self._target
        if target is not None and target is not oldest:
            return _TOO_LATE if target.may_mean(line) else ""
        if not isinstance(oldest, _Request) or not oldest.may_mean(line):
            return ""
        return _TOO_EARLY if target is None else _PASTED if pasted else ""

    def _add(self, type_: str, payload: Payload) -> list[str]:
        is_request = type_ == "permission_requested"
        id = payload["tool_call_id" if is_request else "question_id"]
        request = _Request(payload, self.folder) if is_request else _Question(payload)
        if id in self._pending:
            return []
        self._pending[id] = request
        return self._next() or [request.brief]

    def _next(self) -> list[str]:
        """Return the lines that show the oldest request, if it was not shown yet."""
        id, oldest = self._oldest()
        if oldest is None or id == self._shown:
            return []
        self._shown = id
        if self._target is None and not self._is_typing:
            self._target = oldest
        return oldest.lines

    def _oldest(self) -> tuple[str, _Request | _Question | None]:
        """Return the first request without a sent answer."""
        open_ones = (each for each in self._pending.items() if each[0] not in self._sent)
        return next(open_ones, ("", None))

    def _forget(self, id: str) -> bool:
        self._sent.discard(id)
        if self._shown == id:
            # Another request about the same call may follow.
            self._shown = ""
        return self._pending.pop(id, None) is not None

    def _send(self, id: str, command: _Command, ask: Ask, say: Say) -> None:
        self._sent.add(id)
        is_sent = False
        try:
            ask(command.type, command.payload)
            is_sent = True
        except Refused as refused:
            if refused.message not in _ENDED_CODES:
                raise
            self._forget(id)
            say(refusal_text(refused, in_chat=True))
        finally:
            if not is_sent:
                self._sent.discard(id)
        shown = self._next()
        if shown:
            say("\n".join(shown))


_ENDED_CODES: Final = frozenset(
    {
        "already_decided",
        "already_answered",
        "tool_call_not_found",
        "tool_call_not_pending",
        "question_not_found",
    }
)
"""Refusals which mean that the answer is no longer needed."""

_END_EVENTS: Final = {
    "tool_call_approved": "tool_call_id",
    "tool_call_denied": "tool_call_id",
    "question_answered": "question_id",
    "question_rejected": "question_id",
}
"""Event that settles a request -> the key of its id."""
