"""Questions of tools that wait for the user.

A question is the event ``question_asked``, its end ``question_answered`` or ``question_rejected``. The
call that asks keeps running and decides what to do with the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from nousd.daemon.clock import Clock, later
from nousd.daemon.eventlog.log import CommitHandle
from nousd.daemon.policy.approvers import Approvers
from nousd.daemon.policy.requests import (
    Asker,
    PassedOver,
    Request,
    Requests,
    status_of,
    with_client,
)
from nousd.errors import (
    CommandRejected,
    InvalidPayload,
    SessionNotFound,
    StoreError,
    Unanswered,
)
from nousd.machine.context.text_offload import beginning
from nousd.tools.interface import UserAnswers
from nousd.wire import events
from nousd.wire.events import Event, QuestionAsked
from nousd.wire.objects.questions import QuestionAnswer, UserQuestion

_STOPPED: Final = "its call is being stopped"

_PASSED_OVER: Final[Mapping[PassedOver, str]] = {
    "steer": "they sent a message instead, which comes next",
    "stop": "the agent ended its turn without an answer",
}


class QuestionEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a question: its ``answers``, or the author (``by``) and ``reason`` of a rejection.

    Args:
        client_id: the name of the client that ended it, if it gave one.
    """

    answers: UserAnswers = ()
    by: Literal["user", "timeout", "stop", "steer"] = "user"
    reason: str = ""
    client_id: str | UnsetType = UNSET


class Questions:
    """The pending questions of all sessions.

    Args:
        timeout_seconds: how long a question waits for an answer.
    """

    def __init__(self, clock: Clock, approvers: Approvers, timeout_seconds: float) -> None:
        self.requests: Requests[QuestionAsked, QuestionEnd] = Requests(approvers, timeout_seconds)
        self._clock = clock

    async def ask(
        self, call: Mapping[str, Any], questions: Sequence[UserQuestion], asker: Asker
    ) -> UserAnswers:
        """Ask the user on behalf of a running call and wait for the answers.

        Args:
            call: the keys that the events of the call share.

        Raises:
            Unanswered: no client answers questions, none answered in time, or the user sent a steer
                instead.
        """
        obstacle = self.requests.obstacle(asker)
        if obstacle is not None:
            raise Unanswered(obstacle)
        passed_over = asker.passed_over()
        if passed_over is not None:
            raise Unanswered(_PASSED_OVER[passed_over])
        request = self._request(call, questions, asker)
        asking = [request.event, *status_of("question_asked", request.event)]
        ended = await self.requests.wait(request, asking)
        if ended is None:
            seconds = self.requests.timeout_seconds
            ended = QuestionEnd(by="timeout", reason=f"nobody answered within {seconds:g} seconds")
            self._reject(request, ended)
        if not ended.answers:
            raise Unanswered(ended.reason)
        return ended.answers

    async def answer(
        self, question_id: str, answers: UserAnswers, client_id: str | UnsetType = UNSET
    ) -> CommitHandle:
        """Answer a question; the handle is resolved when the answer is durable.

        Raises:
            CommandRejected: ``question_not_found``, ``already_answered``.
            InvalidPayload: the answers do not fit; the question stays pending.
        """
        request = await self._require_pending(question_id)
        _require_fitting(request.event.questions, answers)
        answered = events.QuestionAnswered(
            **request.event.call, question_id=question_id, answers=answers, client_id=client_id
        )
        ended = QuestionEnd(answers=answers, client_id=client_id)
        return self.requests.end(request, ended, [answered])

    async def reject(
        self, question_id: str, reason: str, client_id: str | UnsetType = UNSET
    ) -> CommitHandle:
        """Reject a question; the handle is resolved when the rejection is durable.

        Raises:
            CommandRejected: as ``answer``.
        """
        ended = QuestionEnd(reason=reason, client_id=client_id)
        return self._reject(await self._require_pending(question_id), ended)

    def skip_passed_over(self) -> None:
        """Reject the questions whose answers are no longer waited for; their calls tell the model."""
        for request, passed_over in self.requests.list_passed_over():
            # If the call's own session is lost, the call ends with its run.
            with suppress(StoreError, SessionNotFound):
                self._reject(request, QuestionEnd(by=passed_over, reason=_PASSED_OVER[passed_over]))

    def withdraw(self, tool_call_id: str) -> None:
        """Withdraw the pending questions of a call that is being stopped."""
        self.requests.withdraw(tool_call_id, QuestionEnd(by="stop", reason=_STOPPED))

    def _request(
        self, call: Mapping[str, Any], questions: Sequence[UserQuestion], asker: Asker
    ) -> Request[QuestionAsked, QuestionEnd]:
        seconds = self.requests.timeout_seconds
        event = QuestionAsked(
            **call,
            question_id=self._clock.new_id("ques"),
            questions=tuple(questions),
            expires_at=later(self._clock.now(), timedelta(seconds=seconds)),
        )
        return Request(event.question_id, event, asker)

    async def _require_pending(self, question_id: str) -> Request[QuestionAsked, QuestionEnd]:
        """Return a question that can be answered. Nothing is awaited after it is found.

        Raises:
            CommandRejected: ``question_not_found``, ``already_answered``.
        """
        request = self.requests.find_waiting(question_id)
        if request is not None:
            return request
        ended = await self.requests.find_end(question_id)
        if ended is None:
            raise CommandRejected("question_not_found")
        outcome = "answered" if ended.answers else "rejected"
        details = {"outcome": outcome, "by": ended.by, "reason": ended.reason}
        details = with_client(details, ended.client_id)
        raise CommandRejected("already_answered", details=details)

    def _reject(
        self, request: Request[QuestionAsked, QuestionEnd], ended: QuestionEnd
    ) -> CommitHandle:
        rejected = events.QuestionRejected(
            **request.event.call,
            question_id=request.id,
            by=ended.by,
            reason=beginning(ended.reason),
            client_id=ended.client_id,
        )
        decided: list[Event] = [rejected]
        return self.requests.end(request, ended, decided)


def _require_fitting(questions: Sequence[UserQuestion], answers: UserAnswers) -> None:
    if len(answers) != len(questions):
        raise InvalidPayload(f"answers must have {len(questions)} items, one for each question")
    for index, (question, answer) in enumerate(zip(questions, answers, strict=True)):
        fault = _fault(question, answer)
        if fault is not None:
            raise InvalidPayload(f"answers[{index}]{fault}")


def _fault(question: UserQuestion, answer: QuestionAnswer) -> str | None:
    """Return the fault in one answer, worded to follow its name."""
    labels = {option.label for option in question.options}
    text = answer.text or ""
    if not answer.chosen and not text.strip():
        return " must choose an option or have a text"
    if not labels.issuperset(answer.chosen):
        return ".chosen must name options of the question"
    if len(set(answer.chosen)) < len(answer.chosen):
        return ".chosen must name an option once"
    if len(answer.chosen) > 1 and not question.multiple:
        return ".chosen must name one option: the question takes no more"
    return None
