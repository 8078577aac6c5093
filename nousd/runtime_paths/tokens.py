"""The token of HTTP clients: a private file in the state directory, created when first needed.

A new file replaces the old one atomically, so that no process reads half a token. A running server
notices a new token in the file itself (``TokenFile``), no matter which process replaced it.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from nousd.errors import ConfigError
from nousd.runtime_paths.mending import OTHERS

_TOKEN_BYTES: Final = 32
_FILE_BYTES_MAX: Final = 4096
_CHARS_MIN: Final = 16

_log = logging.getLogger(__name__)


class OpenToken(ConfigError):
    """Other users could read or replace the token, so it must not be used any more."""


def http_token(path: Path) -> str:
    """Return the token in the file, which is created with mode 0600 if it is missing. A token that
    others could read is replaced by a new one, with a warning.

    Raises:
        ConfigError: the file cannot be created or read, belongs to another user, or holds no token.
    """
    try:
        _remove_open(path)
        _make(path)
        return _read(path)
    except OSError as error:
        raise ConfigError(f"http: {path}: {error.strerror}") from None


def existing_http_token(path: Path) -> str | None:
    """Return the token in the file; None if there is no such file. Creates nothing.

    Raises:
        OpenToken: others may read it.
        ConfigError: as ``http_token``.
    """
    try:
        return _read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"http: {path}: {error.strerror}") from None


def rotate_http_token(path: Path) -> None:
    """Replace the token in the file by a new one, even if others could read it or it was invalid.

    Of several rotations at once the last one wins. The message of an error tells whether the token was
    changed.

    Raises:
        ConfigError: the file belongs to another user, or no new one can be written or made durable.
    """
    try:
        _check_ours(path)
        with _new_file(path) as temporary:
            temporary.rename(path)
    except OSError as error:
        raise ConfigError(f"http: {path}: {error.strerror}; the token was not changed") from None
    try:
        _sync_folder(path.parent)
    except OSError as error:
        what = (
            f"{error.strerror}; the token was changed, but a power cut may bring the old one back"
        )
        raise ConfigError(f"http: {path.parent}: {what}") from None


class TokenFile:
    """The current token in a file.

    Args:
        path: read again only if the file was replaced or changed.
        tell_secret: receives each new token before it is valid.
    """

    def __init__(self, path: Path, tell_secret: Callable[[str], None]) -> None:
        self._path = path
        self._tell_secret = tell_secret
        self._seen: tuple[int, ...] | None = None
        self._token: str | None = None
        self._fault = ""

    def current(self) -> str | None:
        """Return the token; None if the file is missing or unusable, or others may read it."""
        seen = self._look()
        # An unreadable file is read again at each call.
        if seen != self._seen or (seen is not None and self._token is None):
            self._seen = seen
            self._token = self._read()
        return self._token

    def _look(self) -> tuple[int, ...] | None:
        try:
            status = self._path.lstat()
        except OSError:
            return None
        # The change time of the inode also reveals a new mode, and an old file put back with its times.
        return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns

    def _read(self) -> str | None:
        try:
            token = existing_http_token(self._path)
            fault = "" if token else f"http: {self._path} is missing"
        except ConfigError as error:
            token, fault = None, str(error)
        if fault and fault != self._fault:
            _log.warning(
                "%s: no HTTP client is admitted; nousd http rotate-token makes a token", fault
            )
        self._fault = fault
        if token is not None:
            self._tell_secret(token)
        return token


def _check_ours(path: Path) -> None:
    """Raise ConfigError if the path exists and is not a regular file of the current user."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise ConfigError(f"http: {path} is not a file of yours; the token was not changed")


def _remove_open(path: Path) -> None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    if is_ours and status.st_mode & OTHERS:
        path.unlink(missing_ok=True)
        mode = stat.S_IMODE(status.st_mode)
        _log.warning(
            "others could read the token in %s (mode %04o): there is a new one now (mode 0600)",
            *(path, mode),
        )


def _make(path: Path) -> None:
    if path.is_symlink() or path.exists():
        return
    # The first process wins: an existing file is not replaced.
    with _new_file(path) as temporary, suppress(FileExistsError):
        os.link(temporary, path)


@contextmanager
def _new_file(path: Path) -> Iterator[Path]:
    """Write a new token to a temporary file, so that no process reads half of it; on exit, remove that
    name if it still exists.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(descriptor, 0o600)  # a umask may have removed the owner's bits
            file.write(secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
            file.flush()
            os.fsync(descriptor)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make the replacement durable: after a power cut, the old token must not be valid again."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: Path) -> str:
    # Opening a file that is not regular, such as a FIFO, must not wait; it is refused below.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(path, "rb", opener=lambda name, _flags: os.open(name, flags)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise ConfigError(f"http: {path} is not a file of yours")
        if status.st_mode & OTHERS:
            mode = stat.S_IMODE(status.st_mode)
            raise OpenToken(f"http: others may read {path} (mode {mode:04o})")
        data = file.read(_FILE_BYTES_MAX + 1)
    text = data.decode("ascii", "replace").strip()
    is_token = text.isascii() and text.isprintable() and " " not in text
    if len(text) < _CHARS_MIN or len(data) > _FILE_BYTES_MAX or not is_token:
        raise ConfigError(f"http: {path} holds no token of {_CHARS_MIN} or more letters")
    return text
