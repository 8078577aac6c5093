"""Threads that look into the user's folders, which may be far away and not answer.

Such a thread stays until its disk answers, also when whoever waited for it has given up. So they have
places of their own: should all of them hang, what needs no folder still finds a thread. What is looked
for is not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar, TypeVarTuple, cast

import trio

from nousd.errors import FoldersSilent

THREADS_MAX: Final = 32
"""Looks at folders that go on at once in the whole process; each is some milliseconds where the disk
answers."""

WAIT_SECONDS: Final = 10.0
"""How long a place is waited for, after which the others are taken to hang."""

T = TypeVar("T")
Args = TypeVarTuple("Args")


class _Places:
    """The limiter of those threads, with the two methods that ``trio.to_thread`` asks for."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(THREADS_MAX)

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        with trio.move_on_after(WAIT_SECONDS) as waiting:
            await self._limiter.acquire_on_behalf_of(borrower)
        if waiting.cancelled_caught:
            raise FoldersSilent(
                f"folders_do_not_answer: {THREADS_MAX} looks at folders wait for their disks; is a"
                " mount gone?"
            )

    def release_on_behalf_of(self, borrower: object) -> None:
        self._limiter.release_on_behalf_of(borrower)


_places: Final = _Places()


async def in_folder_thread(
    look: Callable[[*Args], T], *args: *Args, may_be_left: bool = False
) -> T:
    """Return the result of ``look``.

    Args:
        may_be_left: whether the thread is let go when its caller is cancelled; what it does then must
            leave nothing behind.

    Raises:
        FoldersSilent: too many others hang.
    """
    limiter = cast("trio.CapacityLimiter", _places)
    return await trio.to_thread.run_sync(
        look, *args, abandon_on_cancel=may_be_left, limiter=limiter
    )
