"""Unix sockets as files: made private from their first moment, replaced when stale, removed if ours.

The rules, in the order in which they matter:

- Only a socket of the same user on which no process answers is removed, and only by the holder of
  the socket's lock (``nousd.runtime_paths.locks``). A file, a link, a folder, a living socket stay.
- A socket has mode 0600 the moment it appears: it is bound under a umask of 0177. Creating it
  elsewhere and renaming it would do as well, but a rename replaces whatever has come to the place
  meanwhile, and a bind never does.
- On the way out a socket is removed only if it is still the one that we bound, by device and inode.
  That is looked at before closing: while a socket is open its inode number cannot be used again.

It does not know what is said on the sockets, or which event loop listens.
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
    """Make sure that a path fits into a socket address.

    Raises:
        ConfigError: it does not; both lengths are named.
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
        """Remove the file if it is still ours. Call it before the socket is closed."""
        _remove_if_same(self.path, self.identity)


def listen(path: Path) -> ListeningSocket:
    """Listen at a path that is free.

    Raises:
        ConfigError: it cannot be created.
    """
    sock = _bind(path)
    identity = _identity(path)
    sock.listen(_BACKLOG)
    return ListeningSocket(sock, path, identity)


def _bind(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The umask belongs to the whole process. Should another thread create a file in this moment,
    # that file is too private, never too public.
    umask = os.umask(_UMASK_0600)
    try:
        sock.bind(os.fspath(path))
    except OSError as error:
        sock.close()
        raise ConfigError(f"the socket {path} cannot be created: {error.strerror}") from error
    finally:
        os.umask(umask)
    return sock


# --- what already stands at the path ---------------------------------------------------------


def remove_stale(paths: Iterable[Path]) -> None:
    """Remove dead sockets of ours; check all before removing any. Their lock must be held.

    Raises:
        ConfigError: something else exists there, which is left alone.
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
        # Anything else is alive or uncertain: 0 accepted, EAGAIN no place left in the backlog,
        # EPROTOTYPE a socket of another kind.
        return probe.connect_ex(os.fspath(path)) in (errno.ECONNREFUSED, errno.ENOENT)


def _identity(path: Path) -> _Identity:
    status = path.lstat()
    return _Identity(status.st_dev, status.st_ino)


def _remove_if_same(path: Path, expected: _Identity) -> None:
    # Gone already, or in a directory that we cannot write any more: nothing is left to clean up.
    with suppress(OSError):
        if _identity(path) == expected:
            path.unlink()
