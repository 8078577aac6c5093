"""What the commands about tools answer."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from nousd.wire.entries import PermissionMode
from nousd.wire.questions import QuestionAsked
from nousd.wire.response_base import Response
from nousd.wire.todos import Todo
from nousd.wire.tool_events import (
    ExecutedBy,
    ExecutionEnv,
    PermissionRequested,
    PolicySource,
    SandboxFacts,
    ToolCallState,
)
from nousd.wire.trust import ProjectFile
from nousd.wire.workers import WorkerSpec


class ExpiredRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request that nobody answered. ``by``: ``timeout``, or ``stop`` where its run was stopped."""

    request: PermissionRequested
    by: str
    reason: str


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

    ``root`` is that of the project of the workdir; its files are first.
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
