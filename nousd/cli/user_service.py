"""Controls the daemon's service through the user's systemd, and finds its unit."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

from nousd.errors import ServiceFailed
from nousd.runtime_paths import locations

NAME: Final = "nousd.service"

LOG: Final = f"journalctl --user -u {NAME}"
"""The command that shows the service's log."""

_SECONDS: Final = 60.0
"""Time-out of systemctl; a stop waits for runs to end."""


def unit_file() -> Path:
    """Return the path of the unit, whether or not it exists."""
    return locations.default_config_file().parents[1] / "systemd" / "user" / NAME


def state_of_installed() -> str | None:
    """Return the state of the service, such as ``active``, ``activating`` or ``failed``; None if no unit
    is installed or the user's systemd does not run.
    """
    if not unit_file().exists() or shutil.which("systemctl") is None:
        return None
    return _run("is-active", NAME).stdout.strip() or None


def start(*, verb: str = "start") -> None:
    """Start the service and wait until the daemon is ready.

    Args:
        verb: ``restart`` stops a running service first.

    Raises:
        ServiceFailed: the service does not start.
    """
    if state_of_installed() == "failed":
        systemctl("reset-failed", NAME)  # after several failures systemd refuses to start a unit
    done = _run(verb, NAME)
    if done.returncode != 0:
        raise ServiceFailed(
            f"{NAME} did not start; what it said: {LOG} -n 20; without systemd: nousd serve"
        )


def systemctl(*words: str) -> None:
    """Run ``systemctl --user``. Raise ServiceFailed with its message if it fails."""
    done = _run(*words)
    if done.returncode != 0:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise ServiceFailed(
            f"systemctl --user {' '.join(words)} failed: {reason}; without systemd start the daemon with"
            " nousd serve"
        )


def query_systemd(*words: str) -> str:
    """Run ``systemctl --user`` and return its output, or its error message."""
    done = _run(*words)
    return done.stdout.strip() or " ".join(done.stderr.split()) or "unknown"


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemctl")
    if program is None:
        raise ServiceFailed("there is no systemctl here; start the daemon with nousd serve")
    argv = [program, "--user", *words]
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise ServiceFailed(
            f"systemctl --user {' '.join(words)} did not end within {_SECONDS:g} seconds"
        ) from None
