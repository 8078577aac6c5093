"""One struct per response of v1: the ``payload`` of a line with ``ok: true``.

Required fields are the frozen keys; a field with a default is an addition, which is omitted when it does
not apply. ``RESPONSES`` maps the wire's ``type`` to the struct, whichever module defines it.
"""

from __future__ import annotations

from typing import Final

from nousd.wire.responses.accepted import Accepted
from nousd.wire.responses.artifacts import Artifact, Upload
from nousd.wire.responses.base import Response
from nousd.wire.responses.daemon import Capabilities, McpServers, Metrics, Pong
from nousd.wire.responses.events import Events, Keepalive, Subscribed
from nousd.wire.responses.models import Models
from nousd.wire.responses.runs import Queue, Result, Run, Runs
from nousd.wire.responses.runtimes import AuthStatus, Runtimes
from nousd.wire.responses.sessions import (
    Attached,
    SessionDeleted,
    SessionMatches,
    SessionNow,
    Sessions,
    SessionSelected,
    WorkspaceOverride,
)
from nousd.wire.responses.state import State
from nousd.wire.responses.tools import (
    Agents,
    Permissions,
    ProjectFiles,
    Questions,
    TodosNow,
    ToolCallNow,
    ToolCalls,
    Tools,
)
from nousd.wire.responses.transcripts import Compaction, Leaf, Messages, Tree

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
    "session_matches": SessionMatches,
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
    "runtimes": Runtimes,
    "auth_status": AuthStatus,
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
"""type on the wire -> payload struct. The payload of ``extension_result``, the extension's own value,
has none."""

RESPONSE_TYPES: Final[dict[type[Response], str]] = {
    struct: name for name, struct in RESPONSES.items()
}
