"""Reads files that anybody may have put there. Standard library only."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def beginning_of(path: Path, bytes_max: int, *, follow: bool = False) -> bytes:
    """Return the beginning of a regular file; nothing of anything else, and if it cannot be read.

    Args:
        follow: whether the name may be a link.
    """
    # A FIFO must not block.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return b""
    try:
        # Checked first: a directory cannot become a file object, which would not close it either.
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b""
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(bytes_max)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
