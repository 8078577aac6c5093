"""Commands about tools: permissions, requests to the user, and calls without a model."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from nousd.wire.commands.base import AnsweredBy
from nousd.wire.limits import (
    ANSWERS_MAX,
    PATH_CHARS_MAX,
    REASON_CHARS_MAX,
    RULE_CHARS_MAX,
)
from nousd.wire.objects.entries import PermissionMode
from nousd.wire.objects.field_types import Folder, Name, OptionalCursor, PageSize, ToolNames
from nousd.wire.objects.policy import ConfirmDecision
from nousd.wire.objects.questions import QuestionAnswer
from nousd.wire.responses import Accepted, Tools
from nousd.wire.responses.tools import (
    Agents,
    Permissions,
    ProjectFiles,
    Questions,
    TodosNow,
    ToolCallNow,
    ToolCalls,
)

RuleText = Annotated[str, Meta(min_length=1, max_length=RULE_CHARS_MAX)]
"""A rule as written in the settings, such as ``bash(git status)``."""

ProjectPath = Annotated[str, Meta(min_length=1, max_length=PATH_CHARS_MAX)]
"""A file in the ``.nousd`` folder of a project; relative paths start at the project's root."""

Reason = Annotated[str, Meta(max_length=REASON_CHARS_MAX)]
"""The user's reason."""


class ListTools(AnsweredBy[Tools], frozen=True, kw_only=True):
    """List the tools and which of them are active."""

    session_id: Name | None = None
    after: Name | None = None


class SetActiveTools(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Set the built-in tools that models may call, from the next model call on."""

    tools: ToolNames
    session_id: Name | None = None


class SetPermissionMode(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Set which tool calls of a session need the user's approval where no rule decides."""

    mode: PermissionMode
    session_id: Name | None = None


class ConfirmTool(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Answer a ``permission_requested``, for exactly the call that the user was shown."""

    tool_call_id: Name
    attempt: Annotated[int, Meta(ge=1, le=2**53)]
    input_hash: Name
    decision: ConfirmDecision
    reason: Reason | None = None
    rule: RuleText | None = None
    client_id: Name | None = None


class ListPermissions(AnsweredBy[Permissions], frozen=True, kw_only=True):
    """List the pending approvals, the expired requests, and the rules in force."""

    session_id: Name | None = None


class RevokePermission(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Revoke a rule that the user granted, for a session or permanently."""

    rule: RuleText
    session_id: Name | None = None


class Trust(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Trust a project file as long as its content has this hash."""

    hash: Name
    path: ProjectPath | None = None
    workspace: Folder | None = None


class Untrust(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Withdraw trust in a project file, whatever its hash."""

    path: ProjectPath | None = None
    workspace: Folder | None = None


class ListTrust(AnsweredBy[ProjectFiles], frozen=True, kw_only=True):
    """List a project's settings files, the settings that they add, and which files are trusted."""

    workspace: Folder | None = None


class GetTodos(AnsweredBy[TodosNow], frozen=True, kw_only=True):
    """Read a session's todo list."""

    session_id: Name | None = None


class ListQuestions(AnsweredBy[Questions], frozen=True, kw_only=True):
    """List the questions of tools that wait for an answer."""

    session_id: Name | None = None


class AnswerQuestion(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Answer a ``question_asked``: one answer for each of its questions, in order."""

    question_id: Name
    answers: Annotated[tuple[QuestionAnswer, ...], Meta(max_length=ANSWERS_MAX)]
    client_id: Name | None = None


class RejectQuestion(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Reject a question without an answer. The tool receives the rejection and the run continues."""

    question_id: Name
    reason: Reason | None = None
    client_id: Name | None = None


class ListAgents(AnsweredBy[Agents], frozen=True, kw_only=True):
    """List the agents that the tool ``task`` can name, and agent files that cannot be used."""

    session_id: Name | None = None


class CallTool(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Run one tool without a model, through the same permission gate as a model's calls."""

    tool: Name
    args: dict[str, Any] = {}  # noqa: RUF012  made anew for each
    session_id: Name | None = None
    client_call_id: Name | None = None
    client_id: Name | None = None


class CancelToolCall(AnsweredBy[Accepted], frozen=True, kw_only=True):
    """Stop a call that a client made."""

    tool_call_id: Name


class GetToolCall(AnsweredBy[ToolCallNow], frozen=True, kw_only=True):
    """Read everything about one attempt at a tool call; without ``attempt``, the last one."""

    tool_call_id: Name
    attempt: Annotated[int, Meta(ge=1, le=2**53)] | None = None


class ListToolCalls(AnsweredBy[ToolCalls], frozen=True, kw_only=True):
    """List tool calls of all sessions, of one session or of one run, newest first."""

    session_id: Name | None = None
    run_id: Name | None = None
    limit: PageSize = 100
    before: OptionalCursor = None
