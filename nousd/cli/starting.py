"""Starts the user's daemon in the background for a client that finds no daemon.

The daemon gets its provider, keys and modes only from the settings file: variables of the first client's
shell must not decide for all later clients. The daemon is independent of terminals and folders, and is
stopped with ``nousctl stop``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from nousd.cli import user_service
from nousd.cli.output import say
from nousd.client.blocking import Connection
from nousd.errors import (
    ConfigError,
    ConnectionLost,
    DaemonNotStarted,
    DaemonUnreachable,
    ServiceFailed,
)
from nousd.runtime_paths import locations
from nousd.runtime_paths.folders import prepare_state_folder
from nousd.runtime_paths.locks import holder_of, socket_lock_file

_START_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 0.02

_PREFIX: Final = "NOUSD_"
_KEY_SUFFIX: Final = "_API_KEY"

_INSIDE: Final = "NOUSD_INSIDE"
"""Set by a daemon in the environment of all processes that it starts."""


def start_daemon(socket_path: Path, *, is_requested: bool) -> int:
    """Start the daemon, report it on standard error, and return its process id when it answers.

    Args:
        socket_path: the socket on which the client found no daemon.
        is_requested: whether the user explicitly asked for a start.

    Raises:
        DaemonNotStarted: the start is not allowed here, or failed.
    """
    service = user_service.state_of_installed()
    reason = _why_not(socket_path, is_requested=is_requested or service == "activating")
    if reason is not None:
        raise DaemonNotStarted(f"no daemon listens on {socket_path}; {reason}")
    if service is not None:
        return _start_service(socket_path)
    environ = {name: value for name, value in os.environ.items() if not _is_of_settings(name)}
    try:
        log_flags, log = _log(environ)
    except ConfigError as error:
        raise DaemonNotStarted(f"no daemon can start with the settings: {error}") from None
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "nousd", "serve", *log_flags],
            env=environ,
            cwd=Path.home(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
            start_new_session=True,  # Ctrl-C and the terminal's hangup must only reach the client
        )
        pid = wait_until_ready(process, socket_path, output)
    if pid != process.pid:
        # Another client's daemon was faster. End this one, which would serve once that one stops.
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_START_SECONDS)
        return pid
    say(f"started the daemon, which goes on running; its log: {log}; nousctl stop ends it")
    _tell_unused()
    return pid


def _start_service(socket_path: Path) -> int:
    """Start the daemon with the user's installed unit, and return its process id."""
    try:
        user_service.start()
    except ServiceFailed as error:
        raise DaemonNotStarted(str(error)) from None
    with Connection(socket_path) as daemon:
        pid = daemon.peer_pid()
    say(f"started {user_service.NAME}; its log: {user_service.LOG}; nousctl stop ends it")
    _tell_unused()
    return pid


def _tell_unused() -> None:
    """Report the settings of this shell that the daemon does not use."""
    if unused := sorted(filter(_is_chosen, filter(_is_of_settings, os.environ))):
        say(f"it takes settings from its file, and not from this shell: {', '.join(unused)}")


def wait_until_ready(
    process: subprocess.Popen[bytes], socket_path: Path, output: IO[bytes], since: int = 0
) -> int:
    """Wait until a daemon answers on the socket, and return its process id.

    Args:
        process: the process that is to open the socket; another one may be faster.
        output: receives the reason of a failed start, from the byte ``since`` on.

    Raises:
        DaemonNotStarted: no daemon answers; the message contains the output of the process.
    """
    deadline = time.monotonic() + _START_SECONDS
    while True:
        # If another daemon was faster, it holds the lock and is about to listen.
        has_failed = process.poll() is not None and _holder(socket_path) is None
        try:
            with Connection(socket_path) as daemon:
                daemon.request("ping", {})
                return daemon.peer_pid()
        except (DaemonUnreachable, ConnectionLost):
            # The connection is lost if the daemon ends after opening its sockets, because of another
            # address in use.
            if has_failed or time.monotonic() > deadline:
                output.seek(since)
                message = _without_log(output.read().decode(errors="replace").strip())
                raise DaemonNotStarted(f"the daemon did not start: {message}") from None
        time.sleep(_RETRY_SECONDS)


def _without_log(output: str) -> str:
    """Return a daemon's output without the JSON lines of its log, or all of it if it has only those."""
    lines = output.splitlines()
    return "\n".join(line for line in lines if not line.startswith('{"ts":')) or output


def _holder(socket_path: Path) -> str | None:
    try:
        return holder_of(socket_lock_file(socket_path))
    except ConfigError:
        return None


def is_usual(socket_path: Path) -> bool:
    """Return whether a socket is that of the user's daemon, as defined by the settings file."""
    from nousd.config.resolve import resolve_socket

    environ = {name: value for name, value in os.environ.items() if not _is_of_settings(name)}
    return socket_path.resolve() == resolve_socket(environ).resolve()


def _why_not(socket_path: Path, *, is_requested: bool) -> str | None:
    if os.environ.get(_INSIDE):
        return "a tool, a hook or an agent of one starts no other"
    if not is_requested and not (sys.stdin.isatty() or sys.stdout.isatty()):
        return "start one with nousd serve, or with nousctl --start"
    if not is_usual(socket_path):
        return f"start one with nousd serve --socket {socket_path}"
    return None


def _is_of_settings(name: str) -> bool:
    return name.startswith(_PREFIX) or name.endswith(_KEY_SUFFIX)


def _is_chosen(name: str) -> bool:
    """Return whether a daemon started in this shell would have used a variable."""
    from nousd.config.providers import KEY_VARIABLES
    from nousd.config.settings import SETTINGS, variable_of

    used = {variable_of(setting) for setting in SETTINGS} | {"NOUSD_CONFIG"}
    used.update(*KEY_VARIABLES.values())
    is_own_key = name.startswith(_PREFIX) and name.endswith(_KEY_SUFFIX)
    return bool(os.environ[name]) and (name in used or is_own_key)


def _log(environ: Mapping[str, str]) -> tuple[list[str], Path]:
    """Return the flags that make a daemon write a log file, and the file's path."""
    from nousd.config.resolve import resolve

    settings = resolve({}, environ, asks_models=False).settings
    if settings.log_file is not None:
        return [], settings.log_file
    # The daemon does the same, but only after it has opened its log.
    prepare_state_folder(settings.state_dir)
    file = locations.daemon_log(settings.state_dir)
    return ["--log-file", str(file)], file
