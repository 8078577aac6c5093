"""Workers, which carry out tasks, and the origin of a task's session.

A worker is a prompt with its tools and bounds. It comes from a file (an *agent*) or from the arguments
of the tool ``task``.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from nousd.wire.limits import (
    AGENT_PROMPT_CHARS_MAX,
    NAME_CHARS_MAX,
    RULE_CHARS_MAX,
    TOOLS_MAX,
    WORKER_RULES_MAX,
)
from nousd.wire.objects.entries import PermissionMode

WorkerName = Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$(?!\n)")]
RuleText = Annotated[str, Meta(min_length=1, max_length=RULE_CHARS_MAX)]
RuleTexts = Annotated[tuple[RuleText, ...], Meta(max_length=WORKER_RULES_MAX)]
ToolName = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]


class WorkerPermissions(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Rules and a mode for the calls of a worker, beside all that apply to its parent."""

    allow: RuleTexts = ()
    ask: RuleTexts = ()
    deny: RuleTexts = ()
    mode: PermissionMode | UnsetType = UNSET


class WorkerSpec(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A worker, which carries out a task."""

    name: WorkerName = "worker"
    description: Annotated[str, Meta(max_length=1024)] = ""
    prompt: Annotated[str, Meta(max_length=AGENT_PROMPT_CHARS_MAX)] = ""
    tools: Annotated[tuple[ToolName, ...], Meta(max_length=TOOLS_MAX)] | UnsetType = UNSET
    permissions: WorkerPermissions = WorkerPermissions()
    max_calls: Annotated[int, Meta(ge=1, le=10_000)] | UnsetType = UNSET
    model: Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)] | UnsetType = UNSET


class TaskOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The call of the tool ``task`` that created a session, and the run at the top of the task tree."""

    session_id: str
    run_id: str
    tool_call_id: str
    root_session_id: str
    root_run_id: str
    depth: int


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The run in which an event happened that is reported again on the run at the top."""

    session_id: str
    run_id: str
