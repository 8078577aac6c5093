"""Where things lie unless someone says otherwise: the sockets, the state folder, the config file.

The daemon and its clients must come to the same answer without talking to each other, so the answer
is made here, once, and only from what both can see: the user and the user's environment. Nothing is
created or opened here.

Also here: which paths can be named at all. A log, a model and a client take UTF-8 only, a file system
any bytes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

_APP: Final = "nousd"

EVENTS_SUFFIX: Final = ".events"


def default_socket() -> Path:
    """Return the command socket's path: in the user's runtime folder, else in the state folder.

    A runtime folder in ``/tmp`` is never chosen: its name could be taken by somebody else, and whether
    it exists may change between the daemon's start and a client's.
    """
    for folder in (os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{os.getuid()}"):
        if folder and Path(folder).is_dir() and os.access(folder, os.W_OK | os.X_OK):
            return Path(folder, _APP, f"{_APP}.sock")
    return default_state_dir() / "run" / f"{_APP}.sock"


def events_socket(socket: Path) -> Path:
    """Return the path of the event socket that belongs to a command socket."""
    return socket.with_name(socket.name + EVENTS_SUFFIX)


def default_state_dir() -> Path:
    """Return the folder that holds the log."""
    import platformdirs

    return platformdirs.user_state_path(_APP)


def database_file(state_dir: Path) -> Path:
    """Return the path of the log in a state folder."""
    return state_dir / "nousd.db"


def http_token_file(state_dir: Path) -> Path:
    """Return the file in a state folder that holds the token of HTTP clients."""
    return state_dir / "http-token"


def user_instructions_file() -> Path:
    """Return the path of the user's own instructions to models, which need not exist."""
    return default_config_file().with_name("AGENTS.md")


def user_agents_folder() -> Path:
    """Return the path of the folder with the user's own agents, which need not exist."""
    return default_config_file().with_name("agents")


def default_config_file() -> Path:
    """Return the path of the settings file, which need not exist."""
    if sys.platform == "linux":
        # As platformdirs has it. Clients ask this each time, and it takes longer to import than a ping.
        folder = os.environ.get("XDG_CONFIG_HOME", "").strip() or Path("~/.config").expanduser()
        return Path(folder, _APP, "config.toml")
    else:  # noqa: RET505  mypy checks the systems apart
        import platformdirs

        return platformdirs.user_config_path(_APP) / "config.toml"


def is_utf8(path: str) -> bool:
    """Return whether a path, as the operating system gave it to us, is UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
