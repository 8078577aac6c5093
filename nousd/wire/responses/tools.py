"""What the commands about tools answer."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from nousd.wire.events.base import CutOff
from nousd.wire.events.tools import PermissionRequested, QuestionAsked
from nousd.wire.objects.entries import PermissionMode
from nousd.wire.objects.policy import (
    ExecutedBy,
    ExecutionEnv,
    PolicySource,
    SandboxFacts,
    ToolCallState,
)
from nousd.wire.objects.todos import Todo
from nousd.wire.objects.trust import ProjectFile
from nousd.wire.objects.workers import WorkerSpec
from nousd.wire.responses.base import Response


class ExpiredRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request that nobody answered. ``by``: ``timeout``, or ``stop`` where its run was stopped."""

    request: PermissionRequested
    by: str


class RuleInForce(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that calls are judged by; ``origin`` says for people where it stands."""

    decision: Literal["allow", "ask", "deny"]
    rule: str
    origin: str


class Permissions(Response, frozen=True, kw_only=True):
    """What waits for a word of the user, and what is permitted; true at ``cursor``.

    ``pending`` and ``expired`` are of every session, or of the one that was named. ``granted`` is of
    ``session_id``, ``granted_everywhere`` of all. ``can_answer``: whether a client is connected that
    has declared that it answers; else nobody is asked.
    """

    session_id: str
    mode: PermissionMode
    can_answer: bool
    pending: tuple[PermissionRequested, ...]
    expired: tuple[ExpiredRequest, ...]
    granted: tuple[str, ...]
    granted_everywhere: tuple[str, ...]
    rules: tuple[RuleInForce, ...]
    cursor: str
    truncated: Literal[True] | UnsetType = UNSET


class ProjectFiles(Response, frozen=True, kw_only=True):
    """What files of projects say, and which of them the user trusts; true at ``cursor``.

    ``root`` is that of the project that was asked about; its files are first.
    """

    root: str
    files: tuple[ProjectFile, ...]
    cursor: str


class TodosNow(Response, frozen=True, kw_only=True):
    """A session's list of things to do, true at ``cursor``."""

    session_id: str
    todos: tuple[Todo, ...]
    cursor: str


class Questions(Response, frozen=True, kw_only=True):
    """Questions that wait for an answer, the oldest first; true at ``cursor``."""

    questions: tuple[QuestionAsked, ...]
    cursor: str
    truncated: Literal[True] | UnsetType = UNSET


class AgentSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An agent, or a file that should be one.

    ``usable``: it can be named in a task. ``trusted``: all that the file says counts; of one that is not
    only what narrows. ``problems`` says for people what is wrong, or not in force.
    """

    name: str
    source: Literal["user", "project"]
    path: str
    usable: bool
    trusted: bool
    description: str | UnsetType = UNSET
    hash: str | UnsetType = UNSET
    worker: WorkerSpec | UnsetType = UNSET
    problems: tuple[str, ...] = ()


class Agents(Response, frozen=True, kw_only=True):
    """Without a session, those that a new session would have."""

    session_id: str
    agents: tuple[AgentSummary, ...]


class CallDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The one decision about an attempt at a tool call: who, when and why."""

    approved: bool
    by: str
    reason: str
    decided_at: str


class ToolCallSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt at a tool call. ``event`` is the cursor of the event that requested it; ``executed``:
    it was started. One without ``run_id`` was made by a client.
    """

    tool_call_id: str
    attempt: int
    session_id: str
    run_id: str | UnsetType = UNSET
    tool_name: str
    state: ToolCallState
    executed: bool
    event: str
    requested_at: str
    client_call_id: str | UnsetType = UNSET
    ended_at: str | UnsetType = UNSET
    is_error: bool | UnsetType = UNSET
    decided_by: str | UnsetType = UNSET


class ToolCallRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything about one attempt at a tool call.

    ``args`` are as they were asked for; ``input_hash`` is of those that ran, or would. ``sources`` is
    what each source said, in their order. The other keys are those of the call's events.
    """

    tool_call_id: str
    attempt: int
    session_id: str
    run_id: str | UnsetType = UNSET
    turn_id: str | UnsetType = UNSET
    tool_name: str
    input_hash: str | UnsetType = UNSET
    runtime_tool_call_id: str | UnsetType = UNSET
    client_call_id: str | UnsetType = UNSET
    state: ToolCallState
    executed: bool
    event: str
    args: dict[str, Any]
    args_ref: str | UnsetType = UNSET
    args_bytes: int | UnsetType = UNSET
    sources: tuple[PolicySource, ...] = ()
    permission_mode: PermissionMode | UnsetType = UNSET
    decision: CallDecision | UnsetType = UNSET
    requested_at: str
    started_at: str | UnsetType = UNSET
    ended_at: str | UnsetType = UNSET
    duration_ms: int | UnsetType = UNSET
    stop_reason: CutOff | UnsetType = UNSET
    is_error: bool | UnsetType = UNSET
    executed_by: ExecutedBy | UnsetType = UNSET
    execution_env: ExecutionEnv | UnsetType = UNSET
    sandbox: SandboxFacts | UnsetType = UNSET
    changed_by: tuple[str, ...] | UnsetType = UNSET
    result: str | UnsetType = UNSET
    text_ref: str | UnsetType = UNSET
    text_bytes: int | UnsetType = UNSET
    artifact_id: str | UnsetType = UNSET


class ToolCallNow(Response, frozen=True, kw_only=True):
    """One attempt at a tool call, as it stands."""

    call: ToolCallRecord


class ToolCalls(Response, frozen=True, kw_only=True):
    """Tool calls, the newest first."""

    calls: tuple[ToolCallSummary, ...]
    has_more: bool
