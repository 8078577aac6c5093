"""One struct per response of v1: the ``payload`` of a line with ``ok: true``.

Required fields are the frozen keys; a field with a default is an addition that is left out when it
has nothing to say. ``RESPONSES`` maps the wire's ``type`` to the struct, whichever file describes it.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from nousd.wire.objects.entries import PermissionMode, Thinking
from nousd.wire.objects.field_types import QueueMode
from nousd.wire.objects.inputs import PendingCounts, QueuedInput
from nousd.wire.objects.policy import ConfirmDecision
from nousd.wire.objects.remarks import Remark
from nousd.wire.responses.base import Response
from nousd.wire.responses.daemon import McpServers, Metrics
from nousd.wire.responses.models import Models
from nousd.wire.responses.runs import ActiveRun, Result, Run, Runs
from nousd.wire.responses.sessions import Attached, SessionNow, Sessions, WorkspaceOverride
from nousd.wire.responses.state import State
from nousd.wire.responses.tools import (
    Agents,
    Permissions,
    ProjectFiles,
    Questions,
    TodosNow,
    ToolCallNow,
    ToolCalls,
)
from nousd.wire.responses.transcripts import Compaction, Leaf, Messages, Tree


class Pong(Response, frozen=True, kw_only=True):
    """The daemon responds."""

    message: Literal["pong"]


class Accepted(Response, frozen=True, kw_only=True):
    """The command was accepted, and is durable."""

    command: str
    run_id: str | UnsetType = UNSET
    session_id: str | UnsetType = UNSET
    leaf_id: str | UnsetType = UNSET
    input_id: str | UnsetType = UNSET
    entry_id: str | UnsetType = UNSET
    repeated: Literal[True] | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET
    count: int | UnsetType = UNSET
    mode: QueueMode | PermissionMode | UnsetType = UNSET
    provider: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    level: Thinking | UnsetType = UNSET
    decision: ConfirmDecision | UnsetType = UNSET
    rule: str | UnsetType = UNSET
    path: str | UnsetType = UNSET
    cleared: tuple[QueuedInput, ...] | UnsetType = UNSET
    handled_by: str | UnsetType = UNSET
    reply: str | UnsetType = UNSET
    warnings: tuple[Remark, ...] | UnsetType = UNSET


class SessionSelected(Response, frozen=True, kw_only=True):
    """The session that was created, branched, selected or renamed."""

    session_id: str
    active: bool
    parent_id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    warnings: tuple[Remark, ...] | UnsetType = UNSET


class SessionDeleted(Response, frozen=True, kw_only=True):
    """Whether the session is deleted, or a run is stopped first."""

    session_id: str
    deleted: bool
    run: ActiveRun | UnsetType = UNSET


class Events(Response, frozen=True, kw_only=True):
    """A page of the log."""

    events: tuple[msgspec.Raw, ...]
    next: str
    head: str
    pruned: Literal[True] | UnsetType = UNSET


class Queue(Response, frozen=True, kw_only=True):
    """The pending inputs in the order in which turns will consume them."""

    session_id: str
    inputs: tuple[QueuedInput, ...]
    pending_counts: PendingCounts
    cursor: str


class ToolSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A tool, and whether it is active."""

    name: str
    description: str
    active: bool
    source: str
    parameters: dict[str, Any]


class Tools(Response, frozen=True, kw_only=True):
    """All tools."""

    session_id: str
    tools: tuple[ToolSummary, ...]


class Capabilities(Response, frozen=True, kw_only=True):
    """The commands and events of this daemon, and the limits in force."""

    protocol: str
    version: str
    commands: tuple[str, ...]
    events: tuple[str, ...]
    frozen_events: tuple[str, ...]
    provider: str
    model: str
    workdir: str
    extension_commands: tuple[str, ...]
    limits: dict[str, int]


class Subscribed(Response, frozen=True, kw_only=True):
    """The subscription is in force; its events follow."""

    cursor: str
    head: str
    pruned: Literal[True] | UnsetType = UNSET
    confirms: Literal[True] | UnsetType = UNSET


class Keepalive(Response, frozen=True, kw_only=True):
    """Nothing was written for ``keepalive_seconds``."""

    cursor: str
    head: str


class Upload(Response, frozen=True, kw_only=True):
    """A piece was stored; more are to come."""

    upload_id: str
    received: int


class Artifact(Response, frozen=True, kw_only=True):
    """An artifact that was stored or, with the last three keys, a part of one that is read."""

    artifact_id: str
    media_type: str
    size_bytes: int
    offset: int | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    eof: bool | UnsetType = UNSET


RESPONSES: Final[dict[str, type[Response]]] = {
    "pong": Pong,
    "accepted": Accepted,
    "result": Result,
    "state": State,
    "messages": Messages,
    "compaction": Compaction,
    "leaf": Leaf,
    "tree": Tree,
    "session": SessionSelected,
    "sessions": Sessions,
    "session_record": SessionNow,
    "session_deleted": SessionDeleted,
    "attached": Attached,
    "workspace_override": WorkspaceOverride,
    "runs": Runs,
    "run": Run,
    "events": Events,
    "queue": Queue,
    "tools": Tools,
    "agents": Agents,
    "models": Models,
    "mcp_servers": McpServers,
    "capabilities": Capabilities,
    "upload": Upload,
    "artifact": Artifact,
    "metrics": Metrics,
    "permissions": Permissions,
    "project_files": ProjectFiles,
    "questions": Questions,
    "todos": TodosNow,
    "tool_call": ToolCallNow,
    "tool_calls": ToolCalls,
    "subscribed": Subscribed,
    "keepalive": Keepalive,
}
"""type on the wire -> payload struct. ``extension_result`` has whatever the extension returned."""

RESPONSE_TYPES: Final[dict[type[Response], str]] = {
    struct: name for name, struct in RESPONSES.items()
}
