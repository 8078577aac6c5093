"""``nousd serve``: locks, store, sockets and signals, in the order that the daemon's guarantees need.

Start: take the locks, open the log and the sockets, so that every refusal comes before any change; then
close the runs and calls that a killed process left open; then serve. Stop: refuse commands, end runs,
remove the sockets, write pending output within a grace period, flush the log, release the locks.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Final, NamedTuple

import trio

from nousd.config.models_file import AUTO
from nousd.config.providers import MOCK
from nousd.config.resolve import with_provider
from nousd.config.settings import Settings
from nousd.daemon import error_boundary
from nousd.daemon.app import open_services, shut_down
from nousd.daemon.commands import import_all
from nousd.daemon.composition import open_deps
from nousd.daemon.ops.logs import configure_logging
from nousd.daemon.ops.process import (
    allow_many_descriptors,
    give_back_large_blocks,
    look_for_cycles_seldom,
    prepare_first_run,
)
from nousd.daemon.ops.systemd import Notifier, take_notifier, take_passed_sockets
from nousd.daemon.services import Services
from nousd.daemon.transport.connection import serve_commands
from nousd.daemon.transport.feed import serve_events
from nousd.daemon.transport.sockets import Listeners, open_listeners, socket_paths
from nousd.errors import CommandRejected
from nousd.net.accept import serve_connections
from nousd.redaction.known import secret_variables
from nousd.redaction.redactor import Redactor
from nousd.runtime_paths import locations
from nousd.runtime_paths.folders import (
    prepare_chosen_folder,
    prepare_own_folder,
    prepare_state_folder,
)
from nousd.runtime_paths.locks import lock_socket, lock_state_folder, socket_lock_file
from nousd.runtime_paths.mending import mend_files
from nousd.tools.environment import INSIDE
from nousd.wire.codec.envelope import encode_error
from nousd.wire.codec.late_decoder import build_all
from nousd.wire.limits import CONNECTIONS_MAX

_GRACE_SECONDS: Final = 1.0
"""Grace period of connections to write pending output after all runs have ended."""

_SWITCH_SECONDS: Final = 0.0005
"""How long a worker thread may hold the interpreter. The default of 5 ms is a visible delay."""

ServeBeside = Callable[[Services], Awaitable[None]]
"""Serves the clients of another server until the daemon closes; returns when their output is written or
a grace period is over."""

Door = Callable[[Callable[[str], None]], AbstractAsyncContextManager[ServeBeside]]
"""Opens another server, such as HTTP, whose clients wait until the daemon is ready. Its argument
registers secrets for redaction. Raises ConfigError."""


class _Entrances(NamedTuple):
    """The listening sockets, the stack that closes them, and a summary of the settings for the log."""

    listeners: Listeners
    bridge: ServeBeside | None
    closing: AsyncExitStack
    summary: str


_log: Final = logging.getLogger(__name__)


def serve(settings: Settings, door: Door | None = None) -> int:
    """Run the daemon until a signal stops it.

    Args:
        door: opens another server in addition to the two sockets.

    Returns:
        0 after an orderly stop.

    Raises:
        ConfigError: the settings cannot be used; one line names the reason.
        StoreError: the log cannot be opened; nothing was changed.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    give_back_large_blocks()
    allow_many_descriptors()
    # Also for programs that extensions start.
    os.environ[INSIDE] = "1"
    trio.run(_serve, settings, door)
    return 0


async def _serve(settings: Settings, door: Door | None) -> None:
    notifier = take_notifier()
    passed_sockets = take_passed_sockets()
    keys = (provider.api_key for provider in settings.providers.values())
    redactor = Redactor(
        (
            *(key.reveal() for key in keys if key is not None),
            *secret_variables(os.environ),
        )
    )
    async with AsyncExitStack() as stack:
        # Opened first, so that a signal that arrives during the start is obeyed after it.
        signals = stack.enter_context(trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT))
        stack.enter_context(
            configure_logging(settings.log_file, verbose=settings.verbose, redactor=redactor)
        )
        for warning in settings.warnings:
            _log.warning("%s", warning)
        paths = socket_paths(settings.socket)
        _prepare_folders(settings)
        if passed_sockets is None:
            stack.enter_context(lock_socket(paths.command))
        stack.enter_context(lock_state_folder(settings.state_dir))
        if settings.provider == AUTO:
            settings = await _with_provider_found(settings)
        deps = await stack.enter_async_context(open_deps(settings, redactor))
        doors = await stack.enter_async_context(AsyncExitStack())
        listeners = await doors.enter_async_context(open_listeners(settings.socket, passed_sockets))
        bridge = None if door is None else await doors.enter_async_context(door(redactor.add))
        services = await stack.enter_async_context(open_services(deps))
        entrances = _Entrances(
            listeners, bridge, doors, _summary(settings, deps.models.default.model)
        )
        look_for_cycles_seldom()
        await _serve_until_signal(services, entrances, signals, notifier)


async def _with_provider_found(settings: Settings) -> Settings:
    from nousd.providers.setup.auto import find_provider

    found = await find_provider(settings.providers)
    level = logging.WARNING if found.provider == MOCK else logging.INFO
    _log.log(level, "provider auto is %s: %s", found.provider, found.reason)
    return with_provider(settings, found.provider, api_base=found.api_base, model=found.model)


def _summary(settings: Settings, model: str) -> str:
    return (
        f"provider {settings.provider}, model {model}, workspace {settings.workdir},"
        f" mode {settings.permission_mode}, sandbox {settings.sandbox},"
        f" exec {'on' if settings.allow_exec else 'off'}"
    )


def _prepare_folders(settings: Settings) -> None:
    """Make the daemon's own directories and files private; only check directories named by the user."""
    runtime_dir = settings.socket.parent
    if settings.socket == locations.default_socket():
        prepare_own_folder(runtime_dir, "runtime folder")
    else:
        lock_file = socket_lock_file(settings.socket)
        prepare_chosen_folder(runtime_dir, "socket's folder", sticky_ok=True, lock_file=lock_file)
    prepare_state_folder(settings.state_dir)
    mend_files(locations.state_files(settings.state_dir))


async def _serve_until_signal(
    services: Services, entrances: _Entrances, signals: AsyncIterator[int], notifier: Notifier
) -> None:
    async with trio.open_nursery() as connections:
        listeners, bridge = entrances.listeners, entrances.bridge
        connections.start_soon(_accept, listeners.command, partial(serve_commands, services))
        connections.start_soon(_accept, listeners.events, partial(serve_events, services))
        if bridge is not None:
            # An error in that server ends the connections of its clients and affects no others.
            serve_bridge = partial(bridge, services)
            connections.start_soon(
                error_boundary.run_contained, serve_bridge, "the way in beside the sockets"
            )
        first = partial(prepare_first_run, services.closing, load_late_modules)
        connections.start_soon(
            error_boundary.run_contained, first, "the preparation of the first run"
        )
        notifier.ready(entrances.summary)
        _log.info("listening on %s", listeners.command.socket.getsockname())
        _log.info("%s", entrances.summary)
        number = await anext(signals)
        notifier.stopping()
        _log.info("stopping: %s", signal.Signals(number).name)
        await shut_down(services)
        await entrances.closing.aclose()
        connections.cancel_scope.deadline = trio.current_time() + _GRACE_SECONDS
    _log.info("stopped")


def load_late_modules() -> None:
    """Import the modules that the first response does not need. Later no command, run or tool waits for
    imports, and a daemon whose files are replaced continues with the code that it started with.
    """
    import nousd.daemon.runs.run_hooks
    import nousd.daemon.runs.run_host
    import nousd.daemon.runs.run_loop
    from nousd.daemon.policy.sandboxing import compile_obeyed_names

    import_all()
    build_all()
    compile_obeyed_names()
    import nousd.tools.builtin.catalog  # noqa: F401


async def _accept(
    listener: trio.SocketListener, handler: Callable[[trio.SocketStream], Awaitable[None]]
) -> None:
    async def serve_connection(stream: trio.SocketStream) -> None:
        await error_boundary.run_contained(lambda: handler(stream), "a connection")

    await serve_connections(
        listener,
        serve_connection,
        limiter=trio.CapacityLimiter(CONNECTIONS_MAX),
        refusal=encode_error("", CommandRejected("too_many_connections")),
    )
