"""Responses to the commands about tools."""

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
    """A permission request that expired without an answer."""

    request: PermissionRequested
    by: str


class RuleInForce(msgspec.Struct, frozen=True, kw_only=True):
    """A rule about tool calls, and its origin, as a text for people."""

    decision: Literal["allow", "ask", "deny"]
    rule: str
    origin: str


class Permissions(Response, frozen=True, kw_only=True):
    """The pending approvals, the expired requests, and the rules in force."""

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
    """The settings files of projects, and which of them the user trusts."""

    root: str
    files: tuple[ProjectFile, ...]
    cursor: str


class TodosNow(Response, frozen=True, kw_only=True):
    """A session's todo list."""

    session_id: str
    todos: tuple[Todo, ...]
    cursor: str


class Questions(Response, frozen=True, kw_only=True):
    """The questions that wait for an answer, oldest first."""

    questions: tuple[QuestionAsked, ...]
    cursor: str
    truncated: Literal[True] | UnsetType = UNSET


class AgentSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An agent, or a file that cannot be used as one."""

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
    """All agent files, usable or not."""

    session_id: str
    agents: tuple[AgentSummary, ...]


class CallDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The final decision about an attempt at a tool call: by whom, when and why."""

    approved: bool
    by: str
    reason: str
    decided_at: str
    client_id: str | UnsetType = UNSET


class ToolCallSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt at a tool call, as lists show it. A call without ``run_id`` was made by a client."""

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
    """Everything about one attempt at a tool call."""

    tool_call_id: str
    attempt: int
    session_id: str
    run_id: str | UnsetType = UNSET
    turn_id: str | UnsetType = UNSET
    tool_name: str
    input_hash: str | UnsetType = UNSET
    runtime_tool_call_id: str | UnsetType = UNSET
    client_call_id: str | UnsetType = UNSET
    client_id: str | UnsetType = UNSET
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
    """The current state of one attempt at a tool call."""

    call: ToolCallRecord


class ToolCalls(Response, frozen=True, kw_only=True):
    """A page of tool calls, newest first."""

    calls: tuple[ToolCallSummary, ...]
    has_more: bool


class ToolSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A tool, and whether it is active."""

    name: str
    description: str
    active: bool
    source: str
    parameters: dict[str, Any]


class Tools(Response, frozen=True, kw_only=True):
    """All tools, or a page of them."""

    session_id: str
    tools: tuple[ToolSummary, ...]
    has_more: Literal[True] | UnsetType = UNSET
