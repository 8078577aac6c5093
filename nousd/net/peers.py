"""Credentials of the peer of a Unix socket.

The kernel records the user of a connecting process, so this cannot be forged. It is the last of
three guards, behind the modes of the directory and of the socket, and the only one left where
another program made the sockets (systemd's default mode for them is 0666).
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from typing import Final

import trio

_ROOT_UID: Final = 0

_UCRED: Final = struct.Struct("iII")
"""``struct ucred`` of Linux: pid, uid, gid."""

_SOL_LOCAL: Final = 0
_LOCAL_PEERCRED: Final = 1
_XUCRED_BYTES: Final = 76
"""``struct xucred`` of macOS and the BSDs: version, uid, group count, 16 groups. A shorter answer
of another system still starts with version and uid."""


def is_own_or_root(stream: trio.SocketStream) -> bool:
    """Return whether the peer's user is ours or root; False if it cannot be told."""
    try:
        uid = peer_uid(stream)
    except OSError:
        return False  # macOS: the peer has already gone
    return uid in (os.geteuid(), _ROOT_UID)


def peer_uid(stream: trio.SocketStream) -> int:
    """Return the user id under which the peer connected.

    Raises:
        OSError: the system does not say.
    """
    if sys.platform == "linux":
        ucred = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        _pid, uid, _gid = _UCRED.unpack(ucred)
        return int(uid)
    else:  # noqa: RET505  mypy checks the two systems apart
        return _uid_of_xucred(stream.socket.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_BYTES))


def _uid_of_xucred(xucred: bytes) -> int:
    version, uid = struct.unpack_from("II", xucred)
    if version != 0:
        raise OSError(f"unknown version {version} of struct xucred")
    return int(uid)
