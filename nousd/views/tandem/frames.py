"""The frames of Tandem's event stream, and the types of the functions that render them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from nousd.wire.events import Event


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True):
    """The envelope that Tandem's event bus puts around an event. ``event_id`` is unique; clients drop an
    event without ``schema_version``.
    """

    event_id: str
    seq: int
    occurred_at_ms: int
    schema_version: int = msgspec.field(default_factory=lambda: 1)
    session_id: str | None = None
    run_id: str | None = None


class Frame(msgspec.Struct, frozen=True):
    """One event in the form of the contract."""

    type: str
    properties: dict[str, Any]
    envelope: Envelope | msgspec.UnsetType = msgspec.UNSET


class LoggedEvent(NamedTuple):
    """An event with its number and time in the log."""

    seq: int
    ts: str
    event: Event


FrameBody = tuple[str, dict[str, Any]]
"""The type and the properties of a frame."""

Renderer = Callable[[LoggedEvent, Any], Iterator[FrameBody]]
"""Renders an event without regard to others, so that a stream can begin anywhere."""

Renderers = Mapping[type[Event], Renderer]
"""type of an event -> its renderer."""


def run_of(event: Any) -> dict[str, str]:
    """Return the property with the id of an event's run; empty if the event belongs to no run."""
    run_id = getattr(event, "run_id", UNSET)
    return {} if run_id is UNSET else {"runID": run_id}
