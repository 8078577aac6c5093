"""The default paths: the sockets, the state directory, the settings file.

The daemon and its clients must find the same paths without communicating, so this module determines them
from facts that both know: the user and the user's environment. It creates and opens nothing.

``is_utf8`` decides which paths can be named: a log, a model and a client accept only UTF-8, but a file
system accepts any bytes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

_APP: Final = "nousd"

EVENTS_SUFFIX: Final = ".events"


def default_socket() -> Path:
    """Return the command socket's path: in the user's runtime directory, else in the state directory.

    There is no fallback in ``/tmp``: another user could take the name of such a directory, and it may
    appear or vanish between the start of the daemon and that of a client.
    """
    for folder in (os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{os.getuid()}"):
        if folder and Path(folder).is_dir() and os.access(folder, os.W_OK | os.X_OK):
            return Path(folder, _APP, f"{_APP}.sock")
    return default_state_dir() / "run" / f"{_APP}.sock"


def events_socket(socket: Path) -> Path:
    """Return the path of the event socket for a command socket."""
    return socket.with_name(socket.name + EVENTS_SUFFIX)


def default_state_dir() -> Path:
    """Return the default state directory, which contains the log."""
    if sys.platform == "linux":
        return _user_folder("XDG_STATE_HOME", "~/.local/state") / _APP
    else:  # noqa: RET505  mypy checks the systems apart
        import platformdirs

        return platformdirs.user_state_path(_APP)


def database_file(state_dir: Path) -> Path:
    """Return the path of the log in a state directory."""
    return state_dir / "nousd.db"


def state_files(state_dir: Path) -> tuple[Path, ...]:
    """Return the files of the log in a state directory and the files beside it; some may not exist."""
    names = ("db", "db-wal", "db-shm", "db-journal", "reserve", "lock")
    return tuple(state_dir / f"{_APP}.{name}" for name in names)


def http_token_file(state_dir: Path) -> Path:
    """Return the file in a state directory with the token of HTTP clients."""
    return state_dir / "http-token"


def http_sessions_folder(state_dir: Path) -> Path:
    """Return the folder in a state directory with the sessions of browsers."""
    return state_dir / "http-sessions"


def http_links_folder(state_dir: Path) -> Path:
    """Return the folder in a state directory with the one-time links that log browsers in."""
    return state_dir / "http-links"


def runtimes_folder(state_dir: Path) -> Path:
    """Return the folder in a state directory with the files of agent programs."""
    return state_dir / "runtimes"


def user_instructions_file() -> Path:
    """Return the path of the user's own instructions to models, which need not exist."""
    return default_config_file().with_name("AGENTS.md")


def user_agents_folder() -> Path:
    """Return the path of the user's own agents, which need not exist."""
    return default_config_file().with_name("agents")


def daemon_log(state_dir: Path) -> Path:
    """Return the default log file of a daemon that a client has started."""
    return state_dir / "daemon.log"


def default_config_file() -> Path:
    """Return the path of the settings file, which need not exist."""
    if sys.platform == "linux":
        return _user_folder("XDG_CONFIG_HOME", "~/.config") / _APP / "config.toml"
    else:  # noqa: RET505  mypy checks the systems apart
        import platformdirs

        return platformdirs.user_config_path(_APP) / "config.toml"


def _user_folder(variable: str, default: str) -> Path:
    """Return the same folder as platformdirs. The daemon and every client need some, and importing that
    library takes longer than a ping.
    """
    return Path(os.environ.get(variable, "").strip() or Path(default).expanduser())


def is_utf8(path: str) -> bool:
    """Return whether a path, as the operating system returned it, is UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
