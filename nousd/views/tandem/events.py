"""Rendering events of the log as the frames of Tandem's event stream.

Each type of event that has a counterpart has one function (``session_events``, ``message_events``);
events of other types have no frames.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET

from nousd.views.event_view import EventView, RenderedFrame
from nousd.views.stream_position import FRAMES_MAX, frame_id
from nousd.views.tandem import message_events, session_events
from nousd.views.tandem.frames import Envelope, Frame, LoggedEvent, Renderers
from nousd.views.tandem.runs import to_run_frame
from nousd.views.tandem.values import milliseconds
from nousd.wire.codec.decoding import json_decoder
from nousd.wire.codec.envelope import decode_event
from nousd.wire.commands.subscribe import cursor_seq
from nousd.wire.events import EVENT_TYPES

_RENDERERS: Final[Renderers] = {**session_events.RENDERERS, **message_events.RENDERERS}

_DECODERS: Final = {EVENT_TYPES[struct]: json_decoder(struct) for struct in _RENDERERS}


class _TandemView:
    """The view in Tandem's vocabulary."""

    types = frozenset(_DECODERS)
    keepalive = None

    def hello(self, now_ms: int, run_id: str | None = None) -> list[RenderedFrame]:
        """Return the frames that tell Tandem's clients that a stream has begun."""
        if run_id is not None:
            return _encode([Frame("run.stream.connected", {"runID": run_id})])
        ready = {"status": "ready", "transport": "sse", "timestamp_ms": now_ms}
        return _encode([Frame("server.connected", {}), Frame("engine.lifecycle.ready", ready)])

    def render(
        self, line: bytes, *, of_run: bool = False, is_repeat: bool = False
    ) -> list[RenderedFrame]:
        """Return the frames of an event."""
        logged = decode_line(line)
        frames = [] if logged is None else frames_of(logged)
        if is_repeat:
            frames = [_without_delta(frame) for frame in frames]
        if of_run:
            frames = [to_run_frame(frame) for frame in frames]
        return _encode(frames)


TANDEM: Final[EventView] = _TandemView()


def decode_line(line: bytes) -> LoggedEvent | None:
    """Decode the event of a line; return None if its type has no frames."""
    logged = decode_event(line)
    decoder = _DECODERS.get(logged.type)
    if decoder is None:
        return None
    return LoggedEvent(cursor_seq(logged.id), logged.ts, decoder.decode(logged.payload))


def frames_of(logged: LoggedEvent) -> list[Frame]:
    """Return the frames of an event, in order."""
    render = _RENDERERS.get(type(logged.event))
    if render is None:
        return []
    bodies = list(render(logged, logged.event))
    assert len(bodies) <= FRAMES_MAX
    return [
        Frame(type_, properties, _envelope(logged, index))
        for index, (type_, properties) in enumerate(bodies)
    ]


def _without_delta(frame: Frame) -> Frame:
    """Return a frame of joined deltas for a reader that already has some of them. Without ``delta``, the
    frame's text replaces the reader's text; a delta would be appended to it.
    """
    properties = {key: value for key, value in frame.properties.items() if key != "delta"}
    return Frame(frame.type, properties, frame.envelope)


def _envelope(logged: LoggedEvent, index: int) -> Envelope:
    run_id = getattr(logged.event, "run_id", UNSET)
    return Envelope(
        event_id=f"evt-{logged.seq}.{index}",
        seq=frame_id(logged.seq, index),
        occurred_at_ms=milliseconds(logged.ts),
        session_id=logged.event.session_id or None,
        run_id=None if run_id is UNSET else run_id,
    )


def _encode(frames: list[Frame]) -> list[RenderedFrame]:
    # Tandem's clients read the type from the JSON.
    return [RenderedFrame(msgspec.json.encode(frame)) for frame in frames]
