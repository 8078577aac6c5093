"""Checks of the HTTP server: its token and its address."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Final

from nousd.admin.doctor.examination import Check, World
from nousd.errors import ConfigError
from nousd.runtime_paths.locations import http_token_file
from nousd.runtime_paths.tokens import OpenToken, existing_http_token

ANSWER_SECONDS: Final = 2.0
"""Maximum wait for a connection and for each part of the answer."""

_ANSWER_BYTES_MAX: Final = 4096
_HEALTH: Final = b"GET /global/health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
_UNIX: Final = "unix:"


def token(world: World) -> Iterator[Check]:
    """Check that only its owner can read the token."""
    file = http_token_file(world.settings.state_dir)
    try:
        found = existing_http_token(file)
    except OpenToken as error:
        advice = "nousd http rotate-token replaces it; then give clients the new one"
        yield Check("http token", "warning", str(error), advice)
        return
    except ConfigError as error:
        yield Check("http token", "failed", str(error), "a daemon with --http does not start")
        return
    if found is None:
        yield Check("http token", "skipped", f"{file} is made once --http is used")
    else:
        yield Check("http token", "ok", f"{file} can be read by you alone")


def address(world: World) -> Iterator[Check]:
    """Check that the HTTP address is free, or that a daemon or a bridge answers there."""
    place = world.settings.http
    if place is None:
        yield Check("http", "skipped", "no HTTP server is asked for; --http names its address")
        return
    try:
        is_ours = _is_ours(place)
    except ConnectionError:
        yield Check("http", "ok", f"no process listens on {place}: it is free for a daemon")
        return
    if is_ours:
        yield Check("http", "ok", f"a daemon or a bridge answers on {place}")
    else:
        found = f"another program answers on {place}"
        yield Check("http", "failed", found, "name another address, or end that program")


def _is_ours(place: str) -> bool:
    """Return whether a nousd process answers at the address.

    Raises:
        ConnectionError: no process listens there.
    """
    from http.client import HTTPException, HTTPResponse

    try:
        with closing(_connect(place)) as connection:
            connection.sendall(_HEALTH)
            response = HTTPResponse(connection, method="GET")
            with closing(response):
                response.begin()
                answer = json.loads(response.read(_ANSWER_BYTES_MAX))
    except (ConnectionRefusedError, FileNotFoundError) as error:
        raise ConnectionError(str(error)) from None
    except (OSError, HTTPException, ValueError):
        return False
    return isinstance(answer, dict) and answer.get("mode") == "nousd"


def _connect(place: str) -> socket.socket:
    if not place.startswith(_UNIX):
        host, _, port = place.rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(ANSWER_SECONDS)
    try:
        connection.connect(place.removeprefix(_UNIX))
    except OSError:
        connection.close()
        raise
    return connection
