"""Finds the daemon's process behind a socket, and shows, stops and restarts it.

There is no pid file. The kernel reports which process listens on the socket. That process is opened as a
pidfd, and the daemon must answer once more afterwards; so the pidfd is the daemon's, and not that of a
later process with the same pid.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from nousd.cli import user_service
from nousd.cli.client_options import Options
from nousd.cli.output import DONE, FAILED, sanitize_output, say
from nousd.cli.render.people import duration, local_time
from nousd.cli.session_choice import session_here
from nousd.cli.starting import is_usual, start_daemon, wait_until_ready
from nousd.client.blocking import Connection
from nousd.errors import ClientError, DaemonUnreachable
from nousd.runtime_paths import locations

_STOP_SECONDS: Final = 35.0
"""Maximum wait for the daemon's end, longer than the time that the daemon gives its runs."""


class DaemonProcess(NamedTuple):
    """A running daemon.

    Args:
        handle: a pidfd.
        argv: the command line.
    """

    pid: int
    handle: int
    argv: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """The process's directory in ``/proc``."""
        return Path("/proc", str(self.pid))

    @property
    def unit(self) -> str | None:
        """The systemd user unit of the process, if it has one."""
        name = self._read("cgroup").strip().rpartition("/")[2]
        return name if name.startswith("nousd") and name.endswith(".service") else None

    @property
    def is_in_foreground(self) -> bool:
        """Whether the process is in the foreground of a terminal."""
        # Fields after the name: state, parent, group, session, terminal, its foreground group.
        fields = self._read("stat").rpartition(")")[2].split()
        return len(fields) > 5 and fields[4] != "0" and fields[2] == fields[5]

    @property
    def environ(self) -> dict[str, str]:
        """The environment with which the process was started."""
        words = self._read("environ").split("\0")
        return dict(word.split("=", 1) for word in words if "=" in word)

    @property
    def log_output(self) -> Path | None:
        """The file that receives its standard error, if that is a file with a name."""
        target = self.folder / "fd" / "2"
        try:
            path = target.readlink()
            # The name may now belong to another file, or be the kernel's text for a deleted one.
            return path if target.is_file() and path.samefile(target) else None
        except OSError:
            return None

    def _read(self, name: str) -> str:
        try:
            return (self.folder / name).read_text(errors="surrogateescape")
        except OSError:
            return ""


@contextmanager
def daemon_process(daemon: Connection) -> Iterator[DaemonProcess | None]:
    """Provide the process behind a connection; None if another process created its socket, or if the
    process is not visible from here.
    """
    pid = daemon.peer_pid()
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        yield None
        return
    try:
        daemon.request("ping", {})
        words = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
        argv = tuple(os.fsdecode(word) for word in words if word)
        is_daemon = "serve" in argv and any("nousd" in word for word in argv)
        yield DaemonProcess(pid, handle, argv) if is_daemon else None
    finally:
        os.close(handle)


# --- status ----------------------------------------------------------------------------------


def status(options: Options, _values: dict[str, Any]) -> int:
    """Show the daemon in a few lines."""
    with options.connect() as daemon:
        metrics = daemon.request("get_metrics", {}).payload
        capabilities = daemon.request("get_capabilities", {}).payload
        count = daemon.request("list_sessions", {"limit": 1}).payload["count"]
        session_id = session_here(daemon)
        with daemon_process(daemon) as process:
            pid = None if process is None else process.pid
    facts = {
        "version": metrics["version"],
        "pid": pid,
        "started_at": metrics["started_at"],
        "uptime_seconds": metrics["uptime_seconds"],
        "provider": capabilities["provider"],
        "model": capabilities["model"],
        "sessions": count,
        "runs": metrics["runs"],
        "waiting_permissions": metrics["waiting_permissions"],
        "waiting_questions": metrics["waiting_questions"],
        "session_here": session_id,
        "socket": str(options.socket_path),
    }
    if options.json:
        print(json.dumps(facts, ensure_ascii=False))
    else:
        print(*map(sanitize_output, _status_lines(facts)), sep="\n")
    return DONE


def _status_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    pid = "" if facts["pid"] is None else f", pid {facts['pid']}"
    uptime = duration(facts["uptime_seconds"])
    yield f"nousd {facts['version']}{pid}, up {uptime}, since {local_time(facts['started_at'])}"
    yield f"model     {facts['provider']} {facts['model']}"
    yield f"sessions  {facts['sessions']:,}, {facts['runs']:,} with a run"
    yield (
        f"waiting   {facts['waiting_permissions']:,} permissions,"
        f" {facts['waiting_questions']:,} questions"
    )
    yield f"here      {facts['session_here'] or 'no session in this folder'}"
    yield f"socket    {facts['socket']}"


# --- stop and restart ------------------------------------------------------------------------


def stop(options: Options, _values: dict[str, Any]) -> int:
    """Stop the daemon and wait for its end."""
    with options.connect() as daemon, daemon_process(daemon) as process:
        if process is None:
            raise ClientError(f"{_NOT_OURS} {_HOW_TO_DO_IT.format(verb='stop')}")
        _end(process, options)
    _tell(options, "stopped", process.pid)
    return DONE


def _tell(options: Options, action: str, pid: int) -> None:
    text = json.dumps({action: pid}) if options.json else f"{action} nousd, pid {pid}"
    print(text, flush=True)


_NOT_OURS: Final = (
    "another process made the daemon's socket, such as systemd or ssh, or the daemon runs in a"
    " container:"
)
_HOW_TO_DO_IT: Final = (
    "{verb} it with systemctl --user {verb} nousd.socket nousd.service, or with nousctl {verb} on the"
    " machine where it runs"
)


def _end(process: DaemonProcess, options: Options) -> None:
    """Ask the daemon to stop, and wait for its end."""
    with suppress(ProcessLookupError):  # it has already ended
        signal.pidfd_send_signal(process.handle, signal.SIGTERM)
    poll = select.poll()
    poll.register(process.handle, select.POLLIN)
    seconds = options.timeout_seconds or _STOP_SECONDS
    if not poll.poll(seconds * 1000):
        raise ClientError(
            f"pid {process.pid} was asked to stop and has not ended after {duration(seconds)};"
            " look at: nousctl logs"
        )


def restart(options: Options, _values: dict[str, Any]) -> int:
    """Stop the daemon, start it again in the same way, and wait until it answers. Start the user's
    daemon if none runs.
    """
    try:
        options.connect().close()
    except DaemonUnreachable:
        pid = start_daemon(options.socket_path, is_requested=True)
        _tell(options, "started", pid)
        return DONE
    with options.connect() as daemon, daemon_process(daemon) as process:
        if process is None and _is_of_service(options):
            return _restart_unit(user_service.NAME)
        if process is None:
            raise ClientError(f"{_NOT_OURS} {_HOW_TO_DO_IT.format(verb='restart')}")
        _require_settings(process)
        if process.unit is not None:
            return _restart_unit(process.unit)
        if process.is_in_foreground:
            raise ClientError(
                f"pid {process.pid} runs in the foreground of a terminal: end it there with Ctrl-C and"
                " start it again; only a daemon in the background or of systemd is restarted"
            )
        start, log = _build_restart_arguments(process), process.log_output
        _end(process, options)
    say(f"stopped nousd, pid {process.pid}")
    with tempfile.TemporaryFile() if log is None else log.open("a+b") as output:
        log_size = output.seek(0, os.SEEK_END)
        started = subprocess.Popen(**start, stdout=output, stderr=output)
        pid = wait_until_ready(started, options.socket_path, output, log_size)
    _tell(options, "started", pid)
    # The daemon outlives this process, which must not wait for its end.
    started.returncode = 0
    return DONE


def _require_settings(process: DaemonProcess) -> None:
    """Raise ClientError if the daemon could not start with its flags and the current settings file."""
    start = _build_restart_arguments(process)
    # This command reads the settings as serve does, and only prints them.
    at = process.argv.index("serve")
    start["args"] = [*process.argv[:at], "config", *process.argv[at + 1 :]]
    done = subprocess.run(**start, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        message = done.stderr.strip().rpartition("\n")[2]
        raise ClientError(
            f"no daemon can start with the settings, so pid {process.pid} goes on: {message}"
        )


def _is_of_service(options: Options) -> bool:
    """Return whether the daemon belongs to the installed service, whose socket systemd created."""
    return user_service.state_of_installed() == "active" and is_usual(options.socket_path)


def _restart_unit(unit: str) -> int:
    done = subprocess.run(["systemctl", "--user", "restart", unit], check=False)
    if done.returncode == 0:
        print(f"restarted {unit}")
    return DONE if done.returncode == 0 else FAILED


def _build_restart_arguments(process: DaemonProcess) -> dict[str, Any]:
    """Return the arguments of ``Popen`` that start the daemon with the same flags, folder and
    environment. It reads the settings file again.
    """
    environ = process.environ
    if not environ:
        raise ClientError(
            f"the environment of pid {process.pid} cannot be read: restart it by hand"
        )
    return {
        "args": process.argv,
        "cwd": (process.folder / "cwd").readlink(),
        "env": environ,
        "stdin": subprocess.DEVNULL,
        "start_new_session": True,
    }


# --- logs ------------------------------------------------------------------------------------


def logs(options: Options, values: dict[str, Any]) -> int:
    """Print the end of the daemon's log."""
    from nousd.cli.nousctl import daemon_log

    path = _log_of_daemon(options)
    lines = values.get("lines", daemon_log.LINES)
    daemon_log.show(path, lines, follow=values.get("follow", False), json=options.json)
    return DONE


_NO_LOG_FILE: Final = (
    "there is no log file: a daemon in a terminal logs to its standard error, unless log_file is"
    " set in its settings or it is started with: nousd serve --log-file FILE"
)


def _log_of_daemon(options: Options) -> Path:
    """Return the path of the daemon's log file.

    Raises:
        ClientError: the daemon does not log to a file.
    """
    try:
        with options.connect() as daemon, daemon_process(daemon) as process:
            if process is None and _is_of_service(options):
                raise ClientError(f"systemd keeps its log: {user_service.LOG}")
            if process is None:
                return _log_of_settings(os.environ, f"{_NOT_OURS} look at its log where it runs")
            flag = _flag(process.argv, "--log-file")
            if flag is not None:
                return Path((process.folder / "cwd").readlink(), flag)
            if process.log_output is not None:
                return process.log_output
            if process.unit is not None:
                raise ClientError(f"systemd keeps its log: journalctl --user -u {process.unit}")
            return _log_of_settings(process.environ)
    except DaemonUnreachable:
        return _log_of_settings(os.environ)


def _flag(argv: tuple[str, ...], flag: str) -> str | None:
    for word, following in zip(argv, (*argv[1:], ""), strict=True):
        if word == flag:
            return following
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def _log_of_settings(environ: Mapping[str, str], default: str = _NO_LOG_FILE) -> Path:
    from nousd.config.resolve import resolve

    settings = resolve({}, environ, asks_models=False).settings
    path = settings.log_file or locations.daemon_log(settings.state_dir)
    if settings.log_file is None and not path.exists():
        raise ClientError(default)
    return path
