"""What waits for the user: permissions and questions."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from nousd.bridge.replies import Failure, HttpError, json_reply
from nousd.bridge.routes.bodies import Given
from nousd.bridge.table import Call, Row
from nousd.errors import Refused
from nousd.views.tandem.asking import (
    AskedPermissions,
    AskedQuestion,
    asked_permissions,
    asked_question,
    call_of,
    request_id,
)
from nousd.wire.questions import QuestionAnswer, QuestionAsked
from nousd.wire.tool_commands import (
    AnswerQuestion,
    ConfirmDecision,
    ConfirmTool,
    ListPermissions,
    ListQuestions,
    RejectQuestion,
)
from nousd.wire.tool_events import PermissionRequested

_DECISIONS: Final[dict[str, ConfirmDecision]] = {
    "once": "once",
    "always": "session",
    "allow": "session",
    "reject": "deny",
    "deny": "deny",
}
"""reply of the contract -> what is decided; its standing rules hold for one session."""

_REPLY_INVALID: Final = Failure(400, "APPROVAL_REPLY_INVALID")
_NOT_PENDING: Final = Failure(409, "APPROVAL_REPLY_INVALID")
_REQUEST_NOT_FOUND: Final = Failure(404, "APPROVAL_REQUEST_NOT_FOUND")
_QUESTION_NOT_FOUND: Final = Failure(404, "QUESTION_NOT_FOUND")

_OVER: Final = frozenset({"tool_call_not_pending", "already_decided", "attempt_mismatch"})


class ReplyGiven(Given, frozen=True, kw_only=True):
    """``once``, ``always`` or ``allow``, ``reject`` or ``deny``."""

    reply: str


class AnswerGiven(Given, frozen=True, kw_only=True):
    """The answer in own words; ``answers`` has one for each question."""

    answer: str | None = None
    answers: list[str | list[str]] | None = None


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a reply; ``standingRuleID`` is the rule that holds for the session from then on."""

    ok: bool
    requestID: str  # noqa: N815
    reply: str
    status: str
    persistedRule: bool  # noqa: N815
    standingRuleID: str | None  # noqa: N815


class Ok(msgspec.Struct, frozen=True):
    """It is done."""

    ok: bool


async def _permissions(call: Call) -> Response:
    call.services.presence.looked()
    return json_reply(asked_permissions(await call.daemon.ask(ListPermissions())))


async def _reply(call: Call) -> Response:
    reply: str = call.body.reply
    if reply not in _DECISIONS:
        words = ", ".join(_DECISIONS)
        raise HttpError(_REPLY_INVALID, f"reply must be one of {words}")
    return json_reply(await _applied(call, call.path["request_id"], reply))


async def _approve(call: Call) -> Response:
    await _applied(call, call.path["request_id"], "once")
    return json_reply(Ok(ok=True))


async def _deny(call: Call) -> Response:
    await _applied(call, call.path["request_id"], "deny")
    return json_reply(Ok(ok=True))


async def _applied(call: Call, wanted: str, reply: str) -> Applied:
    request = await _pending(call, wanted)
    command = ConfirmTool(
        tool_call_id=request.tool_call_id,
        attempt=request.attempt,
        input_hash=request.input_hash,
        decision=_DECISIONS[reply],
    )
    try:
        accepted = await call.daemon.ask(command)
    except Refused as refused:
        if refused.message in _OVER:
            raise HttpError(_NOT_PENDING, "the request is not pending any more") from None
        raise
    rule = None if accepted.rule is UNSET else accepted.rule
    return Applied(
        ok=True,
        requestID=wanted,
        reply=reply,
        status="applied",
        persistedRule=rule is not None,
        standingRuleID=rule,
    )


async def _pending(call: Call, wanted: str) -> PermissionRequested:
    """Returns the request with that id, which still waits."""
    asked = await call.daemon.ask(ListPermissions())
    for request in asked.pending:
        if request_id(request) == wanted:
            return request
    expired = [request_id(item.request) for item in asked.expired]
    if call_of(wanted) is not None and wanted in expired:
        raise HttpError(_NOT_PENDING, "the request has expired")
    raise HttpError(_REQUEST_NOT_FOUND, "there is no such request")


async def _questions(call: Call) -> Response:
    call.services.presence.looked()
    asked = await call.daemon.ask(ListQuestions())
    return json_reply([asked_question(question) for question in asked.questions])


async def _answer(call: Call) -> Response:
    question = await _question(call)
    body: AnswerGiven = call.body
    given: list[Any] = body.answers if body.answers is not None else [body.answer or ""]
    filled = [*given, *[""] * len(question.questions)][: len(question.questions)]
    answers = tuple(map(_one_answer, filled))
    await call.daemon.ask(AnswerQuestion(question_id=question.question_id, answers=answers))
    return json_reply(Ok(ok=True))


def _one_answer(given: str | list[str]) -> QuestionAnswer:
    if isinstance(given, str):
        return QuestionAnswer(text=given)
    return QuestionAnswer(chosen=tuple(given))


async def _reject(call: Call) -> Response:
    question = await _question(call)
    await call.daemon.ask(RejectQuestion(question_id=question.question_id))
    return json_reply(Ok(ok=True))


async def _question(call: Call) -> QuestionAsked:
    asked = await call.daemon.ask(ListQuestions())
    for question in asked.questions:
        if question.question_id == call.path["question_id"]:
            return question
    raise HttpError(_QUESTION_NOT_FOUND, "no such question waits for an answer")


ROWS: Final = (
    Row(
        method="GET",
        path="/permission",
        handler=_permissions,
        summary="Lists the tool calls that wait for a word, and the rules in force.",
        sends=("list_permissions",),
        replies={200: AskedPermissions},
    ),
    Row(
        method="POST",
        path="/permission/{request_id}/reply",
        handler=_reply,
        summary="Allows or denies a tool call that waits.",
        sends=("list_permissions", "confirm_tool"),
        replies={200: Applied},
        body=ReplyGiven,
    ),
    Row(
        method="POST",
        path="/sessions/{id}/tools/{request_id}/approve",
        handler=_approve,
        summary="Allows a tool call that waits, this once.",
        sends=("list_permissions", "confirm_tool"),
        replies={200: Ok},
    ),
    Row(
        method="POST",
        path="/sessions/{id}/tools/{request_id}/deny",
        handler=_deny,
        summary="Denies a tool call that waits.",
        sends=("list_permissions", "confirm_tool"),
        replies={200: Ok},
    ),
    Row(
        method="GET",
        path="/question",
        handler=_questions,
        summary="Lists the questions that wait for an answer.",
        sends=("list_questions",),
        replies={200: list[AskedQuestion]},
    ),
    Row(
        method="POST",
        path="/question/{question_id}/reply",
        handler=_answer,
        summary="Answers a question.",
        sends=("list_questions", "answer_question"),
        replies={200: Ok},
        body=AnswerGiven,
    ),
    Row(
        method="POST",
        path="/question/{question_id}/reject",
        handler=_reject,
        summary="Says that a question will not be answered.",
        sends=("list_questions", "reject_question"),
        replies={200: Ok},
    ),
    Row(
        method="POST",
        path="/sessions/{id}/questions/{question_id}/answer",
        handler=_answer,
        summary="Answers a question.",
        sends=("list_questions", "answer_question"),
        replies={200: Ok},
        body=AnswerGiven,
    ),
)
