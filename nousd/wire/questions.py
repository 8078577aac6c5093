"""What a tool asks the user, and what the user says: the objects and the events of questions.

A question never decides whether a call may run; that is ``permission_requested``. It belongs to a call
that is running already and waits for the answer.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from nousd.wire.limits import ANSWER_CHARS_MAX, ANSWERS_MAX, CHOICES_MAX
from nousd.wire.tool_events import ToolCallEvent
from nousd.wire.workers import Origin

_HEADER_CHARS_MAX: Final = 40
_QUESTION_CHARS_MAX: Final = 2000
_LABEL_CHARS_MAX: Final = 120
_DESCRIPTION_CHARS_MAX: Final = 300


class QuestionOption(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """An answer that is offered."""

    label: Annotated[str, Meta(min_length=1, max_length=_LABEL_CHARS_MAX, pattern=r"\S")]
    description: Annotated[str, Meta(max_length=_DESCRIPTION_CHARS_MAX)] | UnsetType = UNSET


class UserQuestion(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One question. ``multiple``: more than one option may be chosen. Own words are always welcome."""

    question: Annotated[str, Meta(min_length=1, max_length=_QUESTION_CHARS_MAX, pattern=r"\S")]
    header: Annotated[str, Meta(max_length=_HEADER_CHARS_MAX)] | UnsetType = UNSET
    options: Annotated[tuple[QuestionOption, ...], Meta(max_length=CHOICES_MAX)] = ()
    multiple: bool = False


UserQuestions = Annotated[tuple[UserQuestion, ...], Meta(min_length=1, max_length=ANSWERS_MAX)]


class QuestionAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to one question: labels of options, own words, or both."""

    chosen: Annotated[tuple[str, ...], Meta(max_length=CHOICES_MAX)] = ()
    text: Annotated[str, Meta(max_length=ANSWER_CHARS_MAX)] | UnsetType = UNSET


class QuestionAsked(ToolCallEvent, frozen=True, kw_only=True):
    """A running call asks the user and waits until ``expires_at``, RFC 3339 UTC."""

    question_id: str
    questions: tuple[UserQuestion, ...]
    expires_at: str
    origin: Origin | UnsetType = UNSET


class QuestionAnswered(ToolCallEvent, frozen=True, kw_only=True):
    """The user has answered; one answer for each question, in their order."""

    question_id: str
    answers: tuple[QuestionAnswer, ...]
    origin: Origin | UnsetType = UNSET


class QuestionRejected(ToolCallEvent, frozen=True, kw_only=True):
    """The question ends without an answer."""

    question_id: str
    by: Literal["user", "timeout", "stop"]
    reason: str
    origin: Origin | UnsetType = UNSET
