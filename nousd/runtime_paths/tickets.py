"""Tickets: random secrets that admit an HTTP client for a limited time, in place of the token.

A ticket is a file in a folder of the state directory, named by the hash of its secret, so that the
folder reveals no secret. Tickets survive a kill, and all servers of a state directory share them.
``take`` gives a ticket to one taker only, because a file can be removed only once. A ticket is void once
the token that it was issued for has been replaced.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from nousd.errors import ConfigError
from nousd.runtime_paths.folders import prepare_own_folder
from nousd.runtime_paths.locations import http_links_folder, http_sessions_folder

SESSIONS_MAX: Final = 64
SESSION_SECONDS: Final = 12 * 60 * 60.0
LINKS_MAX: Final = 16
LINK_SECONDS: Final = 5 * 60.0

_SECRET: Final = re.compile(r"[A-Za-z0-9_-]{43}")
_SECRET_BYTES: Final = 32
_FILE_BYTES_MAX: Final = 4096
_USE_SECONDS: Final = 60.0
"""Minimum time between two records of a ticket's use."""

_BEING_WRITTEN_SECONDS: Final = 60.0
"""An unreadable file is left alone for this time: another process may be writing it."""


class Ticket(NamedTuple):
    """The content of a ticket.

    Args:
        origin: the web origin that may use it; "" for any holder of the secret.
        expires_at: Unix time in seconds.
        token_hash: the hash of the token that it was issued for.
    """

    origin: str
    expires_at: float
    token_hash: str


def hash_token(token: str) -> str:
    """Return the hash of a token, as tickets contain it."""
    return hashlib.sha256(token.encode()).hexdigest()


class TicketFolder:
    """The tickets of one kind.

    Args:
        path: created at the first ticket.
        most: maximum tickets; a further one replaces the least recently used.
        seconds: how long a ticket is valid.
    """

    def __init__(self, path: Path, *, most: int, seconds: float) -> None:
        self._path = path
        self._most = most
        self._seconds = seconds

    def issue(self, token_hash: str, origin: str = "") -> tuple[str, Ticket]:
        """Create a ticket; return its secret and the ticket.

        Raises:
            ConfigError: the ticket cannot be written.
        """
        prepare_own_folder(self._path, "folder")
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        ticket = Ticket(origin, time.time() + self._seconds, token_hash)
        file = self._file(secret)
        try:
            self._make_room(token_hash)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(file, flags, 0o600), "w") as writing:
                json.dump(ticket._asdict(), writing)
        except OSError as error:
            with suppress(OSError):
                file.unlink(missing_ok=True)
            raise ConfigError(f"http: {self._path}: {error.strerror}") from None
        return secret, ticket

    def find(self, secret: str, token_hash: str) -> Ticket | None:
        """Return the valid ticket with that secret and record its use; None if there is none. Remove a
        void one.
        """
        if not _SECRET.fullmatch(secret):
            return None
        file = self._file(secret)
        ticket = _read(file)
        if ticket is None:
            return None
        if not self._is_valid(ticket, token_hash):
            with suppress(OSError):
                file.unlink()
            return None
        with suppress(OSError):
            if abs(time.time() - file.stat().st_mtime) > _USE_SECONDS:
                os.utime(file)
        return ticket

    def take(self, secret: str, token_hash: str) -> Ticket | None:
        """Return the valid ticket with that secret and remove it. Only one of several takers gets it."""
        ticket = self.find(secret, token_hash)
        return ticket if ticket is not None and self.remove(secret) else None

    def remove(self, secret: str) -> bool:
        """Remove a ticket; return whether it existed."""
        if not _SECRET.fullmatch(secret):
            return False
        try:
            self._file(secret).unlink()
        except OSError:
            return False
        return True

    def _file(self, secret: str) -> Path:
        return self._path / hashlib.sha256(secret.encode()).hexdigest()

    def _is_valid(self, ticket: Ticket, token_hash: str) -> bool:
        # A clock that was set back must not make a ticket last longer.
        is_in_time = 0 < ticket.expires_at - time.time() <= self._seconds
        return is_in_time and hmac.compare_digest(ticket.token_hash, token_hash)

    def _make_room(self, token_hash: str) -> None:
        """Remove void tickets, and the least recently used valid ones until one more fits."""
        kept: list[tuple[float, Path]] = []
        for file in self._path.iterdir():
            with suppress(FileNotFoundError):
                used_at = file.stat().st_mtime
                ticket = _read(file)
                if ticket is not None and self._is_valid(ticket, token_hash):
                    kept.append((used_at, file))
                elif ticket is not None or time.time() - used_at > _BEING_WRITTEN_SECONDS:
                    file.unlink()
        kept.sort(reverse=True)
        for _, file in kept[self._most - 1 :]:
            file.unlink(missing_ok=True)


def browser_sessions(state_dir: Path) -> TicketFolder:
    """Return the sessions of browsers in a state directory."""
    folder = http_sessions_folder(state_dir)
    return TicketFolder(folder, most=SESSIONS_MAX, seconds=SESSION_SECONDS)


def login_links(state_dir: Path) -> TicketFolder:
    """Return the one-time links of a state directory that log browsers in."""
    return TicketFolder(http_links_folder(state_dir), most=LINKS_MAX, seconds=LINK_SECONDS)


def _read(file: Path) -> Ticket | None:
    """Return the ticket in a file; None if there is none."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(file, "rb", opener=lambda name, _flags: os.open(name, flags)) as reading:
            given = json.loads(reading.read(_FILE_BYTES_MAX))
        return Ticket(str(given["origin"]), float(given["expires_at"]), str(given["token_hash"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None
