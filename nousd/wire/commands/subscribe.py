"""The one line that a client may send on the event socket."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from nousd.wire.commands import Command
from nousd.wire.limits import KEEPALIVE_SECONDS_MAX, KEEPALIVE_SECONDS_MIN
from nousd.wire.objects.field_types import EventTypes, Name, OptionalCursor, View, ViewSeq

KeepaliveSeconds = Annotated[float, Meta(ge=KEEPALIVE_SECONDS_MIN, le=KEEPALIVE_SECONDS_MAX)]


class Subscribe(Command, frozen=True, kw_only=True):
    """Select the events that the event socket sends, and the cursor after which they start."""

    after: OptionalCursor = None
    session_id: Name | None = None
    run_id: Name | None = None
    types: EventTypes = "v1"
    view: View | None = None
    after_seq: ViewSeq | None = None
    keepalive_seconds: KeepaliveSeconds | None = None
    confirms: bool = False


def cursor(seq: int) -> str:
    """Return the cursor of the event with that sequence number."""
    return f"evt-{seq}"


def cursor_seq(text: str) -> int:
    """Return the sequence number of a cursor.

    Raises:
        ValueError: the text is not a cursor.
    """
    prefix, dash, digits = text.partition("-")
    if prefix != "evt" or not dash or not digits.isascii() or not digits.isdigit():
        raise ValueError(f"not a cursor: {text!r}")
    return int(digits)
