"""The connected clients that have declared that they answer approvals and questions.

A declaration belongs to a subscription. It covers the events that the subscription shows, for as long as
that is the current subscription of an open connection.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from nousd.store.records import EventFilter


class Audience(NamedTuple):
    """The subscribers that see a request: those of its session, and of its run if it belongs to one."""

    session_id: str
    run_id: str | None


class Approvers:
    """All clients that declared that they answer."""

    def __init__(self) -> None:
        self._declared: dict[object, EventFilter] = {}

    def declare(self, client: object, event_filter: EventFilter) -> None:
        """Record that a client answers the requests among its wanted events, replacing its earlier
        declaration.
        """
        self._declared[client] = event_filter

    def leave(self, client: object) -> None:
        """Forget the declaration of a client, if it made one."""
        self._declared.pop(client, None)

    @property
    def count(self) -> int:
        """Return the number of declared clients."""
        return len(self._declared)

    def can_answer(self, audiences: Iterable[Audience]) -> bool:
        """Return whether a declared client can see requests for one of these audiences."""
        return any(
            event_filter.session_id in (None, audience.session_id)
            and event_filter.run_id in (None, audience.run_id)
            for audience in audiences
            for event_filter in self._declared.values()
        )
