"""The one line that a client may send on the event socket."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from nousd.wire.commands import Command
from nousd.wire.limits import KEEPALIVE_SECONDS_MAX, KEEPALIVE_SECONDS_MIN
from nousd.wire.objects.words import EventTypes, Name, OptionalCursor

KeepaliveSeconds = Annotated[float, Meta(ge=KEEPALIVE_SECONDS_MIN, le=KEEPALIVE_SECONDS_MAX)]


class Subscribe(Command, frozen=True, kw_only=True):
    """Chooses which events follow, and from where.

    Args:
        after: a cursor such as ``evt-120``; events after it are replayed, then live ones follow.
            Without it only live ones follow. ``evt-0`` replays everything kept.
        session_id: only this session's events.
        run_id: only this run's events.
        types: ``v1`` (the thirteen frozen ones), ``all``, or a list of names.
        confirms: the client answers requests for permission and questions in what it subscribes to,
            for as long as it is connected and says nothing else.
        keepalive_seconds: after that long without a line, one ``keepalive`` is sent; without it, none.
    """

    after: OptionalCursor = None
    session_id: Name | None = None
    run_id: Name | None = None
    types: EventTypes = "v1"
    keepalive_seconds: KeepaliveSeconds | None = None
    confirms: bool = False


def cursor(seq: int) -> str:
    """Returns the cursor of the event with that sequence number."""
    return f"evt-{seq}"


def cursor_seq(text: str) -> int:
    """Returns the sequence number of a cursor.

    Raises:
        ValueError: it is no cursor.
    """
    prefix, dash, digits = text.partition("-")
    if prefix != "evt" or not dash or not digits.isascii() or not digits.isdigit():
        raise ValueError(f"not a cursor: {text!r}")
    return int(digits)
