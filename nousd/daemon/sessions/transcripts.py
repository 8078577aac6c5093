"""The newest of sessions' transcripts, as they were read last: kept while nothing happens to a session.

Who shows a session asks for it again and again, and the log is read in a thread. Whatever a transcript
is made of is an event that makes another state of its session. So what was read for a committed state
is right for as long as the session has that very state.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec

from nousd.machine.session.state import SessionState
from nousd.wire.codec.envelope import encode_json
from nousd.wire.responses import Messages
from nousd.wire.responses.runs import RunRecord

KEPT_SESSIONS_MAX: Final = 32
KEPT_BYTES_MAX: Final = 2 * 1024 * 1024
"""What is kept at most, in all, as JSON; a transcript that is longer is not kept."""


class Newest(msgspec.Struct, frozen=True):
    """The newest messages of a session, and those of its runs that failed."""

    transcript: Messages
    failed_runs: tuple[RunRecord, ...]


class _Kept(msgspec.Struct, frozen=True):
    state: SessionState
    limit: int
    newest: Newest
    size: int


class Transcripts:
    """A cache of transcripts."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._bytes = 0

    def find(self, state: SessionState, limit: int) -> Newest | None:
        """Return the cached transcript of that very state, with at most that many messages."""
        kept = self._kept.get(state.session_id)
        if kept is None or kept.state is not state or kept.limit != limit:
            return None
        self._kept.move_to_end(state.session_id)
        return kept.newest

    def keep(self, state: SessionState, limit: int, newest: Newest) -> None:
        """Remember what was read for a state, and forgets the oldest past the bounds."""
        self.forget(state.session_id)
        size = len(encode_json(newest))
        if size > KEPT_BYTES_MAX:
            # It would push out all others, and itself.
            return
        self._kept[state.session_id] = _Kept(state, limit, newest, size)
        self._bytes += size
        while len(self._kept) > KEPT_SESSIONS_MAX or self._bytes > KEPT_BYTES_MAX:
            self.forget(next(iter(self._kept)))

    def forget(self, session_id: str) -> None:
        """Drop the cache of a session."""
        kept = self._kept.pop(session_id, None)
        if kept is not None:
            self._bytes -= kept.size
