"""Settings of the daemon process: memory, descriptors, garbage collection, deferred imports.

By default glibc takes the size of a freed block as a hint to keep blocks of that size for later, and
keeps a heap for each thread. After one flood of long lines the daemon would hold hundreds of megabytes
that it does not use. Other C libraries have no ``mallopt``, and their settings stay unchanged.

The usual soft limit of 1,024 descriptors is below the sum of the bounds on connections: many HTTP
readers would use up the descriptors that the sockets and the log need. Programs that tools start get
their own limit (``tools/process/first_process``), because programs that use ``select`` cannot
handle more.
"""

from __future__ import annotations

import ctypes
import gc
import resource
from collections.abc import Callable
from typing import Final

import trio

DESCRIPTORS_WANTED: Final = 8192
"""Enough for the maximum number of connections, at two descriptors each, and for everything else."""

_LARGE_BYTES: Final = 256 * 1024
"""Size from which a block is a separate mapping, returned to the system when it is freed: larger than
the pages that are constantly joined for readers, smaller than a long line."""

_HEAPS_MAX: Final = 2
"""Maximum heaps: one for the event loop, one for the writer's thread; other threads share them."""

# The numbers of <malloc.h>.
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

_CYCLES_AFTER: Final = 20_000
"""Net number of new objects after which the youngest are searched for cycles. The daemon's values have
none: at the usual 700 the search takes a tenth of the event loop's time, and finds nothing."""

QUIET_SECONDS: Final = 0.5
"""How long imports are deferred: the program that started the daemon usually sends a request at once,
which must not wait for them."""


def give_back_large_blocks() -> None:
    """Return freed large blocks to the system at once. Call it before threads are started."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_ARENA_MAX, _HEAPS_MAX)


def allow_many_descriptors() -> None:
    """Raise the soft limit to ``DESCRIPTORS_WANTED``, or as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(DESCRIPTORS_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def look_for_cycles_seldom() -> None:
    """Search for cycles seldom from now on, and never among the objects that exist now: these are
    modules and tables that stay. Finding the little garbage among them is not worth the time.
    """
    gc.freeze()
    gc.set_threshold(_CYCLES_AFTER)
    gc.enable()


async def prepare_first_run(closing: trio.Event, load: Callable[[], None]) -> None:
    """Shortly after the start, import in a thread the modules that only a run needs, and start the fork
    server.

    A run that begins earlier does this itself. Do nothing if ``closing`` is set first.

    Args:
        load: imports the modules.

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
    """Return to the system the memory that imports have freed between blocks that are still in use."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
