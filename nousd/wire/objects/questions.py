"""The questions that a tool asks the user, and the answers.

A question does not decide whether a call may run; that is ``permission_requested``. It belongs to a
running call, which waits for the answer.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from nousd.wire.limits import ANSWER_CHARS_MAX, ANSWERS_MAX, CHOICES_MAX

_HEADER_CHARS_MAX: Final = 40
_QUESTION_CHARS_MAX: Final = 2000
_LABEL_CHARS_MAX: Final = 120
_DESCRIPTION_CHARS_MAX: Final = 300


class QuestionOption(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """An answer that the question offers."""

    label: Annotated[str, Meta(min_length=1, max_length=_LABEL_CHARS_MAX, pattern=r"\S")]
    description: Annotated[str, Meta(max_length=_DESCRIPTION_CHARS_MAX)] | UnsetType = UNSET


class UserQuestion(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One question to the user. An answer in own words is always possible."""

    question: Annotated[str, Meta(min_length=1, max_length=_QUESTION_CHARS_MAX, pattern=r"\S")]
    header: Annotated[str, Meta(max_length=_HEADER_CHARS_MAX)] | UnsetType = UNSET
    options: Annotated[tuple[QuestionOption, ...], Meta(max_length=CHOICES_MAX)] = ()
    multiple: bool = False


UserQuestions = Annotated[tuple[UserQuestion, ...], Meta(min_length=1, max_length=ANSWERS_MAX)]


class QuestionAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to one question: labels of options, free text, or both."""

    chosen: Annotated[tuple[str, ...], Meta(max_length=CHOICES_MAX)] = ()
    text: Annotated[str, Meta(max_length=ANSWER_CHARS_MAX)] | UnsetType = UNSET
