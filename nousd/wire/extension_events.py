"""What clients are told of extensions where there is no run that could carry it."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from nousd.wire.event_base import Event

InputKind = Literal["prompt", "steer", "follow_up", "message"]
"""What a text was sent as; a ``message`` was to be appended."""


class Remark(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong with an extension; with a run it would be a ``warning`` event."""

    code: str
    message: str


class InputHandled(Event, frozen=True, kw_only=True):
    """An extension dealt with a text that a client sent: no run started, nothing was queued.

    ``session_id`` is "" where there was no session yet. ``text`` is what the client sent, or what other
    extensions made of it (``changed_by``); ``reply`` is what it was told, or its beginning.
    """

    kind: InputKind
    text: str
    extension: str
    reply: str
    changed_by: tuple[str, ...] | UnsetType = UNSET
    client_message_id: str | UnsetType = UNSET
    text_ref: str | UnsetType = UNSET
    text_bytes: int | UnsetType = UNSET
