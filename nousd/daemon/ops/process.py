"""Settings of the daemon process: memory, descriptors, garbage collection; what is late on purpose.

By default glibc takes the size of a freed block as a hint to keep blocks of that size for later, and
keeps a heap for each thread. After one flood of long lines the daemon would hold hundreds of megabytes
that it does not use. Other C libraries have no such call, and none is made.

The usual soft limit of 1,024 descriptors is below what the bounds on connections add up to; a crowd of
HTTP readers would take those that the sockets and the log need. Programs of tools get a limit of their
own (``tools/process/supervisor_process``), because programs that use ``select`` cannot take more.
"""

from __future__ import annotations

import ctypes
import gc
import resource
from collections.abc import Callable
from typing import Final

import trio

DESCRIPTORS_WANTED: Final = 8192
"""More than all connections there may be, at two for each, and what the rest needs."""

_LARGE_BYTES: Final = 256 * 1024
"""From here on a block is the system's own: larger than the pages that are joined for readers all the
time, smaller than a long line."""

_HEAPS_MAX: Final = 2
"""One for the event loop, one for the writer's thread; others share."""

# The numbers of <malloc.h>.
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

_CYCLES_AFTER: Final = 20_000
"""Objects that came and stayed after which the youngest are searched for cycles. What the daemon holds
are values without any: at the usual 700 the search takes a tenth of the loop, and finds nothing."""

QUIET_SECONDS: Final = 0.5
"""The program that started the daemon mostly has a request at once, which must not wait for imports."""


def give_back_large_blocks() -> None:
    """Return freed large blocks to the system at once. Call it before threads are started."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_ARENA_MAX, _HEAPS_MAX)


def allow_many_descriptors() -> None:
    """Raise the soft limit as far as it is wanted and the hard one lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(DESCRIPTORS_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def look_for_cycles_seldom() -> None:
    """Search for cycles seldom from now on, and never among what exists now: modules and tables that
    stay. The little of it that is garbage is not worth the time it takes to find it.
    """
    gc.freeze()
    gc.set_threshold(_CYCLES_AFTER)
    gc.enable()


async def prepare_first_run(closing: trio.Event, load: Callable[[], None]) -> None:
    """Import in a thread what the first run needs and a start does not, shortly after the start, and
    start the fork server.

    A run that comes before does it itself. Nothing is done if ``closing`` is set before.

    Args:
        load: imports it.

    Raises:
        OSError: the fork server cannot be started.
    """
    with trio.move_on_after(QUIET_SECONDS):
        await closing.wait()
        return
    await trio.to_thread.run_sync(load)
    from nousd.tools.process.fork_server import fork_server

    await fork_server().prepare()
    _give_back_free_pages()


def _give_back_free_pages() -> None:
    """Return to the system what imports have used and freed, from between what stays."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
