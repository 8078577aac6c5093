"""Rendering events as the bytes of server-sent events, and selecting the events of a stream.

A view supplies the content of frames. Framing, ids and positions of readers are the same for every view,
and this module knows no particular view.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from nousd.client.answers import ReceivedEvent
from nousd.event_window import Topic
from nousd.views.event_view import EventView, RenderedFrame
from nousd.views.stream_position import FRAMES_MAX, StreamPosition, frame_id
from nousd.wire.commands.subscribe import cursor_seq
from nousd.wire.events import EVENT_TYPES, AgentEnd, SessionDeleted

_RUN_END: Final = EVENT_TYPES[AgentEnd]
_DELETION: Final = EVENT_TYPES[SessionDeleted]

ENDING_TYPES: Final = frozenset({_RUN_END, _DELETION})
"""The types of events that can end a stream, even if a view has no frames for them."""

_COPIES: Final = 5
"""The memory of an event, as a multiple of its line's length: the line itself, and its frames, about
twice as long, once for streams of a run and once for others. Frames count even before they are
rendered."""


class StreamQuery(NamedTuple):
    """The events that a stream shows, and the view that renders them.

    Args:
        only_run: leave out events that belong to no run, except the deletion of the session.
    """

    view: EventView
    session_id: str | None = None
    run_id: str | None = None
    only_run: bool = False

    @property
    def topic(self) -> Topic:
        """The topic of the event window that has all events of this stream."""
        return Topic(self.session_id) if self.session_id is not None else Topic(None, self.run_id)

    def matches(self, event: RenderedEvent) -> bool:
        """Return whether the stream shows the event. If the session is named, a stream of a run also
        shows events of the session that belong to no run.
        """
        if self.session_id is not None and event.session_id != self.session_id:
            return False
        if self.run_id is None or event.run_id == self.run_id:
            return True
        is_of_session = event.run_id is None and self.session_id is not None
        return is_of_session and (event.is_deletion or not self.only_run)


class RenderedEvent:
    """An event with its frames as bytes, rendered for the first reader and kept for the others."""

    __slots__ = (
        "_joined_from",
        "_line",
        "_rendered",
        "_type",
        "is_deletion",
        "is_end",
        "run_id",
        "seq",
        "session_id",
        "size",
    )

    def __init__(self, received: ReceivedEvent) -> None:
        payload = received.payload
        self.seq = cursor_seq(received.id)
        self.session_id: str = payload.get("session_id", "")
        self.run_id: str | None = payload.get("run_id")
        self.is_deletion = received.type == _DELETION
        self.is_end = self.is_deletion or received.type == _RUN_END
        self.size = _COPIES * len(received.line)
        joined_from: str | None = payload.get("joined_from")
        self._joined_from = None if joined_from is None else cursor_seq(joined_from)
        self._line = received.line
        self._type = received.type
        self._rendered: dict[tuple[EventView, bool], bytes] = {}

    def data_after(self, position: StreamPosition, view: EventView, *, of_run: bool) -> bytes:
        """Return the frames that a reader at that position has not received yet."""
        if position.seq == self.seq:
            return b"".join(self.frames(view, of_run=of_run)[position.frames :])
        if self._joined_from is not None and position.seq >= self._joined_from:
            return b"".join(self.frames(view, of_run=of_run, is_repeat=True))
        data = self._rendered.get((view, of_run))
        if data is None:
            data = self._rendered[view, of_run] = b"".join(self.frames(view, of_run=of_run))
        return data

    def frames(
        self, view: EventView, *, of_run: bool = False, is_repeat: bool = False
    ) -> list[bytes]:
        """Render the event; the arguments are those of ``EventView.render``."""
        if self._type not in view.types:
            # The event is here for another view, or because it ends streams.
            return []
        frames = view.render(self._line, of_run=of_run, is_repeat=is_repeat)
        assert len(frames) <= FRAMES_MAX
        return [
            encode_frame(frame, frame_id(self.seq, index)) for index, frame in enumerate(frames)
        ]


def encode_frame(frame: RenderedFrame, id: int | None = None) -> bytes:
    """Return the bytes of a frame in a stream: LF line ends, and a single ``data:`` line."""
    data = b"data: " + frame.data + b"\n\n"
    if frame.type is not None:
        data = b"event: %s\n%s" % (frame.type.encode(), data)
    return data if id is None else b"id: %d\n%s" % (id, data)
