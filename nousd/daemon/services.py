"""The services of one daemon, as a command handler receives them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import trio

from nousd.daemon.blobs.uploads import Uploads
from nousd.daemon.clock import Clock
from nousd.daemon.eventlog.hub import Hub
from nousd.daemon.mcp.servers import McpServers
from nousd.daemon.ops.meters import Meters
from nousd.daemon.policy.approvals import Approvals
from nousd.daemon.policy.approvers import Approvers
from nousd.daemon.policy.questions import Questions
from nousd.daemon.replies import RecentReplies
from nousd.daemon.runs.client_calls import ClientCalls
from nousd.daemon.runs.registry import Runs
from nousd.daemon.runs.services import RunServices
from nousd.daemon.sessions.history import Contexts
from nousd.daemon.sessions.registry import Sessions
from nousd.daemon.sessions.transcripts import Transcripts
from nousd.daemon.workspace.workspaces import Workspaces
from nousd.extensions.hook_chain import NO_HOOKS, Hooks
from nousd.providers.models.listing import ModelLists
from nousd.store.interface import Store
from nousd.tools.interface import Tool
from nousd.wire.codec.framing import LineBudget

ExtensionHandler = Callable[[dict[str, Any]], Awaitable[Any]]


class Services(msgspec.Struct, kw_only=True):
    """The daemon's services, handed to every handler.

    Args:
        workspaces: what depends on the folder that a session works in.
        command_timeout_seconds: seconds a ``prompt`` with ``wait: true`` is waited for.
        line_bytes_max: the bound of one line, as it is set.
        line_budget: what the long lines of all connections may hold together.
        transcripts: those that were read last.
        hooks: of all extensions.
        handled: the answers to texts that extensions dealt with, by session and client message id.
        stopping: from the first signal on; then no command is taken any more.
        closing: set when all runs have ended; connections write what they owe and close.
    """

    store: Store
    hub: Hub
    clock: Clock
    meters: Meters
    sessions: Sessions
    run_services: RunServices
    runs: Runs
    calls: ClientCalls
    contexts: Contexts
    uploads: Uploads
    approvers: Approvers
    approvals: Approvals
    questions: Questions
    tools: Mapping[str, Tool]
    mcp: McpServers
    workspaces: Workspaces
    model_lists: ModelLists
    extension_commands: Mapping[str, ExtensionHandler]
    command_timeout_seconds: float
    line_bytes_max: int
    closing: trio.Event
    line_budget: LineBudget = msgspec.field(default_factory=LineBudget)
    transcripts: Transcripts = msgspec.field(default_factory=Transcripts)
    stopping: bool = False
    hooks: Hooks = NO_HOOKS
    handled: RecentReplies = msgspec.field(default_factory=RecentReplies)
