"""Threads for access to the user's directories, which may be remote and not respond.

Such a thread blocks until its disk responds, even if its caller has given up. So these threads have a
limit of their own: if all of them hang, other work still finds a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar, TypeVarTuple, cast

import trio

from nousd.errors import FoldersSilent

THREADS_MAX: Final = 32
"""Maximum number of simultaneous lookups in the process; each takes some milliseconds if the disk
responds."""

WAIT_SECONDS: Final = 10.0
"""How long to wait for a free thread before the others count as hanging."""

T = TypeVar("T")
Args = TypeVarTuple("Args")


_limiter: Final[trio.lowlevel.RunVar[trio.CapacityLimiter]] = trio.lowlevel.RunVar("folders")
"""The limiter of this event loop: a thread that hangs when its loop ends never releases its token."""


class _Places:
    """The limiter of these threads, with the two methods that ``trio.to_thread`` needs."""

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        try:
            limiter = _limiter.get()
        except LookupError:
            limiter = trio.CapacityLimiter(THREADS_MAX)
            _limiter.set(limiter)
        with trio.move_on_after(WAIT_SECONDS) as limit:
            await limiter.acquire_on_behalf_of(borrower)
        if limit.cancelled_caught:
            raise FoldersSilent(
                f"folders_do_not_answer: {THREADS_MAX} looks at folders wait for their disks; is a"
                " mount gone?"
            )

    def release_on_behalf_of(self, borrower: object) -> None:
        _limiter.get().release_on_behalf_of(borrower)


_places: Final = _Places()


async def in_folder_thread(
    function: Callable[[*Args], T], *args: *Args, may_be_left: bool = False
) -> T:
    """Return the result of ``function``, called in such a thread.

    Args:
        may_be_left: whether the thread is abandoned when its caller is cancelled; ``function`` must then
            have no side effects.

    Raises:
        FoldersSilent: no thread was free in time.
    """
    limiter = cast("trio.CapacityLimiter", _places)
    return await trio.to_thread.run_sync(
        function, *args, abandon_on_cancel=may_be_left, limiter=limiter
    )
