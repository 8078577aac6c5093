"""Which connected clients have declared that they answer requests and questions.

A declaration belongs to a subscription: it counts for what that subscription shows, and as long as it is
the current one of a connection that is open. What is asked, and of whom the answer comes, is not known
here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from nousd.store.records import EventFilter


class Audience(NamedTuple):
    """Where a request is seen: in the events of a session, and of a run if it belongs to one."""

    session_id: str
    run_id: str | None


class Approvers:
    """All clients that declared that they answer."""

    def __init__(self) -> None:
        self._declared: dict[object, EventFilter] = {}

    def declare(self, client: object, wanted: EventFilter) -> None:
        """Note that a client answers what is asked in the events it wants; the last one counts."""
        self._declared[client] = wanted

    def leave(self, client: object) -> None:
        """Forget what a client has declared, if anything."""
        self._declared.pop(client, None)

    @property
    def count(self) -> int:
        """How many clients have declared that they answer."""
        return len(self._declared)

    def can_answer(self, audiences: Iterable[Audience]) -> bool:
        """Whether any client has declared that it answers what is asked in one of those places."""
        return any(
            wanted.session_id in (None, audience.session_id)
            and wanted.run_id in (None, audience.run_id)
            for audience in audiences
            for wanted in self._declared.values()
        )
