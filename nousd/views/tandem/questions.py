"""Questions of tools that wait for the user, and the answers to them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import UNSET

from nousd.views.tandem.runs import TENANT
from nousd.views.tandem.values import Body, milliseconds
from nousd.wire.events import QuestionAsked
from nousd.wire.events.tools import ToolCallEvent
from nousd.wire.objects.questions import QuestionAnswer, UserQuestion

_BETWEEN: Final = ", "
"""Between the options that are chosen, where an answer is one text."""


class Option(msgspec.Struct, frozen=True):
    """An answer that is offered."""

    label: str
    description: str


class Question(msgspec.Struct, frozen=True):
    """One question. Own words are always welcome, which the contract calls ``custom``."""

    header: str
    question: str
    options: list[Option]
    multiple: bool
    custom: bool


class CallRef(msgspec.Struct, frozen=True, rename={"call_id": "callID", "message_id": "messageID"}):
    """The tool call that asks."""

    call_id: str
    message_id: str


class AskedQuestion(Body, frozen=True, kw_only=True):
    """Questions of one call that wait. ``text`` and ``choices`` are the first one's, for a client that
    looks for them.
    """

    id: str
    session_id: str
    tenant_context: dict[str, str] = msgspec.field(default_factory=lambda: TENANT)
    expires_at_ms: int
    questions: list[Question]
    tool: CallRef
    text: str
    choices: list[str]


def render_question_request(asked: QuestionAsked) -> AskedQuestion:
    """Returns the questions of a call."""
    first = asked.questions[0]
    return AskedQuestion(
        id=asked.question_id,
        session_id=asked.session_id,
        expires_at_ms=milliseconds(asked.expires_at),
        questions=[render_question(item) for item in asked.questions],
        tool=call_ref(asked),
        text=first.question,
        choices=[option.label for option in first.options],
    )


def call_ref(event: ToolCallEvent) -> CallRef:
    """Returns the call of an event, and the message that it stands in."""
    return CallRef(event.tool_call_id, event.tool_call_id.rpartition(".")[0])


def render_question(asked: UserQuestion) -> Question:
    """Returns one question."""
    return Question(
        header="" if asked.header is UNSET else asked.header,
        question=asked.question,
        options=[
            Option(option.label, "" if option.description is UNSET else option.description)
            for option in asked.options
        ],
        multiple=asked.multiple,
        custom=True,
    )


def join_answer(answer: QuestionAnswer) -> str:
    """Returns an answer as one text."""
    own = () if answer.text is UNSET else (answer.text,)
    return _BETWEEN.join((*answer.chosen, *own))


def parse_answer(asked: UserQuestion, given: str | Iterable[str]) -> QuestionAnswer:
    """Returns what a client's words mean as the answer to a question: those that are labels of options
    are chosen, the others are the user's own. Of a question that takes several, they may stand in one
    text as ``answer_text`` writes them.
    """
    labels = {option.label for option in asked.options}
    words = [given] if isinstance(given, str) else list(given)
    if asked.multiple and isinstance(given, str) and labels.issuperset(given.split(_BETWEEN)):
        words = given.split(_BETWEEN)
    said = [word.strip() if word.strip() in labels else word for word in words]
    own = _BETWEEN.join(word for word in said if word not in labels)
    return QuestionAnswer(
        chosen=tuple(dict.fromkeys(word for word in said if word in labels)), text=own or UNSET
    )
