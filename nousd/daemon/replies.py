"""Results of command handlers: a response now, or one that waits for its commit."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

import msgspec

from nousd.daemon.eventlog.log import CommitHandle
from nousd.wire.responses import Response


class Deferred(msgspec.Struct, frozen=True):
    """A response that is queued for its client in the step in which ``handle`` is committed."""

    handle: CommitHandle
    payload: Response


_REPLIES_KEPT: Final = 1024
"""More acknowledgements than can wait for their commits at once."""


class RecentReplies:
    """The newest acknowledgements, by idempotency key: a repeated request gets the first one.

    An acknowledgement whose commit fails is forgotten.
    """

    def __init__(self) -> None:
        self._replies: OrderedDict[tuple[str, str], Deferred] = OrderedDict()

    def get(self, key: tuple[str, str]) -> Deferred | None:
        """Return the acknowledgement of a request, if it is known."""
        return self._replies.get(key)

    def remember(self, key: tuple[str, str], reply: Deferred) -> None:
        """Keep an acknowledgement; drop the oldest one if there are too many."""
        self._replies[key] = reply

        def on_resolved(handle: CommitHandle) -> None:
            if handle.failure is not None:
                self._replies.pop(key, None)

        reply.handle.when_resolved(on_resolved)
        while len(self._replies) > _REPLIES_KEPT:
            self._replies.popitem(last=False)


class Plain(msgspec.Struct, frozen=True):
    """A response whose payload is not a struct of ``nousd.wire``."""

    type: str
    payload: Any


Reply = Response | Deferred | Plain
