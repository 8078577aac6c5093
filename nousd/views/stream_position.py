"""Ids of frames in a stream of events, and the positions from which readers continue.

An event of the log becomes a few frames, usually one. The id of a frame is a number that identifies both
the event and the frame: the event's number times ``FRAMES_MAX``, plus the frame's index. So a client
that lost its connection sends the last id that it received and continues with the next frame.
"""

from __future__ import annotations

from typing import Final, NamedTuple

FRAMES_MAX: Final = 8
"""Maximum frames of one event."""

_ID_DIGITS_MAX: Final = 18


class StreamPosition(NamedTuple):
    """A position in a stream of frames: after the first ``frames`` frames of the event ``seq``."""

    seq: int
    frames: int

    @property
    def after(self) -> int:
        """The number of the event after which to read the log."""
        return self.seq if self.frames >= FRAMES_MAX else max(0, self.seq - 1)


def position_after_event(seq: int) -> StreamPosition:
    """Return the position after all frames of an event."""
    return StreamPosition(seq, FRAMES_MAX)


def frame_id(seq: int, index: int) -> int:
    """Return the id of the frame at ``index`` of the event with that number."""
    return seq * FRAMES_MAX + index


def position_after_id(last_id: str) -> StreamPosition | None:
    """Return the position immediately after a frame; None if the text is not an id of a frame."""
    if not (last_id.isascii() and last_id.isdecimal() and len(last_id) <= _ID_DIGITS_MAX):
        return None
    seq, index = divmod(int(last_id), FRAMES_MAX)
    return StreamPosition(seq, index + 1)
