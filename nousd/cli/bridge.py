"""``nousd bridge``: the HTTP server beside a daemon that runs already, and what both are set to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nousd.bridge.run import BridgeSettings
    from nousd.config.settings import Settings


def bridge_settings(settings: Settings) -> BridgeSettings:
    """Returns what the settings say of HTTP; the token is made if there is none yet.

    Raises:
        ConfigError: a setting does not fit, or the token cannot be had.
    """
    from nousd.bridge.place import place_of
    from nousd.bridge.run import BridgeSettings
    from nousd.places.locations import http_token_file
    from nousd.places.tokens import http_token

    assert settings.http is not None
    return BridgeSettings(
        place=place_of(settings.http, remote=settings.http_remote),
        token=http_token(http_token_file(settings.state_dir)),
        hosts=settings.http_hosts,
        origins=settings.http_origins,
    )
