"""Frames of an event stream, and the numbers by which a client comes back.

Each of our events becomes some frames, mostly one. A frame's id is a number from which both can be
computed: the event's own number times ``FRAMES_MAX``, plus the frame's place. So a client that was cut
off says the last id it saw, and goes on with the very next frame.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

FRAMES_MAX: Final = 8
"""Frames that one event becomes at most."""

_ID_DIGITS_MAX: Final = 18


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the bus of the engine says of an event. ``event_id`` is unique; clients drop an event without
    ``schema_version``.
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


class Place(NamedTuple):
    """A place in a stream of frames: behind the first ``seen`` frames of the event ``seq``."""

    seq: int
    seen: int

    @property
    def after(self) -> int:
        """The number of the event after which the log is to be read for it."""
        return self.seq if self.seen >= FRAMES_MAX else max(0, self.seq - 1)


def frame_id(seq: int, index: int) -> int:
    """Returns the id of the frame at ``index`` of the event with that number."""
    return seq * FRAMES_MAX + index


def place_of(last_id: str) -> Place | None:
    """Returns the place right behind a frame; None if the text is no id of ours."""
    if not (last_id.isascii() and last_id.isdecimal() and len(last_id) <= _ID_DIGITS_MAX):
        return None
    seq, index = divmod(int(last_id), FRAMES_MAX)
    return Place(seq, index + 1)


def encoded(frame: Frame, id: int | None = None) -> bytes:
    """Returns a frame as the bytes of a stream: LF only, one ``data:`` line."""
    data = b"data: " + msgspec.json.encode(frame) + b"\n\n"
    return data if id is None else b"id: %d\n%s" % (id, data)
