"""How memory is given back: large blocks to the system at once, and how often cycles are looked for.

By default glibc takes the size of a freed block as a hint to keep blocks of that size for later, and
keeps a heap for each thread. After one flood of long lines the daemon would hold hundreds of megabytes
that it does not use. Other C libraries have no such call, and none is made.
"""

from __future__ import annotations

import ctypes
import gc
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
    """Set it for the whole process; to be called before threads are started."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_ARENA_MAX, _HEAPS_MAX)


_CYCLES_AFTER: Final = 20_000
"""Objects that came and stayed after which the youngest are searched for cycles. What the daemon holds
are values without any: at the usual 700 the search takes a tenth of the loop, and finds nothing."""


def look_for_cycles_seldom() -> None:
    """Set it, from now on, and leaves out of every search what is there now: modules and tables that
    stay. The little of it that is garbage is not worth the time it takes to find it.
    """
    gc.freeze()
    gc.set_threshold(_CYCLES_AFTER)
    gc.enable()
