"""Values that are read once, when a session starts to work, and then stay the same.

A model could change files in the workspace, so files that control it are not read again without the
user's knowledge. A session starts again when the daemon does, and when it is attached to a workspace.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

SESSIONS_MAX: Final = 65_536
"""Maximum number of remembered sessions; the least recently used one is read again."""


class SessionMemo(Generic[T]):
    """Remembers the value of each session from its start.

    Args:
        read: reads the current value.
    """

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._values: OrderedDict[str, T] = OrderedDict()
        self._last: T | None = None

    async def of(self, session_id: str) -> T:
        """Return the value of a session; read it now if the session has not started."""
        value = self.find(session_id)
        return await self._start(session_id) if value is None else value

    def find(self, session_id: str) -> T | None:
        """Return the value of a session; None if it has not started."""
        value = self._values.get(session_id)
        if value is not None:
            self._values.move_to_end(session_id)
        return value

    def forget(self, session_id: str) -> None:
        """Let a session start anew."""
        self._values.pop(session_id, None)

    async def _start(self, session_id: str) -> T:
        read = await self._read()
        # Usually it equals the last value, and then both sessions share one object.
        read = self._last if self._last is not None and self._last == read else read
        self._last = read
        # Another caller may have read it for the same session meanwhile: the first value counts.
        value = self._values.setdefault(session_id, read)
        if len(self._values) > SESSIONS_MAX:
            self._values.popitem(last=False)
        return value
