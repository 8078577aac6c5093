"""Types of the functions that render an event for Tandem."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from msgspec import UNSET

from nousd.wire.events import Event


class LoggedEvent(NamedTuple):
    """An event with its number and time in the log."""

    seq: int
    ts: str
    event: Event


FrameBody = tuple[str, dict[str, Any]]
"""The type and the properties of a frame."""

Renderer = Callable[[LoggedEvent, Any], Iterator[FrameBody]]
"""Renders an event by itself, so that a stream can begin anywhere."""

Renderers = Mapping[type[Event], Renderer]
"""type of an event -> what renders it."""


def run_of(event: Any) -> dict[str, str]:
    """Return the property that names an event's run, if it has one."""
    run_id = getattr(event, "run_id", UNSET)
    return {} if run_id is UNSET else {"runID": run_id}
