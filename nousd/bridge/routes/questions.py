"""Questions of tools that wait for the user, and the answers to them."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from nousd.bridge.replies import (
    QUESTION_NOT_FOUND,
    UNPROCESSABLE,
    Failure,
    HttpError,
    json_reply,
)
from nousd.bridge.routes.bodies import AskingQuery, Ok, ReasonBody, RequestBody
from nousd.bridge.routing.route import Call, Routes
from nousd.errors import Refused
from nousd.views.tandem.questions import AskedQuestion, parse_answer, render_question_request
from nousd.wire.commands import (
    AnswerQuestion,
    ListQuestions,
    RejectQuestion,
)
from nousd.wire.events import QuestionAsked
from nousd.wire.objects.questions import UserQuestion

routes: Final = Routes()

_QUESTION_NOT_PENDING: Final = Failure(409, "QUESTION_NOT_PENDING")

_NO_ANSWER: Final = "the user replied without an answer"


class AnswerBody(RequestBody, frozen=True, kw_only=True):
    """The answer to each question, in labels of options or as free text, or one ``answer`` to all.
    Without any, the question is rejected.
    """

    answer: str | list[str] | None = None
    answers: list[str | list[str]] | None = None


@routes.get(
    "/question", sends=("list_questions",), replies={200: list[AskedQuestion]}, query=AskingQuery
)
async def _questions(call: Call) -> Response:
    """List the pending questions."""
    call.services.responders.note_listing()
    pending = await call.daemon.ask(ListQuestions(session_id=call.query.session_id or None))
    return json_reply([render_question_request(question) for question in pending.questions])


@routes.post(
    "/sessions/{id}/questions/{question_id}/answer",
    sends=("list_questions", "answer_question", "reject_question"),
    replies={200: Ok},
    body=AnswerBody,
)
@routes.post(
    "/question/{question_id}/reply",
    sends=("list_questions", "answer_question", "reject_question"),
    replies={200: Ok},
    body=AnswerBody,
)
async def _answer(call: Call) -> Response:
    """Answer a question."""
    question = await _waiting_question(call)
    answers = _list_answers(call.body, question.questions)
    if not answers:
        rejected = RejectQuestion(
            question_id=question.question_id, reason=_NO_ANSWER, client_id=call.client_name
        )
        return await _send_outcome(call, rejected)
    if len(answers) != len(question.questions):
        message = f"body: answers must have {len(question.questions)} items, one for each question"
        raise HttpError(UNPROCESSABLE, message)
    parsed_answers = tuple(map(parse_answer, question.questions, answers))
    answer = AnswerQuestion(
        question_id=question.question_id, answers=parsed_answers, client_id=call.client_name
    )
    return await _send_outcome(call, answer)


def _list_answers(
    body: AnswerBody, questions: tuple[UserQuestion, ...]
) -> list[str] | list[str | list[str]]:
    """Return an answer for each question; empty if the body has no answer."""
    if body.answers is not None:
        return body.answers
    return [body.answer] * len(questions) if body.answer else []


@routes.post(
    "/question/{question_id}/reject",
    sends=("list_questions", "reject_question"),
    replies={200: Ok},
    body=ReasonBody,
)
async def _reject(call: Call) -> Response:
    """Reject a question."""
    question = await _waiting_question(call)
    rejected = RejectQuestion(
        question_id=question.question_id, reason=call.body.reason, client_id=call.client_name
    )
    return await _send_outcome(call, rejected)


async def _send_outcome(call: Call, command: AnswerQuestion | RejectQuestion) -> Response:
    try:
        await call.daemon.ask(command)
    except Refused as refused:
        if refused.message == "already_answered":
            raise HttpError(_QUESTION_NOT_PENDING, "the question was answered already") from None
        if refused.message == "question_not_found":
            raise HttpError(QUESTION_NOT_FOUND, "no such question waits") from None
        raise
    return json_reply(Ok(ok=True))


async def _waiting_question(call: Call) -> QuestionAsked:
    """Return the pending question in the path.

    Raises:
        HttpError: the question is unknown, no longer pending, or not of the session in the path.
    """
    pending = await call.daemon.ask(ListQuestions(session_id=call.path.get("id")))
    question_id = call.path["question_id"]
    for question in pending.questions:
        if question.question_id == question_id:
            return question
    if "id" not in call.path:
        # An empty answer is never valid: the refusal tells an unknown question from an answered one.
        await _send_outcome(call, AnswerQuestion(question_id=question_id, answers=()))
    raise HttpError(QUESTION_NOT_FOUND, "no such question waits")
