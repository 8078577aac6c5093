"""``nousd service``: the daemon as a service of the user's systemd.

``install`` writes the unit and starts it, ``uninstall`` takes both back. A unit that somebody else has
written, or changed, is left alone.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Annotated, Final

import typer

from nousd.cli.nousd import units
from nousd.errors import ConfigError, ServiceFailed
from nousd.runtime_paths import locations

_NAME: Final = "nousd.service"

_OURS: Final = "# Written by nousd service install; a changed file is left alone.\n"

_SECONDS: Final = 60.0
"""How long systemd may take; a stop waits for runs to end."""


def app() -> typer.Typer:
    """Return the subcommands."""
    group = typer.Typer(
        help="Run the daemon as a service.", no_args_is_help=True, rich_markup_mode=None
    )
    group.callback()(_group)
    for name, help, function in (
        ("install", "Write the systemd user unit, and start it now and at each login.", _install),
        ("uninstall", "Stop the service and remove its unit.", _uninstall),
        ("status", "Show whether the service is installed and runs.", _status),
        ("print", "Print the systemd user unit for this installation.", _print),
    ):
        group.command(name, help=help)(function)
    return group


def _group() -> None:
    pass


def _print(
    *,
    socket: Annotated[
        bool, typer.Option("--socket", help="Print the .socket unit for socket activation.")
    ] = False,
) -> None:
    print(units.socket_unit() if socket else units.service_unit(), end="")


def _install() -> None:
    file, wanted = _file(), _OURS + units.service_unit()
    if file.exists() and not _is_ours(file):
        raise ConfigError(
            f"{file} was not written by this command, or was changed: remove it, or keep it and start it"
            f" with systemctl --user enable --now {_NAME}"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(wanted)
    print(f"written: {file}")
    _systemctl("daemon-reload")
    _systemctl("enable", _NAME)
    # Starts it, and renews one that ran with an earlier unit.
    _systemctl("restart", _NAME)
    print(f"the daemon runs now, and from each login on; its log: journalctl --user -u {_NAME}")
    print("to let it run while you are logged out: loginctl enable-linger")


def _uninstall() -> None:
    file = _file()
    if not file.exists():
        print(f"not installed: there is no {file}")
        return
    if not _is_ours(file):
        raise ConfigError(
            f"{file} was not written by this command, or was changed: stop it with"
            f" systemctl --user disable --now {_NAME}, then remove it"
        )
    _systemctl("disable", "--now", _NAME)
    file.unlink()
    _systemctl("daemon-reload")
    print(f"stopped, and removed: {file}")


def _status() -> None:
    file = _file()
    if not file.exists():
        print(f"not installed: there is no {file}; nousd service install writes it")
        raise typer.Exit(1)
    is_current = file.read_text() == _OURS + units.service_unit()
    note = (
        "" if is_current else " (not the one of this installation: nousd service install renews it)"
    )
    print(f"unit: {file}{note}")
    enabled = _asked("is-enabled")
    state = _asked("is-active")
    print(f"at login: {enabled}")
    print(f"now: {state}")
    raise typer.Exit(0 if state == "active" else 1)


def _file() -> Path:
    return locations.default_config_file().parents[1] / "systemd" / "user" / _NAME


def _is_ours(file: Path) -> bool:
    """Return whether it is a unit as this or an earlier installation wrote it: other programs only."""
    lines = file.read_text().splitlines()
    written = (_OURS + units.service_unit()).splitlines()
    return [line for line in lines if not line.startswith("ExecStart=")] == [
        line for line in written if not line.startswith("ExecStart=")
    ]


def _systemctl(*words: str) -> None:
    done = _run(*words)
    if done.returncode != 0:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise ServiceFailed(
            f"systemctl --user {' '.join(words)} failed: {said}; without systemd start the daemon with"
            " nousd serve"
        )


def _asked(word: str) -> str:
    done = _run(word, _NAME)
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
