"""The tool ``question``: asks the user questions and waits for the answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from nousd.tools.function_tool import builtin, touches_nothing
from nousd.tools.interface import ToolContext, ToolResult, UserAnswers
from nousd.tools.output.tool_output import head_of
from nousd.wire.objects.questions import QuestionAnswer, UserQuestion, UserQuestions


class Question(msgspec.Struct, frozen=True):
    """Arguments of ``question``."""

    questions: Annotated[
        UserQuestions,
        Meta(
            description="Each with the `question`, and where that helps a short `header` and `options` "
            "to choose from (`label`, `description`); `multiple` if more than one may be chosen. The "
            "user may always answer in own words."
        ),
    ]


async def _ask(args: Question, context: ToolContext) -> ToolResult:
    answers = await context.ask_user(args.questions)
    return head_of(format_answers(args.questions, answers), context.secrets)


def format_answers(questions: Sequence[UserQuestion], answers: UserAnswers) -> str:
    """Return questions and answers as text for the model."""
    pairs = zip(questions, answers, strict=True)
    return "\n\n".join(f"{question.question}\n{_words(answer)}" for question, answer in pairs)


def _words(answer: QuestionAnswer) -> str:
    chosen = [f"Chosen: {label}" for label in answer.chosen]
    return "\n".join([*chosen, *([f"Answer: {answer.text}"] if answer.text else [])])


QUESTION: Final = builtin(
    "question",
    "Ask the user one to four questions and wait for the answers. For decisions that are the user's "
    "alone; nothing else goes on meanwhile.",
    Question,
    _ask,
    {},
    access_of=touches_nothing,
    is_read_only=True,
)
