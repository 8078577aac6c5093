"""Tool calls that wait for approval.

A request is the event ``permission_requested``, its answer ``tool_call_approved`` or
``tool_call_denied``. ``permissions`` decides which calls need approval; ``commands.permissions`` adds
the rules that an answer makes for later calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from nousd.daemon.clock import Clock, later
from nousd.daemon.eventlog.log import CommitHandle
from nousd.daemon.policy.approvers import Approvers
from nousd.daemon.policy.requests import (
    NOBODY_TO_ASK,
    Asker,
    PassedOver,
    Request,
    Requests,
    as_logged,
    status_of,
    with_client,
)
from nousd.errors import CommandRejected, SessionNotFound, StoreError
from nousd.machine.context.text_offload import beginning
from nousd.runtimes.calls.host import Answer, Question
from nousd.wire import events
from nousd.wire.events import Event, PermissionRequested
from nousd.wire.limits import RULE_CHARS_MAX

_STOPPED: Final = "the call is being stopped"

_WHO_ASKS: Final = (
    "a call was denied because nobody could be asked: nousctl chat asks you; nousctl permission mode"
    " shows and sets what is asked about"
)

_PASSED_OVER: Final[Mapping[PassedOver, Answer]] = {
    "steer": Answer(allows=False, by="steer", reason="Skipped due to queued user message."),
    "stop": Answer(allows=False, by="stop", reason="the agent ended its turn without an answer"),
}


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on one attempt at a call."""

    attempt: int
    answer: Answer

    @property
    def details(self) -> dict[str, Any]:
        """Return the error details for an answer that came too late."""
        decision = "approved" if self.answer.allows else "denied"
        details = {"decision": decision, "by": self.answer.by, "reason": self.answer.reason}
        return with_client(details, self.answer.client_id)


class OverrideInUse(NamedTuple):
    """The override under which approval is requested: its session and the time when it expires."""

    session_id: str
    expires_at: str


class WaitingCall(Request[PermissionRequested, Decision], eq=False, kw_only=True):
    """A call that waits for approval: its question, and ``full_event``, the request with full arguments.

    Args:
        override: the override that must still hold when the answer comes.
    """

    question: Question
    full_event: PermissionRequested
    override: OverrideInUse | None = None


class Approvals:
    """The pending approvals of all sessions.

    Args:
        timeout_seconds: how long a call waits for an answer.
    """

    def __init__(self, clock: Clock, approvers: Approvers, timeout_seconds: float) -> None:
        self.requests: Requests[PermissionRequested, Decision] = Requests(
            approvers, timeout_seconds
        )
        self._clock = clock

    async def ask(
        self,
        question: Question,
        asker: Asker,
        *,
        override: OverrideInUse | None = None,
        obstacle: str | None = None,
    ) -> Answer:
        """Wait for an answer; see ``CallHost.ask``.

        Args:
            obstacle: why no approval can be requested, worded for people; the call is then denied.
        """
        request = self._request(question, asker, override)
        passed_over = asker.passed_over()
        if passed_over is not None:
            self.answer(request, _PASSED_OVER[passed_over])
            return _PASSED_OVER[passed_over]
        obstacle = obstacle or self.requests.obstacle(asker)
        if obstacle is not None:
            denial = Answer(
                allows=False,
                by="policy",
                reason=f"{question.reason}, and {obstacle}",
                hint=_WHO_ASKS if obstacle == NOBODY_TO_ASK else "",
            )
            self.answer(request, denial)
            return denial
        status = status_of("permission_requested", request.event)
        decided = await self.requests.wait(request, [request.full_event, *status])
        if decided is not None:
            return decided.answer
        seconds = self.requests.timeout_seconds
        denial = Answer(
            allows=False, by="timeout", reason=f"nobody answered within {seconds:g} seconds"
        )
        self.answer(request, denial)
        return denial

    def find(self, tool_call_id: str, attempt: int, input_hash: str) -> WaitingCall | None:
        """Return the pending call; None if no call with that id is pending.

        Raises:
            CommandRejected: ``attempt_mismatch``, ``input_hash_mismatch``; the call stays pending.
        """
        request = self.requests.find_waiting(tool_call_id)
        if request is None:
            return None
        assert isinstance(request, WaitingCall)
        if request.event.attempt != attempt:
            raise CommandRejected("attempt_mismatch", details={"attempt": request.event.attempt})
        if request.event.input_hash != input_hash:
            # The error omits the right hash, which a client must read together with the arguments.
            raise CommandRejected("input_hash_mismatch")
        return request

    def answer(self, request: WaitingCall, answer: Answer) -> CommitHandle:
        """Decide on a call; the handle is resolved when the decision is durable."""
        decided = Decision(attempt=request.event.attempt, answer=answer)
        return self.requests.end(request, decided, _decision(request.question, answer))

    def deny_under(self, session_id: str, reason: str) -> None:
        """Deny the pending calls under a session's override."""
        denial = Answer(allows=False, by="policy", reason=reason)
        for request in self.requests.list_waiting():
            assert isinstance(request, WaitingCall)
            if request.override is not None and request.override.session_id == session_id:
                # If the call's own session is lost, the call ends with its run.
                with suppress(StoreError, SessionNotFound):
                    self.answer(request, denial)

    def skip_passed_over(self) -> None:
        """End the requests whose answers are no longer waited for: after a steer, their calls are
        skipped like the run's other calls.
        """
        for request, reason in self.requests.list_passed_over():
            assert isinstance(request, WaitingCall)
            # If the call's own session is lost, the call ends with its run.
            with suppress(StoreError, SessionNotFound):
                self.answer(request, _PASSED_OVER[reason])

    def withdraw(self, tool_call_id: str) -> None:
        """Withdraw the pending requests of a call that is being stopped."""
        request = self.requests.find_waiting(tool_call_id)
        if request is not None:
            answer = Answer(allows=False, by="stop", reason=_STOPPED)
            decision = Decision(attempt=request.event.attempt, answer=answer)
            self.requests.withdraw(tool_call_id, decision)

    def _request(
        self, question: Question, asker: Asker, override: OverrideInUse | None
    ) -> WaitingCall:
        now = self._clock.now()
        expires_at = later(now, timedelta(seconds=self.requests.timeout_seconds))
        if override is not None:
            expires_at = min(expires_at, override.expires_at)
        event = _build_request_event(question, now, expires_at)
        return WaitingCall(
            event.tool_call_id,
            as_logged(event),
            asker,
            question=question,
            full_event=event,
            override=override,
        )


def _build_request_event(question: Question, now: str, expires_at: str) -> PermissionRequested:
    call: dict[str, Any] = dict(question.call)
    return PermissionRequested(
        **call,
        args=dict(question.args),
        reason=beginning(question.reason),
        rule=question.rule if 0 < len(question.rule) <= RULE_CHARS_MAX else UNSET,
        outside=question.access.outside or UNSET,
        requested_at=now,
        expires_at=expires_at,
    )


def _decision(question: Question, answer: Answer) -> list[Event]:
    """Return the events that record an answer, whether or not the user gave it."""
    call: dict[str, Any] = dict(question.call)
    reason = beginning(answer.reason)
    if answer in _PASSED_OVER.values():
        return [events.ToolCallDenied(**call, by=answer.by, reason=reason)]
    type_ = events.ToolCallApproved if answer.allows else events.ToolCallDenied
    evaluated = events.ToolCallPolicyEvaluated(
        **call, source="user", decision="allow" if answer.allows else "deny", reason=reason
    )
    event = type_(
        **call,
        by=answer.by,
        reason=reason,
        decision=answer.decision,
        rule=answer.rule,
        client_id=answer.client_id,
    )
    return [evaluated, event]
