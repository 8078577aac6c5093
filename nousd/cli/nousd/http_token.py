"""``nousd http rotate-token``: replaces the token of HTTP clients, with or without a running server."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from nousd.errors import ConfigError


def rotate_command() -> Callable[..., None]:
    """Return the function behind ``nousd http rotate-token``."""
    from nousd.cli.arguments import function_of
    from nousd.cli.nousd.serve_flags import CONFIG, setting_flag
    from nousd.config.settings import SETTINGS

    return function_of([setting_flag(SETTINGS["state_dir"]), CONFIG], _rotate)


def _rotate(values: dict[str, Any]) -> None:
    from nousd.config.resolve import resolve
    from nousd.runtime_paths.locations import http_token_file
    from nousd.runtime_paths.tokens import rotate_http_token

    config = values.pop("config")
    state_dir = resolve(values, os.environ, config, asks_models=False).settings.state_dir
    if not state_dir.is_dir():
        raise ConfigError(f"state_dir: there is no folder {state_dir}; name it with --state-dir")
    file = http_token_file(state_dir)
    rotate_http_token(file)
    print(
        f"{file} holds a new token (mode 0600). A running daemon or bridge refuses the old one from now"
        " on, and ends the connections and event streams of its clients within seconds.",
        "Give the new token to every client: each then resumes after the last event that it saw.",
        sep="\n",
    )
