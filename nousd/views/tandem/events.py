"""Events of the log as the events of Tandem's stream.

Each type that has a counterpart has one function (``session_events``, ``message_events``); the others
are not told.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET

from nousd.views.tandem import message_events, session_events
from nousd.views.tandem.frames import FRAMES_MAX, Envelope, Frame
from nousd.views.tandem.values import milliseconds
from nousd.views.tandem.view_types import Seen, Views
from nousd.wire.codec.envelope import decode_event
from nousd.wire.commands.subscribe import cursor_seq
from nousd.wire.events import EVENT_TYPES

_VIEWS: Final[Views] = {**session_events.VIEWS, **message_events.VIEWS}

_DECODERS: Final = {EVENT_TYPES[struct]: msgspec.json.Decoder(struct) for struct in _VIEWS}

TELLING: Final = frozenset(_VIEWS)
"""The events that can become frames."""


def frames(seen: Seen) -> list[Frame]:
    """Returns what an event becomes, in order; at most ``FRAMES_MAX`` frames, mostly one."""
    view = _VIEWS.get(type(seen.event))
    if view is None:
        return []
    told = list(view(seen, seen.event))
    assert len(told) <= FRAMES_MAX
    return [
        Frame(type_, properties, _envelope(seen, index))
        for index, (type_, properties) in enumerate(told)
    ]


def told_again(frame: Frame) -> Frame:
    """Returns the frame of joined deltas for a reader that had some of them: not as one more piece of
    the text, but as the text.
    """
    properties = {key: value for key, value in frame.properties.items() if key != "delta"}
    return Frame(frame.type, properties, frame.envelope)


def _envelope(seen: Seen, index: int) -> Envelope:
    run_id = getattr(seen.event, "run_id", UNSET)
    return Envelope(
        event_id=f"evt-{seen.seq}.{index}",
        seq=seen.seq * FRAMES_MAX + index,
        occurred_at_ms=milliseconds(seen.ts),
        session_id=seen.event.session_id or None,
        run_id=None if run_id is UNSET else run_id,
    )


def seen(line: bytes) -> Seen | None:
    """Returns an event line as what can be told of it; None if nothing of its type is."""
    logged = decode_event(line)
    decoder = _DECODERS.get(logged.type)
    if decoder is None:
        return None
    return Seen(cursor_seq(logged.id), logged.ts, decoder.decode(logged.payload))
