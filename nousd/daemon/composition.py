"""Builds the daemon's dependencies from the settings: log, models, tools, extensions, permissions.

An invalid setting is refused before the log is opened. Locks, sockets and signals belong to ``serve``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nousd.config.runtimes_file import ConfiguredRuntime
from nousd.config.settings import Settings
from nousd.daemon.app import DaemonDeps
from nousd.daemon.clock import SystemClock
from nousd.daemon.mcp.specs import specs_of_settings
from nousd.daemon.policy.permissions import RulePermissions, rules_of_settings
from nousd.daemon.runs.recordings import open_recordings
from nousd.daemon.runs.runtimes import MakeRuntime
from nousd.daemon.workspace.settings import default_prompt, workspaces_of_settings
from nousd.redaction.redactor import Redactor
from nousd.runtime_paths import locations
from nousd.runtimes.agents.interface import Agent
from nousd.runtimes.agents.surroundings import AgentSurroundings
from nousd.runtimes.interface import Runtime
from nousd.runtimes.native.loop import NativeSettings
from nousd.store.sqlite.store import open_store
from nousd.tools.interface import Tool
from nousd.tools.mcp.server import Surroundings

if TYPE_CHECKING:
    from nousd.extensions.loaded import Extensions
    from nousd.providers.models.catalog import Models

_LOG_INS: Final = (
    *(".claude", ".claude.json", ".codex", ".gemini", ".config/opencode", ".local/share/opencode"),
)
"""Paths below the user's home directory where agent programs store credentials."""


@asynccontextmanager
async def open_deps(settings: Settings, redactor: Redactor) -> AsyncIterator[DaemonDeps]:
    """Open the log and build the daemon's dependencies from the settings.

    Raises:
        ConfigError: a setting cannot be used.
        StoreError: the log cannot be opened; nothing was changed.
    """
    from nousd.daemon.policy.sandboxing import build_obeyed_links, detector

    extensions = _extensions(settings, redactor)
    workspaces = workspaces_of_settings(settings, extensions.places)
    permissions = RulePermissions(
        settings.permission_mode,
        rules_of_settings(settings),
        workspaces,
        is_mode_insisted_on=settings.is_mode_insisted_on,
    )
    sandbox = detector(settings, workspaces.default.path_sandbox.hidden)
    native = _native_settings(settings)
    late_tools = _builtin_tools(settings)
    mcp = specs_of_settings(settings.mcp, redactor.add)
    async with (
        _open_models(settings, redactor) as models,
        open_store(locations.database_file(settings.state_dir)) as store,
    ):
        yield DaemonDeps(
            store=store,
            clock=SystemClock(),
            models=models,
            late_tools=late_tools,
            tools=extensions.tools,
            workspaces=workspaces,
            extension_commands=extensions.commands,
            hooks=extensions.hooks,
            native=native,
            permissions=permissions,
            approval_timeout_seconds=settings.approval_timeout_seconds,
            sandbox=sandbox,
            obeyed_links=build_obeyed_links(),
            configured_runtimes=settings.runtimes,
            mcp_servers=mcp.enabled,
            mcp_disabled=mcp.disabled,
            mcp_surroundings=_mcp_surroundings(settings, redactor),
            command_timeout_seconds=settings.command_timeout_seconds,
            stale_seconds=settings.run_stale_seconds,
            delta_retention_days=settings.delta_retention_days,
            line_bytes_max=settings.line_bytes_max,
            make_agents=partial(_agents, settings),
            secrets=redactor,
            spool_folder=settings.state_dir,
        )


def _agents(settings: Settings, surroundings: AgentSurroundings) -> Mapping[str, MakeRuntime]:
    """Return factories of the runtimes that drive agent programs, by name; each imports its runtime."""
    folder = locations.runtimes_folder(settings.state_dir)
    if folder.is_dir():
        from nousd.runtimes.agents.spaces import leftovers, remove_leftovers

        surroundings.nursery.start_soon(remove_leftovers, leftovers(folder))
    return {
        configured.name: partial(_agent, configured, settings, surroundings)
        for configured in settings.runtimes
    }


def _agent(
    configured: ConfiguredRuntime, settings: Settings, surroundings: AgentSurroundings
) -> Runtime:
    from nousd.runtimes.agents.agent_runtime import AgentRuntime
    from nousd.runtimes.agents.guest import Guest
    from nousd.runtimes.agents.spaces import Spaces

    kind = import_module(f"nousd.runtimes.agents.{configured.kind}.agent")
    inherited = _select_environment(kind.INHERITED_VARIABLES, configured)
    spaces = Spaces(
        locations.runtimes_folder(settings.state_dir),
        configured.name,
        configured.isolation,
        kind.OWN_VARIABLES.without_keys(configured.env),
    )
    agent: Agent = kind.AGENT(configured.name, configured.command, inherited)
    covered = [
        settings.state_dir,
        locations.default_config_file().parent,
        *(settings.config_file, settings.socket, settings.events_socket, settings.http_socket),
    ]
    guest = Guest(partial(shutil.which, "bwrap"), tuple(filter(None, covered)), _log_ins())
    return AgentRuntime(
        agent,
        guest,
        surroundings,
        spaces,
        own_tools=configured.runtime_tools,
        mode=configured.mode,
        models=configured.models,
    )


def _log_ins() -> tuple[Path, ...]:
    """Return the known paths where agent programs store the user's credentials."""
    defaults = (Path.home() / name for name in _LOG_INS)
    overrides = (os.environ.get(name) for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"))
    return (*defaults, *(Path(folder) for folder in overrides if folder))


def _select_environment(names: Sequence[str], configured: ConfiguredRuntime) -> Mapping[str, str]:
    """Return the variables of the daemon's environment that an agent program receives. In mode
    ``server_side`` only the configured ones, because the local program just connects to a server.
    """
    own = () if configured.mode == "server_side" else names
    selected = dict.fromkeys((*own, *configured.env))
    return {name: os.environ[name] for name in selected if name in os.environ}


def _extensions(settings: Settings, redactor: Redactor) -> Extensions:
    from nousd.extensions.loader import load_extensions

    return load_extensions(
        settings.extension,
        installed=settings.extensions,
        demo=settings.enable_demo_extension,
        redact=redactor.redact,
        secrets=redactor,
    )


@asynccontextmanager
async def _open_models(settings: Settings, redactor: Redactor) -> AsyncIterator[Models]:
    """Provide the configured models; with ``--record``, their streams are recorded."""
    from nousd.providers.setup.configured import build_configured_models

    with ExitStack() as stack:
        record = None
        if settings.record is not None:
            record = stack.enter_context(open_recordings(settings.record, redactor.redact)).of
        models = build_configured_models(settings, redactor, record=record)
        try:
            yield models
        finally:
            await models.aclose()


def _builtin_tools(settings: Settings) -> Callable[[], tuple[Tool, ...]]:
    """Return a function that imports the built-in tools. Their settings are checked at once.

    Raises:
        ConfigError: ``web_allow`` cannot be used.
    """
    if settings.web_allow:
        from nousd.tools.web.addresses import WebAllow

        WebAllow(settings.web_allow)

    def tools() -> tuple[Tool, ...]:
        from nousd.tools.builtin.catalog import builtin_tools

        return builtin_tools(allow_exec=settings.allow_exec, web_allow=settings.web_allow)

    return tools


def _native_settings(settings: Settings) -> NativeSettings:
    path = settings.system_prompt
    return NativeSettings(
        system=default_prompt(settings),
        system_path=str(path) if isinstance(path, Path) else "",
        model_calls_max=settings.model_calls_max,
        answer_bytes_max=settings.answer_bytes_max,
        run_answer_bytes_max=settings.run_answer_bytes_max,
        compact_at=settings.compact_at,
        keep_recent_tokens=settings.keep_recent_tokens,
    )


def _mcp_surroundings(settings: Settings, redactor: Redactor) -> Surroundings:
    return Surroundings(
        os.environ, settings.workdir, redactor.add, redactor.redact, redactor.redact_output
    )
