"""Pending questions of tools, and the answers to them, in the form of the contract."""

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

_SEPARATOR: Final = ", "
"""Separates the chosen options in an answer that is a single text."""


class Option(msgspec.Struct, frozen=True):
    """An offered answer."""

    label: str
    description: str


class Question(msgspec.Struct, frozen=True):
    """One question. A free-text answer, ``custom`` in the contract, is always accepted."""

    header: str
    question: str
    options: list[Option]
    multiple: bool
    custom: bool


class CallRef(msgspec.Struct, frozen=True, rename={"call_id": "callID", "message_id": "messageID"}):
    """A tool call, and the message of which it is a part."""

    call_id: str
    message_id: str


class AskedQuestion(Body, frozen=True, kw_only=True):
    """The pending questions of one call. ``text`` and ``choices`` belong to the first question, for a
    client that reads only these.
    """

    id: str
    session_id: str
    tenant_context: dict[str, str] = msgspec.field(default_factory=lambda: TENANT)
    expires_at_ms: int
    questions: list[Question]
    tool: CallRef
    text: str
    choices: list[str]


def render_question_request(event: QuestionAsked) -> AskedQuestion:
    """Return the pending questions of a call."""
    first = event.questions[0]
    return AskedQuestion(
        id=event.question_id,
        session_id=event.session_id,
        expires_at_ms=milliseconds(event.expires_at),
        questions=[render_question(item) for item in event.questions],
        tool=call_ref(event),
        text=first.question,
        choices=[option.label for option in first.options],
    )


def call_ref(event: ToolCallEvent) -> CallRef:
    """Return the call of an event, and the message of which it is a part."""
    return CallRef(event.tool_call_id, event.tool_call_id.rpartition(".")[0])


def render_question(question: UserQuestion) -> Question:
    """Return one question."""
    return Question(
        header="" if question.header is UNSET else question.header,
        question=question.question,
        options=[
            Option(option.label, "" if option.description is UNSET else option.description)
            for option in question.options
        ],
        multiple=question.multiple,
        custom=True,
    )


def join_answer(answer: QuestionAnswer) -> str:
    """Return an answer as a single text."""
    free_text = () if answer.text is UNSET else (answer.text,)
    return _SEPARATOR.join((*answer.chosen, *free_text))


def parse_answer(question: UserQuestion, answer: str | Iterable[str]) -> QuestionAnswer:
    """Parse a client's answer to a question: labels of options are choices, anything else is free text.

    A question with several choices also accepts them in a single text, in the form of ``join_answer``.
    """
    labels = {option.label for option in question.options}
    words = [answer] if isinstance(answer, str) else list(answer)
    if (
        question.multiple
        and isinstance(answer, str)
        and labels.issuperset(answer.split(_SEPARATOR))
    ):
        words = answer.split(_SEPARATOR)
    parts = [word.strip() if word.strip() in labels else word for word in words]
    free_text = _SEPARATOR.join(word for word in parts if word not in labels)
    return QuestionAnswer(
        chosen=tuple(dict.fromkeys(word for word in parts if word in labels)),
        text=free_text or UNSET,
    )
