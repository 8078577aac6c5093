"""``nousd bridge``: the HTTP server for a daemon in another process."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Final

from nousd.cli.nousd.http_settings import bridge_settings
from nousd.errors import ConfigError

_SETTINGS: Final = (
    "socket",
    "state_dir",
    "http",
    "http_remote",
    "http_hosts",
    "http_origins",
    "http_starts_per_minute",
    "verbose",
)
"""The settings of a separate bridge, which needs the state directory for the token."""


def command() -> Callable[..., None]:
    """Return the function behind ``nousd bridge``, with a flag for each of its settings."""
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
        # The daemon may start later and finds the token there.
        prepare_state_folder(settings.state_dir)
    own_settings = bridge_settings(settings)
    from nousd.bridge.run import serve_alone

    serve_alone(own_settings, settings.socket)
