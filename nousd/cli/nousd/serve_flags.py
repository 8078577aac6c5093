"""The flags of ``nousd serve`` for typer. They are generated from the settings, so that each setting has
a flag with the same meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args, get_origin

import typer

from nousd.cli.arguments import Argument, function_of
from nousd.cli.nousd.serve import serve

if TYPE_CHECKING:
    from nousd.config.values import SettingInfo

CONFIG: Final = Argument(
    "config",
    Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings file to read.")],
)
_PRINT_CONFIG: Final = Argument(
    "print_config",
    Annotated[
        bool, typer.Option("--print-config", help="Print every setting with its origin, and exit.")
    ],
    default=False,
)
_JSON: Final = Argument(
    "json",
    Annotated[bool, typer.Option("--json", help="Print each setting as a line of JSON.")],
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
"""Type of a setting -> typer's type and metavar. Numbers stay text, because the settings report invalid
values of every origin."""


def command() -> Callable[..., None]:
    """Return the function behind ``nousd serve``, with a flag for each setting."""
    from nousd.config.settings import SETTINGS

    return function_of([*map(setting_flag, SETTINGS.values()), CONFIG, _PRINT_CONFIG], serve)


def print_command() -> Callable[..., None]:
    """Return the function behind ``nousd config``: ``nousd serve --print-config``."""
    from nousd.config.settings import SETTINGS

    def print_config(values: dict[str, Any]) -> None:
        serve({**values, "print_config": True})

    return function_of([*map(setting_flag, SETTINGS.values()), CONFIG, _JSON], print_config)


def setting_flag(info: SettingInfo) -> Argument:
    """Return the command line flag of a setting."""
    from nousd.config.settings import flag_of, refusal_of

    kind, metavar = _KINDS.get(info.type) or _other_kind(info)
    if info.unit:
        metavar = "DURATION"
    flag = flag_of(info.name)
    names = [f"{flag}/{refusal_of(info.name)}"] if kind is bool else [flag]
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
