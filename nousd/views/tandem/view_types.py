"""What a function that tells an event is given, and gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from msgspec import UNSET

from nousd.wire.commands.subscribe import cursor_seq
from nousd.wire.events import Event


class Seen(NamedTuple):
    """An event with what its line says beside the payload."""

    seq: int
    ts: str
    event: Event

    @property
    def joined_from(self) -> int | None:
        """The number of the first of the deltas that it stands for, if it does."""
        first = getattr(self.event, "joined_from", UNSET)
        return None if first is UNSET else cursor_seq(first)


Told = tuple[str, dict[str, Any]]
"""Type and properties of a frame."""

View = Callable[[Seen, Any], Iterator[Told]]
"""Tells an event; looks at nothing else, so that a stream can begin anywhere."""

Views = Mapping[type[Event], View]
"""type of an event -> what tells it."""


def run_of(event: Any) -> dict[str, str]:
    """Returns the property that names an event's run, if it has one."""
    run_id = getattr(event, "run_id", UNSET)
    return {} if run_id is UNSET else {"runID": run_id}
