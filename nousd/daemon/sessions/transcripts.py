"""A cache of the newest messages of sessions.

Clients that show a session read it again and again, and each read of the log takes a thread. Every
event that changes a transcript also makes a new state of the session, so a cached transcript is valid
for exactly the committed state it was read for.
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
"""Maximum size of the cache, as JSON; a longer transcript is not cached."""


class NewestMessages(msgspec.Struct, frozen=True):
    """The newest messages of a session, and its runs that failed."""

    transcript: Messages
    failed_runs: tuple[RunRecord, ...]


class _CachedTranscript(msgspec.Struct, frozen=True):
    state: SessionState
    limit: int
    newest: NewestMessages
    size: int


class Transcripts:
    """A cache of transcripts."""

    def __init__(self) -> None:
        self._cache: OrderedDict[str, _CachedTranscript] = OrderedDict()
        self._bytes = 0

    def find(self, state: SessionState, limit: int) -> NewestMessages | None:
        """Return the cached transcript of exactly that state, with at most that many messages."""
        cached = self._cache.get(state.session_id)
        if cached is None or cached.state is not state or cached.limit != limit:
            return None
        self._cache.move_to_end(state.session_id)
        return cached.newest

    def keep(self, state: SessionState, limit: int, newest: NewestMessages) -> None:
        """Cache the transcript of a state, and drop the oldest beyond the bounds."""
        self.forget(state.session_id)
        size = len(encode_json(newest))
        if size > KEPT_BYTES_MAX:
            # It would displace all others, and then itself.
            return
        self._cache[state.session_id] = _CachedTranscript(state, limit, newest, size)
        self._bytes += size
        while len(self._cache) > KEPT_SESSIONS_MAX or self._bytes > KEPT_BYTES_MAX:
            self.forget(next(iter(self._cache)))

    def forget(self, session_id: str) -> None:
        """Drop the cached transcript of a session."""
        cached = self._cache.pop(session_id, None)
        if cached is not None:
            self._bytes -= cached.size
