"""How the C library is told to give memory back: large blocks to the system as soon as they are free.

By default glibc takes the size of a freed block as a hint to keep blocks of that size for later, and
keeps a heap for each thread. After one flood of long lines the daemon would hold hundreds of megabytes
that it does not use. Other C libraries have no such call, and none is made.
"""

from __future__ import annotations

import ctypes
from typing import Final

_LARGE_BYTES: Final = 256 * 1024
"""From here on a block is the system's own: larger than the pages that are joined for readers all the
time, smaller than a long line."""

_HEAPS_MAX: Final = 2
"""One for the event loop, one for the writer's thread; others share."""

# The numbers of <malloc.h>.
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


def give_back_large_blocks() -> None:
    """Sets it for the whole process; to be called before threads are started."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_ARENA_MAX, _HEAPS_MAX)
