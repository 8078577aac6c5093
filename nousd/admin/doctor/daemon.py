"""Checks of the daemon and its log: the socket, the locks and the database."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import apsw

from nousd import __version__
from nousd.admin.doctor.examination import Check, World
from nousd.admin.reading.log_files import open_log
from nousd.client.blocking import Connection
from nousd.config.settings import Settings
from nousd.errors import ClientError, ConfigError, DaemonUnreachable, StoreError
from nousd.runtime_paths import locations
from nousd.runtime_paths.locks import holder_of, socket_lock_file, state_lock_file
from nousd.store.sqlite.database import inspect
from nousd.wire.commands import GetCapabilities, GetState, ListTools

ANSWER_SECONDS: Final = 5.0
"""Maximum wait for the answer to each request."""

QUICK_CHECK_SECONDS: Final = 10.0
"""Time limit of SQLite's quick check. ``nousd check`` has no limit."""

_STEPS_BETWEEN_LOOKS: Final = 10_000
"""Instructions of SQLite's virtual machine between two checks of the clock, about a millisecond."""


def socket(world: World) -> Iterator[Check]:
    """Check that a daemon answers on the socket, and show the settings it runs with."""
    path = world.settings.socket
    began = time.monotonic()
    try:
        with Connection(path, timeout_seconds=ANSWER_SECONDS) as daemon:
            daemon.request("ping", {})
            took = time.monotonic() - began
            yield Check("daemon", "ok", f"answers on {path} within {took * 1000:.1f} ms")
            yield _runs_with(daemon, world.settings)
    except DaemonUnreachable:
        if path.is_socket():
            found = f"no process listens on {path}, which was left behind"
            yield Check("daemon", "warning", found, "nousd serve takes it over")
        else:
            yield Check("daemon", "skipped", "none is running; nousd serve starts one")
    except ClientError as error:
        found = f"does not answer on {path}: {error}"
        yield Check("daemon", "failed", found, "look into its log; restart it")


def _runs_with(daemon: Connection, settings: Settings) -> Check:
    """Return the main settings of the running daemon, and those that a new daemon would not share."""
    try:
        capabilities = daemon.ask(GetCapabilities())
        mode = daemon.ask(GetState()).permission_mode
        tools = daemon.ask(ListTools()).tools
    except ClientError as error:
        return Check("runs with", "warning", f"does not say: {error}", "restart it")
    runs = {
        "version": capabilities.version,
        "provider": capabilities.provider,
        "workspace": capabilities.workdir,
        "exec": _on_or_off(any(tool.name == _EXEC_TOOL for tool in tools)),
    }
    starts = {
        "version": __version__,
        "provider": settings.provider,
        "workspace": str(settings.workdir),
        "exec": _on_or_off(settings.allow_exec),
    }
    found = ", ".join(f"{name} {value}" for name, value in runs.items())
    others = ", ".join(f"{name} {value}" for name, value in starts.items() if value != runs[name])
    advice = f"one that starts now would have {others}" if others else ""
    return Check("runs with", "ok", f"{found}, model {capabilities.model}, mode {mode}", advice)


_EXEC_TOOL: Final = "bash"


def _on_or_off(value: bool) -> str:  # noqa: FBT001
    return "on" if value else "off"


def locks(world: World) -> Iterator[Check]:
    """Check which processes hold the locks of the state folder and the socket."""
    for name, lock_file in (
        ("state lock", state_lock_file(world.settings.state_dir)),
        ("socket lock", socket_lock_file(world.settings.socket)),
    ):
        try:
            holder = holder_of(lock_file)
        except ConfigError as error:
            yield Check(name, "failed", str(error), "give yourself the right to read it")
            continue
        if holder is None:
            yield Check(name, "ok", "is free")
        elif name == "state lock" and not world.settings.socket.is_socket():
            found = f"is held by {holder}, which does not listen on {world.settings.socket}"
            yield Check(name, "warning", found, "name its socket with --socket, or stop it")
        else:
            yield Check(name, "ok", f"is held by {holder}")


def database(world: World) -> Iterator[Check]:
    """Check the database's owner, version and integrity."""
    path = locations.database_file(world.settings.state_dir)
    if not path.exists():
        yield Check("database", "skipped", "does not exist yet; the first start creates it")
        return
    try:
        inspect(path)
        with open_log(path) as connection:
            version = connection.pragma("user_version")
            yield _quick_check(connection, path, f"schema version {version}")
    except StoreError as error:
        yield Check("database", "failed", str(error), "see nousd check; the file was left alone")
    except apsw.Error as error:
        yield Check("database", "failed", f"{path} cannot be read: {error}", _SALVAGE)


_SALVAGE: Final = "nousd check says more, nousd check --salvage OUT saves what can be read"


def _quick_check(connection: apsw.Connection, path: Path, version: str) -> Check:
    until = time.monotonic() + QUICK_CHECK_SECONDS
    connection.set_progress_handler(lambda: time.monotonic() >= until, _STEPS_BETWEEN_LOOKS)
    try:
        [(complaint,)] = connection.execute("PRAGMA quick_check(1)")
    except apsw.InterruptError:
        found = f"{version}, too big to be looked at in {QUICK_CHECK_SECONDS:g} seconds"
        return Check("database", "warning", found, "nousd check looks at all of it")
    finally:
        connection.set_progress_handler(None)
    if complaint != "ok":
        return Check(
            "database", "failed", f"{path} is damaged: {' '.join(complaint.split())}", _SALVAGE
        )
    return Check("database", "ok", f"{version}, no fault found by a quick check")
