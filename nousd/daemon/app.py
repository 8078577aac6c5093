"""Assembles the daemon from store, sessions, runs and commands.

``open_services`` runs a complete daemon for a caller that brings its own streams; ``serve`` adds
sockets, locks and signals. Tests run it on memory streams, a memory store and a fake clock.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import trio

from nousd.config.runtimes_file import ConfiguredRuntime
from nousd.daemon.blobs.uploads import Uploads
from nousd.daemon.clock import Clock
from nousd.daemon.error_boundary import run_contained
from nousd.daemon.eventlog.hub import Hub
from nousd.daemon.eventlog.log import Log
from nousd.daemon.eventlog.retention import (
    collect_unused_artifacts,
    drop_copies,
    prune_old_deltas,
)
from nousd.daemon.mcp.servers import McpServers
from nousd.daemon.ops.meters import Meters
from nousd.daemon.policy.approvals import Approvals
from nousd.daemon.policy.approvers import Approvers
from nousd.daemon.policy.overrides import Overrides
from nousd.daemon.policy.permissions import Permissions, RulePermissions
from nousd.daemon.policy.questions import Questions
from nousd.daemon.policy.requests import APPROVAL_SECONDS
from nousd.daemon.policy.subtask_policy import CutPermissions
from nousd.daemon.runs.call_hooks import ExtensionCallHooks
from nousd.daemon.runs.client_calls import ClientCalls
from nousd.daemon.runs.model_inputs import ModelInputs
from nousd.daemon.runs.outside_calls import record_refused
from nousd.daemon.runs.recovery import close_open_work, close_open_work_at_start
from nousd.daemon.runs.registry import Runs
from nousd.daemon.runs.runtimes import MakeRuntime, Runtimes
from nousd.daemon.runs.services import RunServices
from nousd.daemon.services import ExtensionHandler, Services
from nousd.daemon.sessions.history import Contexts
from nousd.daemon.sessions.registry import Sessions
from nousd.daemon.sessions.scheduled_deletions import ScheduledDeletions
from nousd.daemon.workspace.workspaces import Workspaces
from nousd.extensions.hook_chain import NO_HOOKS, Hooks
from nousd.providers.models.catalog import Models
from nousd.providers.models.listing import ModelLists
from nousd.runtimes.agents.surroundings import AgentSurroundings
from nousd.runtimes.answer_room import AnswerBounds
from nousd.runtimes.calls.hooks import CallHooks
from nousd.runtimes.calls.runner import CallRunner
from nousd.runtimes.interface import Runtime
from nousd.runtimes.native.loop import NativeRuntime, NativeSettings
from nousd.store.interface import Store
from nousd.store.rows import Defaults
from nousd.tools.interface import Tool, ToolContext
from nousd.tools.mcp.server import Surroundings
from nousd.tools.mcp.spec import ServerSpec
from nousd.tools.registry import ToolRegistry
from nousd.tools.sandbox.interface import FindSandbox, no_sandbox
from nousd.tools.sandbox.obeyed_links import NO_LINKS, ObeyedLinks
from nousd.tools.secrets_interface import NO_SECRETS, Secrets
from nousd.wire.limits import LINE_BYTES_MAX
from nousd.wire.objects.entries import ToolCall

_CONTEXT_WINDOWS_READ: Final = 4
"""Maximum context windows to read of an uncompacted transcript. A compaction summarises the entries
read; older ones could never be sent."""


class DaemonDeps(msgspec.Struct, kw_only=True):
    """The parts that a daemon is built from."""

    store: Store
    clock: Clock
    models: Models
    workspaces: Workspaces
    """The same object that ``permissions`` uses."""
    tools: tuple[Tool, ...] = ()
    late_tools: Callable[[], Iterable[Tool]] | None = None
    """Loads further tools when a tool is first looked up; they come before ``tools``."""
    extension_commands: Mapping[str, ExtensionHandler] = {}
    hooks: Hooks = NO_HOOKS
    around_permissions: Callable[[Permissions, Sessions], Permissions] = CutPermissions
    """Wraps the permissions to restrict tasks; a replay (``nousd.replay``) plays recorded decisions
    instead."""
    call_hooks: CallHooks | None = None
    """Replaces the call hooks of ``hooks``; for ``nousd.replay``."""
    native: NativeSettings = NativeSettings()
    around_tools: Callable[[Mapping[str, Tool]], Mapping[str, Tool]] = lambda tools: tools
    """Selects the tools that a call can find; for ``nousd.replay``."""
    around_runtime: Callable[[Runtime], Runtime] = lambda runtime: runtime
    """Wraps the native runtime; ``nousd.replay`` acts after each of its steps."""
    make_agents: Callable[[AgentSurroundings], Mapping[str, MakeRuntime]] = lambda _: {}
    """Returns factories of the runtimes that drive agent programs, by name."""
    configured_runtimes: tuple[ConfiguredRuntime, ...] = ()
    """The descriptions of these runtimes in the settings."""
    permissions: Permissions = RulePermissions()
    approval_timeout_seconds: float = APPROVAL_SECONDS
    sandbox: FindSandbox = no_sandbox
    obeyed_links: ObeyedLinks = NO_LINKS
    mcp_servers: tuple[ServerSpec, ...] = ()
    mcp_disabled: tuple[ServerSpec, ...] = ()
    """Configured servers that are disabled."""
    mcp_surroundings: Surroundings | None = None
    """None to run no MCP servers, not even those in the log."""
    command_timeout_seconds: float = 600.0
    stale_seconds: float = 120.0
    delta_retention_days: int = 7
    line_bytes_max: int = LINE_BYTES_MAX
    secrets: Secrets = NO_SECRETS
    """The secrets to redact from the output of tools and models."""
    spool_folder: Path | None = None
    """Directory for long outputs and uploads until they are stored; None for the system's temporary
    directory."""


@asynccontextmanager
async def open_services(deps: DaemonDeps) -> AsyncIterator[Services]:
    """Run a daemon for the duration of the block. Call ``shut_down`` before the block ends to let
    clients read the last events.

    Runs that an earlier process left open are closed first, as far as the disk allows.
    """
    hub = Hub(deps.store)
    log = Log(deps.store, hub, deps.clock)
    await close_open_work_at_start(deps.store, log, deps.clock)
    defaults = await deps.store.defaults()
    # Read before any command runs, so that the list has no branch that a command is creating.
    unfinished_branches = await deps.store.list_uncreated_branches()
    deps.workspaces.trust.remember(defaults.trusted)
    tools = ToolRegistry(deps.tools, late=deps.late_tools)
    hooks = deps.call_hooks or ExtensionCallHooks(deps.hooks)
    gate = CallRunner(lambda session_id: deps.around_tools(tools.of(session_id)), hooks)
    approvers = Approvers()
    async with trio.open_nursery() as nursery:
        bounds = AnswerBounds(deps.native.answer_bytes_max, deps.native.run_answer_bytes_max)

        async def on_refused(session_id: str, runtime: str, call: ToolCall) -> None:
            await record_refused(shared, session_id, runtime, call)

        surroundings = AgentSurroundings(
            nursery, run_contained, tools, hooks, on_refused, bounds, deps.secrets
        )
        agents = deps.make_agents(surroundings)
        shared = _run_services(
            deps, log, defaults, tools, gate=gate, approvers=approvers, agents=agents
        )
        services = Services(
            store=deps.store,
            hub=hub,
            clock=deps.clock,
            meters=Meters(deps.clock.now()),
            sessions=shared.sessions,
            run_services=shared,
            runs=Runs(nursery, shared),
            calls=ClientCalls(nursery=nursery, services=shared, runner=gate, tools=tools),
            contexts=shared.contexts,
            uploads=Uploads(deps.store, deps.clock, deps.spool_folder),
            approvers=approvers,
            approvals=shared.approvals,
            questions=shared.questions,
            tools=tools,
            mcp=_mcp_servers(deps, shared.sessions, log, tools, nursery),
            deletions=ScheduledDeletions(deps.store, deps.clock),
            workspaces=deps.workspaces,
            model_lists=ModelLists(deps.models),
            extension_commands=deps.extension_commands,
            hooks=deps.hooks,
            command_timeout_seconds=deps.command_timeout_seconds,
            line_bytes_max=deps.line_bytes_max,
            answer_bytes_max=deps.native.answer_bytes_max,
            run_answer_bytes_max=deps.native.run_answer_bytes_max,
            closing=trio.Event(),
        )
        _start_background_tasks(nursery, deps, services)
        nursery.start_soon(drop_copies, deps.store, unfinished_branches)
        try:
            yield services
        finally:
            await shut_down(services)
            nursery.cancel_scope.cancel()


def _start_background_tasks(nursery: trio.Nursery, deps: DaemonDeps, services: Services) -> None:
    """Start the tasks for pruning, expiry, scheduled deletions and MCP servers."""
    prune = partial(prune_old_deltas, days=deps.delta_retention_days)
    nursery.start_soon(prune, deps.store, services.hub, deps.clock)
    nursery.start_soon(collect_unused_artifacts, deps.store, deps.clock)
    nursery.start_soon(services.uploads.expire)
    nursery.start_soon(services.runs.stop_stale_runs)
    nursery.start_soon(services.run_services.overrides.watch)
    nursery.start_soon(services.deletions.watch, partial(_delete_due, services))
    services.mcp.start()


async def _delete_due(services: Services, session_id: str, delete_at: str) -> bool:
    # Imported late: a deletion is rarely due, and the module has many imports.
    from nousd.daemon.commands.sessions import delete_due

    return await delete_due(services, session_id, delete_at)


async def shut_down(services: Services) -> None:
    """Refuse further commands, end the runs as ``interrupted`` and let connections finish."""
    services.stopping.set()
    with trio.CancelScope(shield=True):
        await services.calls.stop_all("interrupted")
        await services.runs.stop_all("interrupted")
    services.closing.set()


def _run_services(
    deps: DaemonDeps,
    log: Log,
    defaults: Defaults,
    tools: ToolRegistry,
    *,
    gate: CallRunner,
    approvers: Approvers,
    agents: Mapping[str, MakeRuntime],
) -> RunServices:
    recover = partial(close_open_work, deps.store, log, deps.clock)
    workdir = deps.workspaces.default.path
    sessions = Sessions(deps.store, log, deps.clock, defaults, recover=recover, workdir=workdir)
    window = deps.native.context_window or deps.models.largest_window()
    approvals = Approvals(deps.clock, approvers, deps.approval_timeout_seconds)
    native = NativeRuntime(deps.models, tools, gate, deps.native, deps.secrets)
    return RunServices(
        sessions=sessions,
        store=deps.store,
        log=log,
        clock=deps.clock,
        runtimes=Runtimes(deps.around_runtime(native), agents, deps.configured_runtimes),
        summariser=native,
        models=deps.models,
        tools=tools,
        contexts=Contexts(deps.store, tokens_max=_CONTEXT_WINDOWS_READ * window),
        inputs=ModelInputs(deps.store),
        workspaces=deps.workspaces,
        permissions=deps.around_permissions(deps.permissions, sessions),
        approvals=approvals,
        overrides=Overrides(deps.store, sessions, deps.clock, approvals),
        questions=Questions(deps.clock, approvers, deps.approval_timeout_seconds),
        make_context=partial(
            ToolContext,
            spool_folder=deps.spool_folder,
            secrets=deps.secrets,
            sandbox=deps.sandbox,
            obeyed_links=deps.obeyed_links,
        ),
        hooks=deps.hooks,
        secrets=deps.secrets,
        stale_seconds=deps.stale_seconds,
    )


def _mcp_servers(
    deps: DaemonDeps, sessions: Sessions, log: Log, tools: ToolRegistry, nursery: trio.Nursery
) -> McpServers:
    return McpServers(
        configured=deps.mcp_servers,
        disabled=deps.mcp_disabled,
        surroundings=deps.mcp_surroundings,
        tools=tools,
        project=deps.workspaces.default.project,
        sessions=sessions,
        workspaces=deps.workspaces,
        log=log,
        nursery=nursery,
    )
