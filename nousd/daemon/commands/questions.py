"""Commands that answer the questions of tools."""

from __future__ import annotations

from msgspec import UNSET

from nousd.daemon.commands.pages import page_of
from nousd.daemon.replies import Deferred, Reply
from nousd.daemon.services import Services
from nousd.wire import commands
from nousd.wire.codec.unset import or_unset
from nousd.wire.commands.subscribe import cursor
from nousd.wire.responses import Accepted, Questions

_NOT_ANSWERED = "the user does not want to answer"


async def list_questions(services: Services, command: commands.ListQuestions) -> Reply:
    """List pending questions: of one session, or of all."""
    if command.session_id is not None:
        await services.sessions.get(command.session_id)
    waiting = services.questions.requests.list_shown(command.session_id)
    listed = page_of(waiting)
    return Questions(
        questions=listed,
        cursor=cursor(services.hub.head),
        truncated=UNSET if len(listed) == len(waiting) else True,
    )


async def answer_question(services: Services, command: commands.AnswerQuestion) -> Reply:
    """Answer a question; its call continues with the answer."""
    handle = await services.questions.answer(
        command.question_id, command.answers, or_unset(command.client_id)
    )
    return Deferred(handle, Accepted(command="answer_question"))


async def reject_question(services: Services, command: commands.RejectQuestion) -> Reply:
    """Reject a question; its call continues without an answer."""
    handle = await services.questions.reject(
        command.question_id, command.reason or _NOT_ANSWERED, or_unset(command.client_id)
    )
    return Deferred(handle, Accepted(command="reject_question"))
