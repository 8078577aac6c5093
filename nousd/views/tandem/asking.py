"""What waits for the user: permissions and questions, and the list of things to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from msgspec import UNSET

from nousd.wire.questions import QuestionAnswer, UserQuestion
from nousd.wire.todos import Todo
from nousd.wire.tool_events import ToolCallEvent

_ATTEMPT: Final = "-"


def request_id(event: ToolCallEvent) -> str:
    """Returns the id by which the contract calls a request: that of the call and which attempt it is."""
    return f"{event.tool_call_id}{_ATTEMPT}{event.attempt}"


def call_of(request: str) -> tuple[str, int] | None:
    """Returns the tool call and the attempt that a request's id means; None if it is no id of ours."""
    tool_call_id, _, attempt = request.rpartition(_ATTEMPT)
    if not tool_call_id or not (attempt.isascii() and attempt.isdecimal() and len(attempt) < 10):
        return None
    return tool_call_id, int(attempt)


def todos(items: Iterable[Todo]) -> list[dict[str, Any]]:
    """Returns a list of things to do."""
    return [
        {
            "id": item.id,
            "content": item.content,
            "status": item.status,
            **({} if item.priority is UNSET else {"priority": item.priority}),
        }
        for item in items
    ]


def question(asked: UserQuestion) -> dict[str, Any]:
    """Returns one question. Own words are always welcome, which the contract calls ``custom``."""
    return {
        "header": "" if asked.header is UNSET else asked.header,
        "question": asked.question,
        "options": [
            {
                "label": option.label,
                "description": "" if option.description is UNSET else option.description,
            }
            for option in asked.options
        ],
        "multiple": asked.multiple,
        "custom": True,
    }


def answer_text(answer: QuestionAnswer) -> str:
    """Returns an answer as one text."""
    own = () if answer.text is UNSET else (answer.text,)
    return ", ".join((*answer.chosen, *own))
