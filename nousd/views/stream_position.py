"""Ids of frames in a stream of events, and the positions that readers continue from.

An event of the log becomes some frames, mostly one. The id of a frame is a number from which both the
event and the frame follow: the event's number times ``FRAMES_MAX``, plus the frame's index. So a client
that lost its connection sends the last id it saw and continues with the very next frame.
"""

from __future__ import annotations

from typing import Final, NamedTuple

FRAMES_MAX: Final = 8
"""The most frames that one event can become."""

_ID_DIGITS_MAX: Final = 18


class StreamPosition(NamedTuple):
    """A position in a stream of frames: after the first ``frames`` frames of the event ``seq``."""

    seq: int
    frames: int

    @property
    def after(self) -> int:
        """The number of the event after which the log is to be read."""
        return self.seq if self.frames >= FRAMES_MAX else max(0, self.seq - 1)


def position_after_event(seq: int) -> StreamPosition:
    """Return the position after all frames of an event."""
    return StreamPosition(seq, FRAMES_MAX)


def frame_id(seq: int, index: int) -> int:
    """Return the id of the frame at ``index`` of the event with that number."""
    return seq * FRAMES_MAX + index


def position_after_id(last_id: str) -> StreamPosition | None:
    """Return the position right after a frame; None if the text is not an id of a frame."""
    if not (last_id.isascii() and last_id.isdecimal() and len(last_id) <= _ID_DIGITS_MAX):
        return None
    seq, index = divmod(int(last_id), FRAMES_MAX)
    return StreamPosition(seq, index + 1)
