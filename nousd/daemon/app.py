"""The daemon without its edges: store, sessions, runs and commands put together.

``open_services`` is the whole daemon for whoever brings streams of their own; ``serve`` brings sockets,
locks and signals. Tests run it on memory streams, a memory store and a fake clock.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import trio

from nousd.daemon.blobs.uploads import Uploads
from nousd.daemon.clock import Clock
from nousd.daemon.eventlog.garbage import collect_unused_artifacts
from nousd.daemon.eventlog.hub import Hub
from nousd.daemon.eventlog.log import Log
from nousd.daemon.eventlog.retention import prune_old_deltas
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
from nousd.daemon.runs.recovery import close_what_can_be, close_what_is_open
from nousd.daemon.runs.registry import Runs
from nousd.daemon.runs.services import RunServices
from nousd.daemon.services import ExtensionHandler, Services
from nousd.daemon.sessions.history import Contexts
from nousd.daemon.sessions.registry import Sessions
from nousd.daemon.workspace.workspaces import Workspaces
from nousd.extensions.hook_chain import NO_HOOKS, Hooks
from nousd.providers.models.catalog import Models
from nousd.providers.models.listing import ModelLists
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
from nousd.tools.secret_filter import NO_SECRETS, Secrets
from nousd.wire.limits import LINE_BYTES_MAX

_CONTEXT_WINDOWS_READ: Final = 4
"""How many context windows of an uncompacted transcript are read at most; a compaction summarises
what is read, and nothing behind that could ever be sent."""


class DaemonDeps(msgspec.Struct, kw_only=True):
    """Everything that a daemon is built from."""

    store: Store
    clock: Clock
    models: Models
    workspaces: Workspaces
    """The permissions look at the same."""
    tools: tuple[Tool, ...] = ()
    late_tools: Callable[[], Iterable[Tool]] | None = None
    """Come before ``tools``, and are not asked for before somebody looks for a tool."""
    extension_commands: Mapping[str, ExtensionHandler] = {}
    hooks: Hooks = NO_HOOKS
    around_permissions: Callable[[Permissions, Sessions], Permissions] = CutPermissions
    """What cuts the permissions of tasks, unless it is known what came of that (``nousd.replay``)."""
    call_hooks: CallHooks | None = None
    """Who looks at calls in the place of ``hooks`` (``nousd.replay``)."""
    native: NativeSettings = NativeSettings()
    around_tools: Callable[[Mapping[str, Tool]], Mapping[str, Tool]] = lambda tools: tools
    """Says which of the tools the gate finds at a call (``nousd.replay``)."""
    around_runtime: Callable[[Runtime], Runtime] = lambda runtime: runtime
    """Puts something around the runtime that stands behind each of its steps (``nousd.replay``)."""
    permissions: Permissions = RulePermissions()
    approval_timeout_seconds: float = APPROVAL_SECONDS
    sandbox: FindSandbox = no_sandbox
    mcp_servers: tuple[ServerSpec, ...] = ()
    mcp_disabled: tuple[ServerSpec, ...] = ()
    """Those of the settings that are not to run."""
    mcp_surroundings: Surroundings | None = None
    """None if there are to be none, whatever the log says."""
    command_timeout_seconds: float = 600.0
    stale_seconds: float = 120.0
    delta_retention_days: int = 7
    line_bytes_max: int = LINE_BYTES_MAX
    secrets: Secrets = NO_SECRETS
    """What no tool may tell of."""
    spool_folder: Path | None = None
    """On whose filesystem long outputs and uploads lie meanwhile; None: where temporary files do."""


class _Shared(NamedTuple):
    """Objects that several services of a daemon share."""

    hub: Hub
    log: Log
    sessions: Sessions
    tools: ToolRegistry
    gate: CallRunner
    contexts: Contexts
    approvers: Approvers
    approvals: Approvals
    overrides: Overrides
    questions: Questions
    uploads: Uploads


@asynccontextmanager
async def open_services(deps: DaemonDeps) -> AsyncIterator[Services]:
    """Provide a running daemon. Leaving the block stops it; ``shut_down`` before lets clients see it.

    Open runs of an earlier process are closed before anything else, as far as the disk allows.
    """
    hub = Hub(deps.store)
    log = Log(deps.store, hub, deps.clock)
    await close_what_can_be(deps.store, log, deps.clock)
    defaults = await deps.store.defaults()
    deps.workspaces.trust.remember(defaults.trusted)
    shared = _shared(deps, hub, log, defaults)
    async with trio.open_nursery() as nursery:
        run_services = _run_services(deps, shared)
        runs = Runs(nursery, run_services)
        nursery.start_soon(runs.stop_stale_runs)
        nursery.start_soon(shared.overrides.watch)
        mcp = _mcp_servers(deps, shared, nursery)
        _keep_house(deps, hub, shared.uploads, nursery)
        calls = ClientCalls(
            nursery=nursery, services=run_services, runner=shared.gate, tools=shared.tools
        )
        services = _services(
            deps, shared, run_services=run_services, runs=runs, calls=calls, mcp=mcp
        )
        try:
            yield services
        finally:
            await shut_down(services)
            nursery.cancel_scope.cancel()


async def shut_down(services: Services) -> None:
    """Take no more commands, end the runs as ``interrupted`` and lets connections finish."""
    services.stopping = True
    with trio.CancelScope(shield=True):
        await services.calls.stop_all("interrupted")
        await services.runs.stop_all("interrupted")
    services.closing.set()


def _shared(deps: DaemonDeps, hub: Hub, log: Log, defaults: Defaults) -> _Shared:
    sessions = Sessions(
        deps.store,
        log,
        deps.clock,
        defaults,
        recover=partial(close_what_is_open, deps.store, log, deps.clock),
        workdir=deps.workspaces.default.path,
    )
    tools = ToolRegistry(deps.tools, late=deps.late_tools)
    approvers = Approvers()
    approvals = Approvals(deps.clock, approvers, deps.approval_timeout_seconds)
    return _Shared(
        hub=hub,
        log=log,
        sessions=sessions,
        tools=tools,
        gate=CallRunner(
            deps.around_tools(tools), deps.call_hooks or ExtensionCallHooks(deps.hooks)
        ),
        contexts=Contexts(deps.store, tokens_max=_CONTEXT_WINDOWS_READ * _window(deps)),
        approvers=approvers,
        approvals=approvals,
        overrides=Overrides(deps.store, sessions, deps.clock, approvals),
        questions=Questions(deps.clock, approvers, deps.approval_timeout_seconds),
        uploads=Uploads(deps.store, deps.clock, deps.spool_folder),
    )


def _services(
    deps: DaemonDeps,
    shared: _Shared,
    *,
    run_services: RunServices,
    runs: Runs,
    calls: ClientCalls,
    mcp: McpServers,
) -> Services:
    return Services(
        store=deps.store,
        hub=shared.hub,
        clock=deps.clock,
        meters=Meters(deps.clock.now()),
        sessions=shared.sessions,
        run_services=run_services,
        runs=runs,
        calls=calls,
        call_records=run_services.call_records,
        contexts=shared.contexts,
        uploads=shared.uploads,
        approvers=shared.approvers,
        approvals=shared.approvals,
        questions=shared.questions,
        tools=shared.tools,
        mcp=mcp,
        workspaces=deps.workspaces,
        model_lists=ModelLists(deps.models),
        extension_commands=deps.extension_commands,
        hooks=deps.hooks,
        command_timeout_seconds=deps.command_timeout_seconds,
        line_bytes_max=deps.line_bytes_max,
        closing=trio.Event(),
    )


def _run_services(deps: DaemonDeps, shared: _Shared) -> RunServices:
    return RunServices(
        sessions=shared.sessions,
        store=deps.store,
        log=shared.log,
        clock=deps.clock,
        runtime=deps.around_runtime(
            NativeRuntime(deps.models, shared.tools, shared.gate, deps.native)
        ),
        models=deps.models,
        tools=shared.tools,
        contexts=shared.contexts,
        inputs=ModelInputs(deps.store),
        workspaces=deps.workspaces,
        permissions=deps.around_permissions(deps.permissions, shared.sessions),
        granted=lambda: shared.sessions.defaults.granted,
        approvals=shared.approvals,
        overrides=shared.overrides,
        questions=shared.questions,
        make_context=partial(
            ToolContext,
            spool_folder=deps.spool_folder,
            secrets=deps.secrets,
            sandbox=deps.sandbox,
        ),
        hooks=deps.hooks,
        stale_seconds=deps.stale_seconds,
    )


def _mcp_servers(deps: DaemonDeps, shared: _Shared, nursery: trio.Nursery) -> McpServers:
    mcp = McpServers(
        configured=deps.mcp_servers,
        disabled=deps.mcp_disabled,
        around=deps.mcp_surroundings,
        tools=shared.tools,
        project=deps.workspaces.default.project,
        sessions=shared.sessions,
        log=shared.log,
        nursery=nursery,
    )
    mcp.start()
    return mcp


def _keep_house(deps: DaemonDeps, hub: Hub, uploads: Uploads, nursery: trio.Nursery) -> None:
    """Start what removes what nobody needs any more."""
    nursery.start_soon(
        partial(prune_old_deltas, days=deps.delta_retention_days),
        deps.store,
        hub,
        deps.clock,
    )
    nursery.start_soon(collect_unused_artifacts, deps.store, deps.clock)
    nursery.start_soon(uploads.expire)


def _window(deps: DaemonDeps) -> int:
    return deps.native.context_window or deps.models.largest_window()
