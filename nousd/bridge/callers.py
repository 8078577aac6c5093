"""Known clients, told apart by their User-Agent where they contradict each other.

Each row says what a client needs that the engine's own behaviour does not give it. Who is not here gets
what the engine does.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Caller(NamedTuple):
    """What is particular about a client.

    Args:
        takes_reply_object: ``prompt_sync`` answers it an object with ``reply`` instead of all messages.
        closes_connections: it reuses a connection that it cannot use any more, so none is kept.
    """

    takes_reply_object: bool = False
    closes_connections: bool = False


ENGINE: Final = Caller()

_CALLERS: Final[tuple[tuple[str, Caller], ...]] = (
    # tandem-client of PyPI, async and sync alike: the sync one has a new event loop for each call.
    ("python-httpx/", Caller(takes_reply_object=True, closes_connections=True)),
    # @frumu/tandem-client of npm, on the fetch of Node.
    ("node", Caller(takes_reply_object=True)),
)
"""beginning of a User-Agent -> who that is."""


def caller_of(user_agent: str) -> Caller:
    """Returns who a User-Agent means."""
    for beginning, caller in _CALLERS:
        if user_agent.startswith(beginning):
            return caller
    return ENGINE
