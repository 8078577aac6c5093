"""``nousd serve``: locks, store, sockets and signals around the core, in the order that keeps promises.

Start: locks first, then the log and the sockets, so that whatever cannot be used is said before
anything is changed; then the closing of what a killed process left open; only then is anyone served.
Stop: no more commands, runs ended, sockets removed, what clients are owed written within a grace, log
flushed, locks released last.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio

from nousd.config.models_file import AUTO
from nousd.config.providers import MOCK
from nousd.config.resolve import with_provider
from nousd.config.settings import Settings
from nousd.daemon import agents, boundary
from nousd.daemon.accept import serve_connections
from nousd.daemon.app import Parts, open_core, shut_down
from nousd.daemon.clock import SystemClock
from nousd.daemon.connection import serve_commands
from nousd.daemon.core import Core
from nousd.daemon.feed import serve_events
from nousd.daemon.instructions import Places, project_root, reader
from nousd.daemon.logs import configure_logging
from nousd.daemon.mcp_specs import specs_of_settings
from nousd.daemon.memory import give_back_large_blocks, look_for_cycles_seldom
from nousd.daemon.permissions import RulePermissions, rules_of_settings
from nousd.daemon.project import Project
from nousd.daemon.project import reader as settings_reader
from nousd.daemon.recordings import open_recordings
from nousd.daemon.sockets import Listeners, open_listeners, socket_paths
from nousd.daemon.systemd import (
    Notifier,
    take_notifier,
    take_passed_sockets,
)
from nousd.errors import CommandRejected, ConfigError
from nousd.places import locations
from nousd.places.folders import prepare_chosen_folder, prepare_own_folder
from nousd.places.locks import lock_socket, lock_state_folder, socket_lock_file
from nousd.redaction import Redactor, secret_variables
from nousd.runtimes.native.loop import NativeSettings
from nousd.store.sqlite import open_store
from nousd.tools.mcp.server import Surroundings
from nousd.wire.codec import encode_error
from nousd.wire.limits import CONNECTIONS_MAX

_GRACE_SECONDS: Final = 1.0
"""How long connections may take to write what they owe once all runs have ended."""

_SWITCH_SECONDS: Final = 0.0005
"""How long a worker thread may hold the interpreter: the default of 5 ms is felt as delay."""

_log: Final = logging.getLogger(__name__)

_SYSTEM_PROMPT: Final = (
    "You are an agent that helps with work on the user's computer. Use the tools to look before you "
    "answer, make the changes that were asked for, and say briefly what you did. The working folder "
    "is {workdir}; relative paths start there."
)
"""Used where ``--system-prompt`` names no file."""


def serve(settings: Settings) -> int:
    """Runs the daemon until it is told to stop.

    Returns:
        0 after an orderly stop.

    Raises:
        ConfigError: it cannot start with these settings; one line that names the reason.
        StoreError: the log cannot be opened; nothing was changed.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    give_back_large_blocks()
    look_for_cycles_seldom()
    trio.run(_serve, settings)
    return 0


async def _serve(settings: Settings) -> None:
    notifier = take_notifier()
    passed = take_passed_sockets()
    keys = (provider.api_key for provider in settings.providers.values())
    redactor = Redactor(
        (
            *(key.reveal() for key in keys if key is not None),
            *secret_variables(os.environ),
        )
    )
    async with AsyncExitStack() as stack:
        # From the first moment on: a signal that comes while we start is obeyed once we have.
        signals = stack.enter_context(trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT))
        stack.enter_context(
            configure_logging(settings.log_file, verbose=settings.verbose, redactor=redactor)
        )
        if settings.provider == AUTO:
            settings = await _with_provider_found(settings)
        paths = socket_paths(settings.socket)
        _prepare_folders(settings)
        if passed is None:
            stack.enter_context(lock_socket(paths.command))
        stack.enter_context(lock_state_folder(settings.state_dir))
        parts = await stack.enter_async_context(_opened_parts(settings, redactor))
        doors = await stack.enter_async_context(AsyncExitStack())
        listeners = await doors.enter_async_context(open_listeners(settings.socket, passed))
        core = await stack.enter_async_context(open_core(parts))
        await _serve_until_told_to_stop(core, listeners, doors, signals, notifier)


async def _with_provider_found(settings: Settings) -> Settings:
    from nousd.providers.auto import find_provider

    found = await find_provider(settings.providers)
    level = logging.WARNING if found.provider == MOCK else logging.INFO
    _log.log(level, "provider auto is %s: %s", found.provider, found.reason)
    return with_provider(settings, found.provider, api_base=found.api_base, model=found.model)


def _prepare_folders(settings: Settings) -> None:
    """A place of our own is made private; one that the user named is only looked at."""
    runtime_dir = settings.socket.parent
    if settings.socket == locations.default_socket():
        prepare_own_folder(runtime_dir, "runtime folder")
    else:
        prepare_chosen_folder(runtime_dir, "socket's folder", sticky_ok=True)
    if settings.state_dir == locations.default_state_dir():
        prepare_own_folder(settings.state_dir, "state folder")
    else:
        prepare_chosen_folder(settings.state_dir, "state folder")


@asynccontextmanager
async def _opened_parts(settings: Settings, redactor: Redactor) -> AsyncIterator[Parts]:
    """Opens the log and builds everything that the settings name."""
    from nousd.daemon.sandboxing import detector
    from nousd.extensions.loader import load_extensions
    from nousd.providers.configured import configured_models
    from nousd.tools.builtins import builtin_tools
    from nousd.tools.confine import Confinement

    extensions = load_extensions(
        settings.extension,
        installed=settings.extensions,
        demo=settings.enable_demo_extension,
        redact=redactor.redact,
    )
    confinement = Confinement(
        settings.workdir,
        (*_out_of_reach(settings), *extensions.places),
        hard_links=settings.hard_links,
    )
    builtins = builtin_tools(allow_exec=settings.allow_exec, web_allow=settings.web_allow)
    rules = rules_of_settings(settings)
    project = _project(settings)
    permissions = RulePermissions(
        settings.permission_mode,
        rules,
        project,
        is_mode_insisted_on=settings.is_mode_insisted_on,
    )
    async with AsyncExitStack() as stack:
        record = None
        if settings.record is not None:
            record = stack.enter_context(open_recordings(settings.record, redactor.redact)).of
        models = configured_models(settings, redactor, record=record)
        store = await stack.enter_async_context(
            open_store(locations.database_file(settings.state_dir))
        )
        mcp = specs_of_settings(settings.mcp, redactor.add)
        try:
            yield Parts(
                store=store,
                clock=SystemClock(),
                models=models,
                tools=(*builtins, *extensions.tools),
                confinement=confinement,
                extension_commands=extensions.commands,
                hooks=extensions.hooks,
                native=_native_settings(settings),
                read_instructions=reader(_instruction_places(settings)),
                read_agents=agents.reader(_agent_places(settings)),
                permissions=permissions,
                project=project,
                approval_timeout_seconds=settings.approval_timeout_ms / 1000,
                sandbox=detector(settings, confinement.hidden),
                mcp_servers=mcp.enabled,
                mcp_disabled=mcp.disabled,
                mcp_surroundings=Surroundings(
                    os.environ,
                    settings.workdir,
                    redactor.add,
                    redactor.redact,
                    redactor.redact_text,
                ),
                command_timeout=settings.command_timeout,
                stale_seconds=settings.run_stale_ms / 1000,
                delta_retention_days=settings.delta_retention_days,
                line_bytes_max=settings.line_bytes_max,
                secrets=redactor,
                spool_folder=settings.state_dir,
            )
        finally:
            await models.aclose()


def _out_of_reach(settings: Settings) -> tuple[Path, ...]:
    """Returns what no file tool may see or make, also where it lies inside the workdir.

    A lock file that is replaced guards nothing. A settings file counts although it is not there: one
    that a model wrote would be obeyed by the next start. So would the user's own instructions, a system
    prompt, an extension, and a program that prints a key.
    """
    places = (
        settings.state_dir,
        settings.socket,
        settings.events_socket,
        socket_lock_file(settings.socket),
        settings.config_file,
        locations.default_config_file(),
        locations.user_instructions_file(),
        locations.user_agents_folder(),
        settings.log_file,
        settings.record,
        settings.system_prompt if isinstance(settings.system_prompt, Path) else None,
        *settings.extension,
        *settings.key_programs,
    )
    return tuple(path for path in places if path is not None)


def _native_settings(settings: Settings) -> NativeSettings:
    path = settings.system_prompt
    return NativeSettings(
        system=_system_prompt(path, settings.workdir),
        system_path=str(path) if isinstance(path, Path) else "",
        model_calls_max=settings.model_calls_max,
        compact_at=settings.compact_at,
        keep_recent_tokens=settings.keep_recent_tokens,
    )


def _instruction_places(settings: Settings) -> Places:
    user_file = locations.user_instructions_file()
    return Places(
        workdir=settings.workdir,
        user_file=user_file if settings.user_instructions else None,
        project=settings.project_instructions,
        hidden=tuple(path for path in _out_of_reach(settings) if path != user_file),
    )


def _agent_places(settings: Settings) -> agents.AgentPlaces:
    root = project_root(settings.workdir) if settings.project_instructions else None
    return agents.AgentPlaces(locations.user_agents_folder(), root, _out_of_reach(settings))


def _project(settings: Settings) -> Project:
    root = project_root(settings.workdir)
    return Project(root, settings_reader(root, _out_of_reach(settings)))


def _system_prompt(path: Path | str | None, workdir: Path) -> str:
    if path is None:
        return _SYSTEM_PROMPT.format(workdir=workdir)
    if not isinstance(path, Path):
        return ""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"system_prompt: {path} cannot be read: {error}") from error


async def _serve_until_told_to_stop(
    core: Core,
    listeners: Listeners,
    doors: AsyncExitStack,
    signals: AsyncIterator[int],
    notifier: Notifier,
) -> None:
    async with trio.open_nursery() as connections:
        connections.start_soon(_accept, listeners.command, partial(serve_commands, core))
        connections.start_soon(_accept, listeners.events, partial(serve_events, core))
        notifier.ready(f"pid {os.getpid()}")
        _log.info("listening on %s", listeners.command.socket.getsockname())
        told = await anext(signals)
        notifier.stopping()
        _log.info("stopping: %s", signal.Signals(told).name)
        await shut_down(core)
        await doors.aclose()
        connections.cancel_scope.deadline = trio.current_time() + _GRACE_SECONDS
    _log.info("stopped")


async def _accept(
    listener: trio.SocketListener, handler: Callable[[trio.SocketStream], Awaitable[None]]
) -> None:
    async def served(stream: trio.SocketStream) -> None:
        await boundary.contained(lambda: handler(stream), "a connection")

    await serve_connections(
        listener,
        served,
        connections_max=CONNECTIONS_MAX,
        refusal=encode_error("", CommandRejected("too_many_connections")),
    )
