"""What waits for the user: permissions and questions; and the list of things to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET

from nousd.views.tandem.key_case import Body
from nousd.views.tandem.runs import TENANT
from nousd.views.tandem.values import milliseconds, or_none
from nousd.wire.events import PermissionRequested, QuestionAsked, ToolCallApproved, ToolCallDenied
from nousd.wire.events.tools import ToolCallEvent
from nousd.wire.objects.policy import ConfirmDecision
from nousd.wire.objects.questions import QuestionAnswer, UserQuestion
from nousd.wire.objects.todos import Todo
from nousd.wire.responses import Permissions
from nousd.wire.responses.tools import RuleInForce

_ATTEMPT: Final = "-"

_ATTEMPT_DIGITS_MAX: Final = 9

_OF_SESSION: Final = "granted for the session"
_OF_ALL: Final = "granted for every session"

_BETWEEN: Final = ", "
"""Between the options that are chosen, where an answer is one text."""

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
    tenant_context: dict[str, str] = msgspec.field(default_factory=lambda: TENANT)
    permission: str
    pattern: str
    tool: str
    args: dict[str, Any]
    args_source: Literal["model"] = msgspec.field(default_factory=lambda: "model")
    args_integrity: Literal["verified"] = msgspec.field(default_factory=lambda: "verified")
    query: str
    status: Literal["pending"] = msgspec.field(default_factory=lambda: "pending")
    requested_at_ms: int | None = None
    expires_at_ms: int
    action_digest: str


class StandingRule(Body, frozen=True, kw_only=True):
    """A rule in force; ``origin`` says for people where it stands. Its id says all of it."""

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


class NamedCall(NamedTuple):
    """An attempt at a tool call; without ``attempt``, the last one."""

    tool_call_id: str
    attempt: int | None


def call_of(request: str) -> NamedCall:
    """Returns the call that a request's id means. The id of the call itself means it as well, because
    that is what the part of a message has.
    """
    tool_call_id, _, attempt = request.rpartition(_ATTEMPT)
    is_number = attempt.isascii() and attempt.isdecimal() and len(attempt) <= _ATTEMPT_DIGITS_MAX
    if tool_call_id and is_number and int(attempt):
        return NamedCall(tool_call_id, int(attempt))
    return NamedCall(request, None)


def rule_id(decision: str, rule: str) -> str:
    """Returns the id of a rule in force."""
    return f"{decision}:{rule}"


_REPLIES: Final[dict[ConfirmDecision, str]] = {
    "once": "once",
    "session": "always",
    "always": "always",
    "deny": "deny",
    "deny_session": "reject",
}
"""what the user said -> how the contract calls it."""

Decided = ToolCallApproved | ToolCallDenied


def reply_given(event: Decided) -> str:
    """Returns how the user replied; logs of earlier versions do not say whether that made a rule."""
    if event.decision is UNSET:
        return "once" if isinstance(event, ToolCallApproved) else "deny"
    return _REPLIES[event.decision]


def decided_rule(event: Decided) -> str | None:
    """Returns the id of the rule that a reply made; None if it made none."""
    if event.rule is UNSET:
        return None
    return rule_id("allow" if isinstance(event, ToolCallApproved) else "deny", event.rule)


def asked_permissions(now: Permissions) -> AskedPermissions:
    """Returns what waits for a word of the user, and each rule once, however often it is in force."""
    granted = [
        *(RuleInForce(decision="allow", rule=rule, origin=_OF_SESSION) for rule in now.granted),
        *(
            RuleInForce(decision="allow", rule=rule, origin=_OF_ALL)
            for rule in now.granted_everywhere
        ),
    ]
    rules = [_standing(rule) for rule in (*granted, *now.rules)]
    return AskedPermissions(
        requests=[asked_permission(request) for request in now.pending],
        rules=list({rule.id: rule for rule in reversed(rules)}.values())[::-1],
        decisions=[],
    )


def _standing(rule: RuleInForce) -> StandingRule:
    return StandingRule(
        id=rule_id(rule.decision, rule.rule),
        permission=rule.rule.partition("(")[0],
        pattern=_pattern(rule.rule),
        action=rule.decision,
        origin=rule.origin,
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
        requested_at_ms=_asked_at(request),
        expires_at_ms=milliseconds(request.expires_at),
        action_digest=request.input_hash,
    )


def _asked_at(request: PermissionRequested) -> int | None:
    """Returns when a call was asked about; a daemon of an earlier version does not say so."""
    return None if request.requested_at is UNSET else milliseconds(request.requested_at)


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
    tenant_context: dict[str, str] = msgspec.field(default_factory=lambda: TENANT)
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
    return _BETWEEN.join((*answer.chosen, *own))


def given_answer(asked: UserQuestion, given: str | Iterable[str]) -> QuestionAnswer:
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
