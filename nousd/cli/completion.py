"""Completes sessions and models of the daemon in the shell.

If the daemon does not answer at once, nothing is offered: nobody waits for a completion.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from nousd.runtime_paths import locations

_SECONDS: Final = 0.5


def usual_socket() -> Path:
    """Return the path of the daemon's socket, from its settings.

    Raises:
        ConfigError: the settings file is invalid.
    """
    path = os.environ.get("NOUSD_SOCKET")
    if path:
        return Path(path)
    if not (os.environ.get("NOUSD_CONFIG") or locations.default_config_file().exists()):
        return locations.default_socket()
    from nousd.config.resolve import resolve_socket

    return resolve_socket(os.environ)


def complete_session(incomplete: str) -> list[tuple[str, str]]:
    """Return the session ids and names that begin with ``incomplete``, each with a description."""
    rows = _list_rows("list_sessions", {"archived": False}, "sessions")
    return [each for each in _session_words(rows) if each[0].startswith(incomplete)]


def _session_words(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for row in rows:
        names = [row[key] for key in ("name", "title") if row.get(key)]
        yield row["session_id"], " ".join([*names[-1:], row["workspace"]])
        yield from ((name, row["workspace"]) for name in dict.fromkeys(names))


def complete_model(incomplete: str) -> list[str]:
    """Return the models and aliases that begin with ``incomplete``."""
    rows = _list_rows("list_models", {}, "models")
    words = [word for row in rows for word in (row["id"], *row.get("aliases", ()))]
    return [word for word in words if word.startswith(incomplete)]


def _list_rows(command: str, payload: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    from nousd.client.blocking import Connection
    from nousd.errors import NousdError

    try:
        with Connection(usual_socket(), timeout_seconds=_SECONDS) as daemon:
            return list(daemon.request(command, payload).payload[key])
    except NousdError:
        return []
