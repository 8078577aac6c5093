"""The commands that choose a session's runtime, and that list runtimes."""

from __future__ import annotations

import shutil

import msgspec
import trio
from msgspec import UNSET

from nousd.config.runtimes_file import ConfiguredRuntime
from nousd.daemon.commands.session_settings import change_settings
from nousd.daemon.replies import Deferred, Reply
from nousd.daemon.services import Services
from nousd.machine.session import decisions
from nousd.runtimes.agents.versions import TESTED_VERSIONS
from nousd.runtimes.interface import Runtime
from nousd.wire import commands, responses
from nousd.wire.codec.unset import or_unset
from nousd.wire.responses import Accepted
from nousd.wire.responses.runtimes import RuntimeSummary


async def set_runtime(services: Services, command: commands.SetRuntime) -> Reply:
    """Set the runtime of the session's next runs."""
    live = await services.sessions.require(command.session_id)
    if command.runtime is not None:
        services.run_services.runtimes.get(command.runtime)
    decisions.require_idle(live.state)
    # Another runtime has other models.
    reset = {} if command.runtime == live.state.runtime else {"runtime_model": None}
    handle = change_settings(live, runtime=command.runtime, **reset)
    answer = Accepted(
        command="set_runtime", session_id=live.session_id, runtime=or_unset(command.runtime)
    )
    return Deferred(handle, answer)


async def get_runtimes(services: Services, _command: commands.GetRuntimes) -> Reply:
    """List the runtimes, with the paths of their programs where these are found."""
    runtimes = services.run_services.runtimes
    summaries = []
    for name in runtimes.names:
        runtime, configured = runtimes.get(name), runtimes.configured.get(name)
        summary = _summary(runtime, configured, is_default=name == runtimes.default)
        summaries.append(summary if configured is None else await _add_program_path(summary))
    return responses.Runtimes(runtimes=tuple(summaries))


async def get_auth_status(services: Services, command: commands.GetAuthStatus) -> Reply:
    """Report whether a runtime's program is logged in for a namespace."""
    runtime = services.run_services.runtimes.get(command.runtime)
    return responses.AuthStatus(
        runtime=runtime.name,
        namespace=command.namespace,
        auth_model=runtime.capabilities.auth_model,
        auth=await trio.to_thread.run_sync(runtime.auth_facts, command.namespace),
    )


def _summary(
    runtime: Runtime, configured: ConfiguredRuntime | None, *, is_default: bool
) -> RuntimeSummary:
    summary = RuntimeSummary(
        name=runtime.name,
        is_default=is_default,
        capabilities=runtime.capabilities,
        version=runtime.version,
        models=runtime.models or UNSET,
    )
    if configured is None:
        return summary
    return msgspec.structs.replace(
        summary,
        kind=configured.kind,
        tested_versions=TESTED_VERSIONS.get(configured.kind, UNSET),
        command=configured.command,
        runtime_tools=configured.runtime_tools,
        isolation=configured.isolation,
        mode=configured.mode,
    )


async def _add_program_path(summary: RuntimeSummary) -> RuntimeSummary:
    """Return a summary with the path of its program, if the program is found."""
    assert summary.command is not UNSET
    path = await trio.to_thread.run_sync(shutil.which, summary.command[0])
    return msgspec.structs.replace(summary, program=or_unset(path))
