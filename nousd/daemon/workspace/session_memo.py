"""Values that are read once when a session starts to work, and then stay.

A model could change what lies in the workdir, so nothing that decides on it is read again behind its
back. A session starts anew when the daemon does, and when it is attached to a workspace.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

SESSIONS_MAX: Final = 65_536
"""Sessions that are remembered; one that was not used for longest would read anew."""


class SessionMemo(Generic[T]):
    """Remembers for each session what was there when it started.

    Args:
        read: gives what is there now.
    """

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._kept: OrderedDict[str, T] = OrderedDict()
        self._last: T | None = None

    async def of(self, session_id: str) -> T:
        """Return the value of a session, which may start now."""
        kept = self.known(session_id)
        return await self._start(session_id) if kept is None else kept

    def known(self, session_id: str) -> T | None:
        """Return the value of a session; None if it has not started."""
        kept = self._kept.get(session_id)
        if kept is not None:
            self._kept.move_to_end(session_id)
        return kept

    def forget(self, session_id: str) -> None:
        """Let a session start anew."""
        self._kept.pop(session_id, None)

    async def _start(self, session_id: str) -> T:
        read = await self._read()
        # Mostly it is what another session has: kept once, it costs nothing.
        read = self._last if self._last is not None and self._last == read else read
        self._last = read
        # Somebody else may have asked for the same session meanwhile: the first counts.
        kept = self._kept.setdefault(session_id, read)
        if len(self._kept) > SESSIONS_MAX:
            self._kept.popitem(last=False)
        return kept
