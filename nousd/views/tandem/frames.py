"""The frames of Tandem's event stream, as the contract has them."""

from __future__ import annotations

from typing import Any

import msgspec


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
    """One event as the contract has it."""

    type: str
    properties: dict[str, Any]
    envelope: Envelope | msgspec.UnsetType = msgspec.UNSET
