"""The token of HTTP clients: a private file in the state directory, created when first needed."""

from __future__ import annotations

import logging
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from nousd.errors import ConfigError
from nousd.runtime_paths.mending import OTHERS

_TOKEN_BYTES: Final = 32
_FILE_BYTES_MAX: Final = 4096
_CHARS_MIN: Final = 16

_log = logging.getLogger(__name__)


class OpenToken(ConfigError):
    """Others could read the token, or replace it; it is good for nothing any more."""


def http_token(path: Path) -> str:
    """Return the token in the file, which is created with mode 0600 if it is missing. A token that
    others could read is replaced by a new one, with a warning.

    Raises:
        ConfigError: the file cannot be created or read, is not ours, or contains no token.
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
    """Write a new token under another name first, so that nobody reads half of one."""
    if path.is_symlink() or path.exists():
        return
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(temporary, flags, 0o600), "w") as file:
        os.fchmod(file.fileno(), 0o600)  # a umask may have removed our own bits
        file.write(secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        # The first one wins: an existing name is not replaced.
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()


def _read(path: Path) -> str:
    # A file that is not plain is opened without waiting for it, and then refused.
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
