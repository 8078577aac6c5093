"""The daemon as a service of the user's systemd: where its unit is, and what systemd says of it."""

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
"""How long systemd may take; a stop waits for runs to end."""


def unit_file() -> Path:
    """Return where the unit is, or would be."""
    return locations.default_config_file().parents[1] / "systemd" / "user" / NAME


def state_of_installed() -> str | None:
    """Return the state of the service, such as ``active``, ``activating`` or ``failed``; None if none is
    installed, or no systemd of the user runs.
    """
    if not unit_file().exists() or shutil.which("systemctl") is None:
        return None
    return _run("is-active", NAME).stdout.strip() or None


def start(*, verb: str = "start") -> None:
    """Start the service and wait until the daemon is ready.

    Args:
        verb: ``restart`` ends one that runs before that.

    Raises:
        ServiceFailed: it does not start.
    """
    if state_of_installed() == "failed":
        systemctl("reset-failed", NAME)  # after several failures systemd refuses any start
    done = _run(verb, NAME)
    if done.returncode != 0:
        raise ServiceFailed(
            f"{NAME} did not start; what it said: {LOG} -n 20; without systemd: nousd serve"
        )


def systemctl(*words: str) -> None:
    """Ask the user's systemd for something. Raise ServiceFailed, with what it says, if it refuses."""
    done = _run(*words)
    if done.returncode != 0:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise ServiceFailed(
            f"systemctl --user {' '.join(words)} failed: {said}; without systemd start the daemon with"
            " nousd serve"
        )


def query_systemd(*words: str) -> str:
    """Return the answer of the user's systemd."""
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
