"""Reads files of unknown origin, which may be FIFOs or links. Standard library only."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

_PIECE_BYTES: Final = 64 * 1024
"""Most such files are smaller, and allocating ``bytes_max`` takes longer than reading them."""


def beginning_of(path: Path | str, bytes_max: int, *, follow: bool = False) -> bytes:
    """Return the beginning of a regular file; nothing if it is not one or cannot be read.

    Args:
        follow: whether the name may be a link.
    """
    # O_NONBLOCK: opening a FIFO must not block.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return b""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b""
        pieces: list[bytes] = []
        bytes_left = bytes_max
        while bytes_left > 0 and (piece := os.read(descriptor, min(bytes_left, _PIECE_BYTES))):
            pieces.append(piece)
            bytes_left -= len(piece)
        return b"".join(pieces)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
