"""Unix sockets as files: private from their creation, replaced when stale, removed if still the same.

The rules, in the order of their importance:

- Only a socket of the same user on which no process answers is removed, and only by the holder of
  the socket's lock (``nousd.runtime_paths.locks``). Files, links, directories and live sockets stay.
- A socket has mode 0600 from the moment it appears: it is bound under a umask of 0177. Creating it
  elsewhere and renaming it would also work, but a rename replaces a file that has appeared at the path
  meanwhile; a bind never does.
- On exit, a socket is removed only if device and inode show that it is still the one that was bound.
  This is checked before closing, because an open socket's inode number cannot be reused.

It knows neither the protocol on the sockets nor the event loop that listens.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from nousd.errors import ConfigError

SUN_PATH_BYTES: Final = 108 if sys.platform == "linux" else 104
"""Maximum length of a socket's path in ``struct sockaddr_un``, with the NUL at its end."""

_BACKLOG: Final = 4096
"""Connections that may wait to be accepted; the kernel lowers it to its own limit. Generous, because
beyond it a non-blocking ``connect`` fails at once, and waiting connections cost nothing."""

_UMASK_0600: Final = 0o177


class _Identity(NamedTuple):
    """Device and inode: identify a file independently of its path."""

    device: int
    inode: int


def check_length(path: Path) -> None:
    """Check that a path fits into a socket address.

    Raises:
        ConfigError: the path is too long; the message has both lengths.
    """
    length = len(os.fsencode(path))
    if length >= SUN_PATH_BYTES:
        raise ConfigError(
            f"the socket path {path} is too long: {length} bytes, at most {SUN_PATH_BYTES - 1}"
        )


class ListeningSocket(NamedTuple):
    """A listening socket and its file."""

    socket: socket.socket
    path: Path
    identity: _Identity

    def remove_file(self) -> None:
        """Remove the file if it still belongs to this socket. Call it before the socket is closed."""
        _remove_if_same(self.path, self.identity)


def listen(path: Path) -> ListeningSocket:
    """Listen at a free path.

    Raises:
        ConfigError: the socket cannot be created.
    """
    sock = _bind(path)
    identity = _identity(path)
    sock.listen(_BACKLOG)
    return ListeningSocket(sock, path, identity)


def _bind(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The umask belongs to the whole process. If another thread creates a file at this moment, that
    # file is too private, never too public.
    umask = os.umask(_UMASK_0600)
    try:
        sock.bind(os.fspath(path))
    except OSError as error:
        sock.close()
        raise ConfigError(f"the socket {path} cannot be created: {error.strerror}") from error
    finally:
        os.umask(umask)
    return sock


# --- stale sockets ---------------------------------------------------------------------------


def remove_stale(paths: Iterable[Path]) -> None:
    """Remove stale sockets of this user; check all before removing any. The caller must hold their lock.

    Raises:
        ConfigError: a path has any other file, which stays; nothing is removed.
    """
    stale = {path: _stale_socket(path) for path in paths}
    for path, identity in stale.items():
        if identity is not None:
            _remove_if_same(path, identity)


def _stale_socket(path: Path) -> _Identity | None:
    """Return the socket at ``path`` that may be removed; None if the path is free.

    Raises:
        ConfigError: the existing file must be left alone.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"the socket {path} cannot be reached: {error.strerror}") from error
    if not stat.S_ISSOCK(status.st_mode):
        raise ConfigError(f"{path} exists and is not a socket; remove it or name another path")
    if status.st_uid != os.geteuid():
        raise ConfigError(f"the socket {path} belongs to another user (uid {status.st_uid})")
    if not _is_dead(path):
        raise ConfigError(f"another program already listens on the socket {path}")
    return _Identity(status.st_dev, status.st_ino)


def _is_dead(path: Path) -> bool:
    """Return whether it is certain that no process listens. Never waits."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        # Any other result is a live socket or uncertain: 0 is accepted, EAGAIN a full backlog,
        # EPROTOTYPE another kind of socket.
        return probe.connect_ex(os.fspath(path)) in (errno.ECONNREFUSED, errno.ENOENT)


def _identity(path: Path) -> _Identity:
    status = path.lstat()
    return _Identity(status.st_dev, status.st_ino)


def _remove_if_same(path: Path, expected: _Identity) -> None:
    # The file is gone, or its directory is no longer writable: nothing can be cleaned up.
    with suppress(OSError):
        if _identity(path) == expected:
            path.unlink()
