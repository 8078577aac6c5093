"""The calls that wait for somebody to say whether they may run.

A request stands in the log before anyone is asked, and so does the answer before whoever gave it is
told that it counts. The first answer wins. Waiting has an end: the user's, the limit's, or that of the
run. Why somebody has to be asked, and what an answer means for later calls, is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec
import trio

from nousd.daemon.clock import Clock, later
from nousd.daemon.log import Ticket
from nousd.errors import CommandRejected
from nousd.machine.long_texts import beginning
from nousd.runtimes.calls.host import Answer, Question
from nousd.wire import events
from nousd.wire.events import Event

Decide = Callable[[Sequence[Event]], Ticket]
"""Makes events happen to the session of a call, and to its run if it has one."""

APPROVAL_SECONDS: Final = 900.0


class Pending(msgspec.Struct):
    """A call that waits."""

    question: Question
    expires_at: str
    decide: Decide
    answered: trio.Event = msgspec.field(default_factory=trio.Event)
    answer: Answer | None = None


class Approvals:
    """All calls that wait, of all sessions.

    Args:
        timeout_seconds: how long a call waits at most.
    """

    def __init__(self, clock: Clock, timeout_seconds: float = APPROVAL_SECONDS) -> None:
        self.timeout_seconds = timeout_seconds
        self._clock = clock
        self._pending: dict[str, Pending] = {}
        self._confirmers = 0

    def pending(self) -> tuple[Pending, ...]:
        """Returns the calls that wait, the oldest first."""
        return tuple(self._pending.values())

    def can_answer(self, count: int) -> None:
        """Counts clients that have declared that they can answer; negative for those that left."""
        self._confirmers += count

    async def ask(self, question: Question, decide: Decide) -> Answer:
        """Waits for an answer; see ``CallHost.ask``."""
        if not self._confirmers:
            reason = f"{question.reason}, and no connected client can be asked"
            return _settled(question, Answer(allows=False, by="policy", reason=reason), decide)
        expires_at = later(self._clock.now(), timedelta(seconds=self.timeout_seconds))
        waiting = Pending(question, expires_at, decide)
        call_id = question.call["tool_call_id"]
        decide(_requested(waiting))
        self._pending[call_id] = waiting
        try:
            with trio.move_on_after(self.timeout_seconds):
                await waiting.answered.wait()
        finally:
            self._pending.pop(call_id, None)
        if waiting.answer is not None:
            return waiting.answer
        late = f"nobody answered within {self.timeout_seconds:g} seconds"
        return _settled(question, Answer(allows=False, by="timeout", reason=late), decide)

    def answer(self, tool_call_id: str, attempt: int, input_hash: str, answer: Answer) -> Ticket:
        """Answers for a call; the ticket tells when that is durable.

        Raises:
            CommandRejected: ``tool_call_not_pending``, ``attempt_mismatch``, ``input_hash_mismatch``;
                the call goes on waiting.
        """
        waiting = self._pending.get(tool_call_id)
        if waiting is None:
            raise CommandRejected("tool_call_not_pending")
        call = waiting.question.call
        if call["attempt"] != attempt:
            raise CommandRejected("attempt_mismatch", details={"attempt": call["attempt"]})
        if call["input_hash"] != input_hash:
            raise CommandRejected("input_hash_mismatch")
        ticket = waiting.decide(_decision(waiting.question, answer))
        waiting.answer = answer
        del self._pending[tool_call_id]
        waiting.answered.set()
        return ticket


def _requested(waiting: Pending) -> list[Event]:
    question = waiting.question
    call: dict[str, Any] = dict(question.call)
    told: list[Event] = [
        events.PermissionRequested(
            **call,
            args=dict(question.args),
            reason=beginning(question.reason),
            rule=question.rule,
            expires_at=waiting.expires_at,
        )
    ]
    return told


def _decision(question: Question, answer: Answer) -> list[Event]:
    call: dict[str, Any] = dict(question.call)
    reason = beginning(answer.reason)
    kind = events.ToolCallApproved if answer.allows else events.ToolCallDenied
    said = events.ToolCallPolicyEvaluated(
        **call, source="user", decision="allow" if answer.allows else "deny", reason=reason
    )
    return [said, kind(**call, by=answer.by, reason=reason)]


def _settled(question: Question, answer: Answer, decide: Decide) -> Answer:
    decide(_decision(question, answer))
    return answer
