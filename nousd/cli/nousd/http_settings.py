"""Derives the bridge's settings from the daemon's, for ``nousd serve`` and ``nousd bridge``."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING

from nousd.errors import ConfigError

if TYPE_CHECKING:
    from nousd.bridge.run import BridgeSettings
    from nousd.config.settings import Settings


def check_installed() -> None:
    """Check that the libraries of the extra ``http`` are installed.

    Raises:
        ConfigError: a library is missing.
    """
    needed = ("h11", "prometheus_client", "starlette")
    if any(importlib.util.find_spec(name) is None for name in needed):
        raise ConfigError("http needs the extra http: pip install 'nousd[http]'")


def bridge_settings(
    settings: Settings, tell_secret: Callable[[str], None] = lambda _token: None
) -> BridgeSettings:
    """Return the settings of the bridge; create the token if there is none.

    Args:
        tell_secret: receives the token and each replacement of it.

    Raises:
        ConfigError: a setting is invalid, the token cannot be read or created, or the libraries are
            missing.
    """
    check_installed()
    from nousd.bridge.http.listen_address import place_of
    from nousd.bridge.run import BridgeSettings
    from nousd.runtime_paths.locations import http_token_file
    from nousd.runtime_paths.tokens import TokenFile, http_token

    assert settings.http is not None
    file = http_token_file(settings.state_dir)
    tell_secret(http_token(file))
    return BridgeSettings(
        place=place_of(settings.http, remote=settings.http_remote),
        current_token=TokenFile(file, tell_secret).current,
        state_dir=settings.state_dir,
        hosts=settings.http_hosts,
        origins=settings.http_origins,
        starts_per_minute=settings.http_starts_per_minute,
    )
