"""``nousd serve``: resolves the settings from the values of its flags, and runs the daemon.

This is the only module of the room that may import the daemon.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from nousd.config.settings import Settings
    from nousd.daemon.serve import Door, ServeBeside
    from nousd.daemon.services import Services


def serve(values: dict[str, Any]) -> NoReturn:
    """Run the daemon, or print the configuration, and exit.

    Args:
        values: ``config``, ``print_config``, ``json`` for the form of the printed configuration, and
            each setting's flag, None if it was not given.

    Raises:
        ConfigError, StoreError: see ``nousd.daemon.serve``.
    """
    from nousd.config.resolve import resolve

    config = values.pop("config")
    print_config = values.pop("print_config")
    as_json = values.pop("json", False)
    # The printed report shows missing keys itself.
    resolved = resolve(values, os.environ, config, asks_models=not print_config)
    if print_config:
        from nousd.config.report import report

        lines = report(resolved)
        print(*(line.as_json() if as_json else line for line in lines), sep="\n")
        sys.exit()
    from nousd.daemon.serve import serve as run_daemon

    sys.exit(run_daemon(resolved.settings, _http_door(resolved.settings)))


def _http_door(settings: Settings) -> Door | None:
    """Return a function that opens the HTTP server; None if the setting ``http`` is unset."""
    if settings.http is None:
        return None
    from nousd.cli.nousd.http_settings import bridge_settings, check_installed

    check_installed()
    from nousd.bridge.embedded import open_memory_dial
    from nousd.bridge.run import open_bridge
    from nousd.daemon.transport.connection import serve_commands
    from nousd.daemon.transport.feed import serve_events

    @asynccontextmanager
    async def door(tell_secret: Callable[[str], None]) -> AsyncIterator[ServeBeside]:
        async with open_bridge(bridge_settings(settings, tell_secret)) as bridge:

            async def serve_daemon(services: Services) -> None:
                # An HTTP client may be any program that has a token.
                held = services.restrict()
                servers = partial(serve_commands, held), partial(serve_events, held)
                async with open_memory_dial(*servers) as dial:
                    await bridge.serve(dial, services.closing)

            yield serve_daemon

    return door
