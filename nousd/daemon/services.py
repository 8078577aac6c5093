"""The services of one daemon, as a command handler receives them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from nousd.daemon.replies import RecentReplies
from nousd.daemon.sessions.transcripts import Transcripts
from nousd.extensions.hook_chain import NO_HOOKS, Hooks
from nousd.wire.codec.framing import LineBudget

if TYPE_CHECKING:
    from nousd.daemon.blobs.uploads import Uploads
    from nousd.daemon.clock import Clock
    from nousd.daemon.eventlog.hub import Hub
    from nousd.daemon.mcp.servers import McpServers
    from nousd.daemon.ops.meters import Meters
    from nousd.daemon.policy.approvals import Approvals
    from nousd.daemon.policy.approvers import Approvers
    from nousd.daemon.policy.questions import Questions
    from nousd.daemon.runs.client_calls import ClientCalls
    from nousd.daemon.runs.registry import Runs
    from nousd.daemon.runs.services import RunServices
    from nousd.daemon.sessions.history import Contexts
    from nousd.daemon.sessions.registry import Sessions
    from nousd.daemon.sessions.scheduled_deletions import ScheduledDeletions
    from nousd.daemon.workspace.workspaces import Workspaces
    from nousd.providers.models.listing import ModelLists
    from nousd.store.interface import Store
    from nousd.tools.registry import ToolRegistry

ExtensionHandler = Callable[[dict[str, Any]], Awaitable[Any]]


class Services(msgspec.Struct, kw_only=True):
    """The daemon's services, passed to every handler.

    Args:
        workspaces: the workspaces of sessions.
        command_timeout_seconds: how long a ``prompt`` with ``wait: true`` waits for its run.
        line_bytes_max, answer_bytes_max, run_answer_bytes_max: the configurable limits.
        line_budget: memory that the long lines of all connections may use together.
        transcripts: cache of the transcripts read last.
        hooks: the hooks of all extensions.
        handled: responses to inputs that extensions handled, by session and client message id.
        stopping: set from the first signal on; further commands are refused.
        closing: set when all runs have ended; connections write their output and close.
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
    tools: ToolRegistry
    mcp: McpServers
    deletions: ScheduledDeletions
    workspaces: Workspaces
    model_lists: ModelLists
    extension_commands: Mapping[str, ExtensionHandler]
    command_timeout_seconds: float
    line_bytes_max: int
    answer_bytes_max: int
    run_answer_bytes_max: int
    closing: trio.Event
    line_budget: LineBudget = msgspec.field(default_factory=LineBudget)
    transcripts: Transcripts = msgspec.field(default_factory=Transcripts)
    stopping: trio.Event = msgspec.field(default_factory=trio.Event)
    hooks: Hooks = NO_HOOKS
    handled: RecentReplies = msgspec.field(default_factory=RecentReplies)

    def restrict(self) -> Services:
        """Return the services for a client that may only use the workspaces that the settings allow."""
        return msgspec.structs.replace(self, workspaces=self.workspaces.restrict_to_roots())
