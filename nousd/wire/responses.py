"""One struct per response of v1: the ``payload`` of a line with ``ok: true``.

Required fields are the frozen keys; a field with a default is an addition that is left out when it
has nothing to say. ``RESPONSES`` maps the wire's ``type`` to the struct.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from nousd.wire.command_base import QueueMode
from nousd.wire.entries import Attachment, Entry, PermissionMode, Thinking, UsageTotals
from nousd.wire.extension_events import Remark
from nousd.wire.mcp import McpServers
from nousd.wire.metrics import Metrics
from nousd.wire.response_base import Response, RunState
from nousd.wire.run_options import RunOptions
from nousd.wire.session_responses import SessionNow, Sessions
from nousd.wire.tool_commands import ConfirmDecision
from nousd.wire.tool_responses import (
    Agents,
    Permissions,
    ProjectFiles,
    Questions,
    TodosNow,
    ToolCallNow,
    ToolCalls,
)
from nousd.wire.workers import TaskOrigin
from nousd.wire.workspaces import Attached, OverrideInForce, WorkspaceOverride

RunStatus = Literal["running", "completed", "cancelled", "error", "timeout", "interrupted"]
"""Of a run; all but ``running`` are final."""


class QueuedInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An accepted input. ``kind`` is ``prompt``, ``steer`` or ``follow_up``; ``leaf_id`` is the leaf a
    prompt was accepted on, ``promoted_run_id`` the run that a promoted follow-up became a steer of.
    ``changed_by`` names the extensions that changed its text before it was accepted.

    A ``message`` was appended, and waits for its place in the tree at most: ``entry_id`` is the entry it
    becomes. Of a prompt it is the entry that holds the text already. ``request_hash`` tells what came
    under a client message id from another text.
    """

    input_id: str
    kind: Literal["prompt", "steer", "follow_up", "message"]
    text: str
    run_id: str | UnsetType = UNSET
    client_message_id: str | UnsetType = UNSET
    leaf_id: str | UnsetType = UNSET
    accepted_at: str | UnsetType = UNSET
    promoted_run_id: str | UnsetType = UNSET
    attachments: tuple[Attachment, ...] | UnsetType = UNSET
    changed_by: tuple[str, ...] | UnsetType = UNSET
    entry_id: str | UnsetType = UNSET
    request_hash: str | UnsetType = UNSET
    text_ref: str | UnsetType = UNSET
    text_bytes: int | UnsetType = UNSET


class PendingCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many inputs wait."""

    steer: int
    follow_up: int


class Pong(Response, frozen=True, kw_only=True):
    message: Literal["pong"]


class Accepted(Response, frozen=True, kw_only=True):
    """The command was taken in and is durable.

    ``cleared`` (abort, clear_queue) holds the inputs taken out of the queues, so that an editor can
    offer them again. ``handled_by`` names the extension that dealt with a text, so that there is no run
    and no input; ``reply`` is what it says. ``warnings`` tells what went wrong with extensions.
    ``repeated``: this was acknowledged before, under the same client message id.
    """

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


class FlatEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event as ``result.events`` shows it: flat, with ``turn`` as a number."""

    type: str
    run_id: str
    id: str
    ts: str
    turn: int | UnsetType = UNSET
    message_id: str | UnsetType = UNSET
    role: str | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET
    tool_name: str | UnsetType = UNSET
    is_error: bool | UnsetType = UNSET
    code: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    cause: str | UnsetType = UNSET
    status: str | UnsetType = UNSET


class Result(Response, frozen=True, kw_only=True):
    """What a ``prompt`` with ``wait: true`` answers when its run has ended.

    ``handled_by`` names the extension that dealt with the text instead: ``output`` is what it says, and
    ``run_id`` is "". ``warnings`` tells what went wrong with extensions before there was a run.
    """

    output: str
    events: tuple[FlatEvent, ...]
    session_id: str
    run_id: str
    status: RunStatus
    leaf_id: str | UnsetType = UNSET
    events_truncated: bool | UnsetType = UNSET
    handled_by: str | UnsetType = UNSET
    warnings: tuple[Remark, ...] | UnsetType = UNSET


class OpenMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message being streamed: what has been told of it so far."""

    message_id: str
    role: str
    text: str


class ActiveRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run that has not ended. ``origin`` is of the run of a task. ``last_activity_at`` is when it last
    gave a sign of life; waiting within a limit of its own is one.
    """

    run_id: str
    session_id: str
    run_state: RunState
    started_at: str
    last_activity_at: str | UnsetType = UNSET
    client_id: str | UnsetType = UNSET
    agent_id: str | UnsetType = UNSET
    agent_profile: str | UnsetType = UNSET
    origin: TaskOrigin | UnsetType = UNSET


class State(Response, frozen=True, kw_only=True):
    """True at ``cursor``: subscribe after it and nothing is missed or doubled."""

    run_state: RunState
    run_id: str
    session_id: str
    steering_mode: QueueMode
    follow_up_mode: QueueMode
    pending_counts: PendingCounts
    cursor: str
    runs: tuple[ActiveRun, ...]
    provider: str
    model: str
    permission_mode: PermissionMode
    workspace: str
    override: OverrideInForce | UnsetType = UNSET
    thinking: Thinking | UnsetType = UNSET
    leaf_id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    open_message: OpenMessage | UnsetType = UNSET
    usage: UsageTotals | UnsetType = UNSET


class Messages(Response, frozen=True, kw_only=True):
    """The path root -> leaf, oldest first; ``before`` is where an older page ends."""

    session_id: str
    messages: tuple[Entry, ...]
    cursor: str
    has_more: bool
    leaf_id: str | UnsetType = UNSET
    before: str | UnsetType = UNSET


class Compaction(Response, frozen=True, kw_only=True):
    session_id: str
    summary: str
    first_kept_entry_id: str
    tokens_before: int
    trigger: str
    entry_id: str
    instruction: str | UnsetType = UNSET


class Leaf(Response, frozen=True, kw_only=True):
    session_id: str
    leaf_id: str


class TreeNode(msgspec.Struct, frozen=True, kw_only=True):
    """``parent_id`` is "" for a root; ``snippet`` is at most 80 bytes, cut ones end in "..."."""

    id: str
    parent_id: str
    role: str
    snippet: str


class Tree(Response, frozen=True, kw_only=True):
    session_id: str
    nodes: tuple[TreeNode, ...]
    has_more: bool
    leaf_id: str | UnsetType = UNSET


class SessionSelected(Response, frozen=True, kw_only=True):
    """Answers new, switch, branch and rename. ``warnings`` tells what went wrong with extensions."""

    session_id: str
    active: bool
    parent_id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    warnings: tuple[Remark, ...] | UnsetType = UNSET


class SessionDeleted(Response, frozen=True, kw_only=True):
    session_id: str
    deleted: bool


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a run. ``last_activity_at`` is told while it goes on."""

    run_id: str
    session_id: str
    status: RunStatus
    started_at: str
    runtime: str
    model: str
    turns: int
    last_activity_at: str | UnsetType = UNSET
    ended_at: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    usage: UsageTotals | UnsetType = UNSET
    client_id: str | UnsetType = UNSET
    agent_id: str | UnsetType = UNSET
    agent_profile: str | UnsetType = UNSET
    options: RunOptions | UnsetType = UNSET


class Runs(Response, frozen=True, kw_only=True):
    runs: tuple[RunRecord, ...]
    has_more: bool


class Run(Response, frozen=True, kw_only=True):
    run: RunRecord


class Events(Response, frozen=True, kw_only=True):
    """A page of the log: whole event lines. ``next`` is the cursor to go on from; a page without
    events has reached ``head``, the newest event there is. ``pruned``: as in ``Subscribed``.
    """

    events: tuple[msgspec.Raw, ...]
    next: str
    head: str
    pruned: Literal[True] | UnsetType = UNSET


class Queue(Response, frozen=True, kw_only=True):
    """Pending inputs in the order in which turns would consume them."""

    session_id: str
    inputs: tuple[QueuedInput, ...]
    pending_counts: PendingCounts
    cursor: str


class ToolSummary(msgspec.Struct, frozen=True, kw_only=True):
    """``source`` is ``builtin`` or the extension's name; ``parameters`` is a JSON Schema."""

    name: str
    description: str
    active: bool
    source: str
    parameters: dict[str, Any]


class Tools(Response, frozen=True, kw_only=True):
    session_id: str
    tools: tuple[ToolSummary, ...]


class Prices(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """US dollars per million tokens. Cached tokens without a price cost what other input does."""

    input: float
    output: float
    cache_read: float | UnsetType = UNSET
    cache_write: float | UnsetType = UNSET


class ModelSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model that can be asked; ``id`` is what ``set_model`` takes, ``provider/model``."""

    id: str
    provider: str
    model: str
    is_default: bool
    context_window: int | UnsetType = UNSET
    prices: Prices | UnsetType = UNSET
    aliases: tuple[str, ...] | UnsetType = UNSET


class ProviderUnlisted(msgspec.Struct, frozen=True, kw_only=True):
    """A provider whose server could not be asked for its models."""

    provider: str
    cause: str


Catalog = Literal["server", "config", "none"]
"""Who says which models a provider has: its server, the configuration alone, or nobody."""


class ProviderSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A provider that is configured. ``usable``: it can be asked as far as the configuration goes, its
    key included.
    """

    provider: str
    is_default: bool
    usable: bool
    catalog: Catalog


class Models(Response, frozen=True, kw_only=True):
    """``truncated``: there are more; name a provider."""

    models: tuple[ModelSummary, ...]
    errors: tuple[ProviderUnlisted, ...]
    providers: tuple[ProviderSummary, ...]
    truncated: Literal[True] | UnsetType = UNSET


class Capabilities(Response, frozen=True, kw_only=True):
    """What this daemon speaks; ``limits`` names the bounds that are in force, ``workdir`` the folder of
    sessions that name none.
    """

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
    """Answers ``subscribe`` on the event socket. ``pruned``: deltas around the cursor were joined.
    ``confirms``: the client counts as one that can answer.
    """

    cursor: str
    head: str
    pruned: Literal[True] | UnsetType = UNSET
    confirms: Literal[True] | UnsetType = UNSET


class Keepalive(Response, frozen=True, kw_only=True):
    """Follows ``subscribed``, with its id, whenever nothing was written for ``keepalive_seconds``.

    ``cursor`` is how far the subscriber has come, past events that its filter left out, too.
    """

    cursor: str
    head: str


class Upload(Response, frozen=True, kw_only=True):
    """A piece was taken; ``received`` is how many bytes have come, and the next piece's offset."""

    upload_id: str
    received: int


class Artifact(Response, frozen=True, kw_only=True):
    """An artifact that was put; or a part of one, with the last three keys.

    ``data`` (base64) begins at ``offset``; ``eof``: it goes up to the end.
    """

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
