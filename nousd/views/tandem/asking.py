"""What waits for the user: permissions and questions; and the list of things to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET

from nousd.views.tandem.spelling import Body
from nousd.views.tandem.values import milliseconds, or_none
from nousd.wire.questions import QuestionAnswer, QuestionAsked, UserQuestion
from nousd.wire.todos import Todo
from nousd.wire.tool_events import PermissionRequested, ToolCallEvent
from nousd.wire.tool_responses import Permissions

_ATTEMPT: Final = "-"

_ATTEMPT_DIGITS_MAX: Final = 9

# --- things to do ----------------------------------------------------------------------------


class TodoItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing to do."""

    id: str
    content: str
    status: str
    priority: str | None = None


def todo_items(todos: Iterable[Todo]) -> list[TodoItem]:
    """Returns a list of things to do."""
    return [TodoItem(item.id, item.content, item.status, or_none(item.priority)) for item in todos]


# --- permissions -----------------------------------------------------------------------------


class AskedPermission(Body, frozen=True, kw_only=True):
    """A tool call that waits for a word. Only those that wait are listed, so ``status`` is one word."""

    id: str
    session_id: str
    permission: str
    pattern: str
    tool: str
    args: dict[str, Any]
    args_source: Literal["model"] = msgspec.field(default_factory=lambda: "model")
    args_integrity: Literal["verified"] = msgspec.field(default_factory=lambda: "verified")
    query: str
    status: Literal["pending"] = msgspec.field(default_factory=lambda: "pending")
    expires_at_ms: int
    action_digest: str


class StandingRule(Body, frozen=True, kw_only=True):
    """A rule in force; ``origin`` says for people where it stands."""

    id: str
    permission: str
    pattern: str
    action: Literal["allow", "ask", "deny"]
    origin: str


class AskedPermissions(msgspec.Struct, frozen=True, kw_only=True):
    """What waits, and the rules in force. What was decided is in the log and not here."""

    requests: list[AskedPermission]
    rules: list[StandingRule]
    decisions: list[dict[str, Any]]


def request_id(event: ToolCallEvent) -> str:
    """Returns the id that the contract has for a request: that of the call, and which attempt it is."""
    return f"{event.tool_call_id}{_ATTEMPT}{event.attempt}"


def call_of(request: str) -> tuple[str, int] | None:
    """Returns the tool call and the attempt that a request's id means; None if it is no id of ours."""
    tool_call_id, _, attempt = request.rpartition(_ATTEMPT)
    is_number = attempt.isascii() and attempt.isdecimal() and len(attempt) <= _ATTEMPT_DIGITS_MAX
    return (tool_call_id, int(attempt)) if tool_call_id and is_number else None


def asked_permissions(now: Permissions) -> AskedPermissions:
    """Returns what waits for a word of the user."""
    return AskedPermissions(
        requests=[asked_permission(request) for request in now.pending],
        rules=[
            StandingRule(
                id=f"{rule.decision}:{rule.rule}",
                permission=rule.rule.partition("(")[0],
                pattern=_pattern(rule.rule),
                action=rule.decision,
                origin=rule.origin,
            )
            for rule in now.rules
        ],
        decisions=[],
    )


def asked_permission(request: PermissionRequested) -> AskedPermission:
    """Returns one tool call that waits."""
    return AskedPermission(
        id=request_id(request),
        session_id=request.session_id,
        permission=request.tool_name,
        pattern="*" if request.rule is UNSET else _pattern(request.rule),
        tool=request.tool_name,
        args=request.args,
        query=request.reason,
        expires_at_ms=milliseconds(request.expires_at),
        action_digest=request.input_hash,
    )


def _pattern(rule: str) -> str:
    _, bracket, rest = rule.partition("(")
    return rest.removesuffix(")") if bracket else "*"


# --- questions -------------------------------------------------------------------------------


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
    expires_at_ms: int
    questions: list[Question]
    tool: CallRef
    text: str
    choices: list[str]


def asked_question(asked: QuestionAsked) -> AskedQuestion:
    """Returns the questions of a call."""
    first = asked.questions[0]
    return AskedQuestion(
        id=asked.question_id,
        session_id=asked.session_id,
        expires_at_ms=milliseconds(asked.expires_at),
        questions=[question(item) for item in asked.questions],
        tool=call_ref(asked),
        text=first.question,
        choices=[option.label for option in first.options],
    )


def call_ref(event: ToolCallEvent) -> CallRef:
    """Returns the call of an event, and the message that it stands in."""
    return CallRef(event.tool_call_id, event.tool_call_id.rpartition(".")[0])


def question(asked: UserQuestion) -> Question:
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


def answer_text(answer: QuestionAnswer) -> str:
    """Returns an answer as one text."""
    own = () if answer.text is UNSET else (answer.text,)
    return ", ".join((*answer.chosen, *own))
