"""``nousd bridge``: the HTTP server beside a daemon that runs already, and what both are set to."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from nousd.errors import ConfigError

if TYPE_CHECKING:
    from nousd.bridge.run import BridgeSettings
    from nousd.config.settings import Settings

_SETTINGS: Final = (
    "socket",
    "state_dir",
    "http",
    "http_remote",
    "http_hosts",
    "http_origins",
    "verbose",
)
"""The settings that a bridge by itself has; of the state folder it needs the token."""


def command() -> Callable[..., None]:
    """Returns the function behind ``nousd bridge``, with a flag for each of its settings."""
    from nousd.cli.arguments import function_of
    from nousd.cli.nousd.serve_flags import CONFIG, setting_flag
    from nousd.config.settings import SETTINGS

    flags = [setting_flag(SETTINGS[name]) for name in _SETTINGS]
    return function_of([*flags, CONFIG], _bridge)


def _bridge(values: dict[str, Any]) -> None:
    from nousd.config.resolve import resolve
    from nousd.runtime_paths.folders import prepare_state_folder

    config = values.pop("config")
    settings = resolve(values, os.environ, config, asks_models=False).settings
    if settings.http is None:
        raise ConfigError("http: say where to listen, as in --http 127.0.0.1:39731")
    level = logging.DEBUG if settings.verbose else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s")
    if not settings.state_dir.exists():
        # The daemon may come later, and finds the token there.
        prepare_state_folder(settings.state_dir)
    wanted = bridge_settings(settings)
    from nousd.bridge.standalone import serve_alone

    serve_alone(wanted, settings.socket)


def check_installed() -> None:
    """Makes sure that the libraries of the extra ``http`` are there.

    Raises:
        ConfigError: they are not.
    """
    needed = ("hypercorn", "prometheus_client", "starlette")
    if any(importlib.util.find_spec(name) is None for name in needed):
        raise ConfigError("http needs the extra http: pip install 'nousd[http]'")


def bridge_settings(settings: Settings) -> BridgeSettings:
    """Returns what the settings say of HTTP; the token is made if there is none yet.

    Raises:
        ConfigError: a setting does not fit, the token cannot be had, or the libraries are missing.
    """
    check_installed()
    from nousd.bridge.http.listen_address import place_of
    from nousd.bridge.run import BridgeSettings
    from nousd.runtime_paths.locations import http_token_file
    from nousd.runtime_paths.tokens import http_token

    assert settings.http is not None
    return BridgeSettings(
        place=place_of(settings.http, remote=settings.http_remote),
        token=http_token(http_token_file(settings.state_dir)),
        hosts=settings.http_hosts,
        origins=settings.http_origins,
    )
