"""``nousd serve``: from flags to settings to a running daemon.

The one module of this room that may import the daemon. The flags are made from the settings
themselves, so there is no setting without a flag and no flag that says something else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args, get_origin

import typer

from nousd.cli.arguments import Argument, function_of
from nousd.cli.bridge import bridge_settings, check_installed

if TYPE_CHECKING:
    from nousd.config.settings import Settings
    from nousd.config.values import SettingInfo
    from nousd.daemon.core import Core
    from nousd.daemon.serve import Door, ServeBeside

CONFIG: Final = Argument(
    "config",
    Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings file to read.")],
)
_PRINT_CONFIG: Final = Argument(
    "print_config",
    Annotated[
        bool, typer.Option("--print-config", help="Print every setting and its origin, and stop.")
    ],
    default=False,
)
_KINDS: Final[dict[Any, tuple[Any, str]]] = {
    Path: (str, "PATH"),
    Path | Literal["none"]: (str, "PATH|none"),
    tuple[Path, ...]: (list[str], "PATH"),
    bool: (bool, ""),
    int: (str, "NUMBER"),
    float: (str, "NUMBER"),
    str: (str, "TEXT"),
}
"""type of a setting -> what typer reads, and how it is called. Numbers stay text: the settings say what
is wrong with one, wherever it came from."""


def command() -> Callable[..., None]:
    """Returns the function behind ``nousd serve``, with a flag for each setting."""
    from nousd.config.settings import SETTINGS

    return function_of([*map(setting_flag, SETTINGS.values()), CONFIG, _PRINT_CONFIG], _serve)


def setting_flag(info: SettingInfo) -> Argument:
    """Returns the command line flag of a setting."""
    from nousd.config.settings import flag_of

    kind, metavar = _KINDS.get(info.type) or _other_kind(info)
    flag = flag_of(info.name)
    names = [f"{flag}/--no-{flag.removeprefix('--')}"] if kind is bool else [flag]
    if info.name == "verbose":
        names.append("-v")
    option = typer.Option(*names, help=_help(info), metavar=metavar or None)
    return Argument(info.name, Annotated[kind | None, option])


def _other_kind(info: SettingInfo) -> tuple[Any, str]:
    if get_origin(info.type) is tuple:
        return list[str], str(get_args(info.type)[0].__name__).upper()
    return str, "|".join(info.words)


def _help(info: SettingInfo) -> str:
    from nousd.config.settings import DEFAULTS

    default = DEFAULTS.get(info.name)
    return f"{info.help} [default: {default}]" if default not in (None, False, ()) else info.help


def _serve(values: dict[str, Any]) -> None:
    from nousd.config.report import report
    from nousd.config.resolve import resolve

    config = values.pop("config")
    print_config = values.pop("print_config")
    # Whoever lacks a key sees in the report where one is missing.
    resolved = resolve(values, os.environ, config, asks_models=not print_config)
    if print_config:
        print(*report(resolved), sep="\n")
        return
    from nousd.daemon.serve import serve

    sys.exit(serve(resolved.settings, _http_door(resolved.settings)))


def _http_door(settings: Settings) -> Door | None:
    """Returns what opens the HTTP server of the settings; None if they name none."""
    if settings.http is None:
        return None
    check_installed()
    from nousd.bridge.embedded import embedded
    from nousd.bridge.run import open_bridge
    from nousd.daemon.connection import serve_commands
    from nousd.daemon.feed import serve_events

    @asynccontextmanager
    async def door(tell_secret: Callable[[str], None]) -> AsyncIterator[ServeBeside]:
        wanted = bridge_settings(settings)
        tell_secret(wanted.token)
        async with open_bridge(wanted) as bridge:

            async def serve_core(core: Core) -> None:
                ways = partial(serve_commands, core), partial(serve_events, core)
                async with embedded(*ways) as dial:
                    await bridge.serve(dial, core.closing)

            yield serve_core

    return door
