"""``nousd service``: manages the daemon as a service of the user's systemd.

``install`` writes the unit and starts it; ``uninstall`` stops it and removes the unit. A unit that was
written or changed by anyone else is left alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from json import dumps
from pathlib import Path
from typing import Annotated, Final

import typer

from nousd.cli.nousd import units
from nousd.cli.user_service import LOG, NAME, query_systemd, start, systemctl, unit_file
from nousd.errors import ConfigError, ServiceFailed
from nousd.runtime_paths.locks import holder_of, socket_lock_file

_HEADER: Final = "# Written by nousd service install; a changed file is left alone.\n"


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
    file, content = unit_file(), _HEADER + units.service_unit()
    if file.exists() and not _is_ours(file):
        raise ConfigError(
            f"{file} was not written by this command, or was changed: remove it, or keep it and start it"
            f" with systemctl --user enable --now {NAME}"
        )
    if other := _other_daemon():
        raise ServiceFailed(
            f"a daemon already runs ({other}) that is not the service's: end it with nousctl stop, then"
            " install the service"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    print(f"written: {file}")
    systemctl("daemon-reload")
    systemctl("enable", NAME)
    # Starts the service, or restarts one that ran with an earlier unit.
    start(verb="restart")
    print(f"the daemon runs now, and from each login on; its log: {LOG}")
    print("to let it run while you are logged out: loginctl enable-linger")


def _other_daemon() -> str | None:
    """Return the user's daemon, such as ``pid 17``; None if only the service runs, or no daemon."""
    from nousd.config.resolve import resolve_socket

    # The service takes its settings from the file only, not from variables of this shell.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("NOUSD_")}
    holder = holder_of(socket_lock_file(resolve_socket(environ)))
    own = f"pid {query_systemd('show', '--property=MainPID', '--value', NAME)}"
    return None if holder == own else holder


def _uninstall() -> None:
    file = unit_file()
    if not file.exists():
        print(f"not installed: there is no {file}")
        return
    if not _is_ours(file):
        raise ConfigError(
            f"{file} was not written by this command, or was changed: stop it with"
            f" systemctl --user disable --now {NAME}, then remove it"
        )
    systemctl("disable", "--now", NAME)
    file.unlink()
    systemctl("daemon-reload")
    print(f"stopped, and removed: {file}")
    if file.with_suffix(".socket").exists():
        print("nousd.socket stays; remove it too with: systemctl --user disable --now nousd.socket")


def _status(*, json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    file = unit_file()
    if not file.exists():
        if json:
            print(dumps({"installed": False, "unit": str(file)}))
        else:
            print(f"not installed: there is no {file}; nousd service install writes it")
        raise typer.Exit(1)
    facts = {
        "installed": True,
        "unit": str(file),
        "current": file.read_text() == _HEADER + units.service_unit(),
        "at_login": query_systemd("is-enabled", NAME),
        "now": query_systemd("is-active", NAME),
        "other_daemon": _other_daemon(),
    }
    print(dumps(facts) if json else "\n".join(_status_lines(facts)))
    raise typer.Exit(0 if facts["now"] == "active" else 1)


def _status_lines(facts: Mapping[str, object]) -> Iterator[str]:
    renews = " (not the one of this installation: nousd service install renews it)"
    yield f"unit: {facts['unit']}{'' if facts['current'] else renews}"
    yield f"at login: {facts['at_login']}"
    yield f"now: {facts['now']}"
    if other := facts["other_daemon"]:
        yield f"a daemon runs that is not the service's: {other}; nousctl stop ends it"


def _is_ours(file: Path) -> bool:
    """Return whether this or another installation wrote a unit; only the program's path may differ."""
    lines = file.read_text().splitlines()
    expected = (_HEADER + units.service_unit()).splitlines()
    return [line for line in lines if not line.startswith("ExecStart=")] == [
        line for line in expected if not line.startswith("ExecStart=")
    ]
