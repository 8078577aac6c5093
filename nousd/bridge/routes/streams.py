"""Streams of events: of everything, of a session, of a run."""

from __future__ import annotations

import time
from typing import Final

import msgspec
from starlette.responses import Response

from nousd.bridge.streams import chunks, event_stream, greeting, place_asked_for
from nousd.bridge.table import Call, Row
from nousd.bridge.window import Wanted
from nousd.views.tandem.frames import FRAMES_MAX, Frame, Place


class EventQuery(
    msgspec.Struct, frozen=True, rename={"session_id": "sessionID", "run_id": "runID"}
):
    """Which events a stream is to have, and behind which it begins: the id of a frame, or a cursor."""

    session_id: str | None = None
    run_id: str | None = None
    after: str | None = None


async def _events(call: Call) -> Response:
    wanted = Wanted(call.query.session_id or None, call.query.run_id or None)
    head = call.window.head
    place = place_asked_for(call.request.headers, call.query.after, head=head)
    hello = greeting(
        (
            Frame("server.connected", {}),
            Frame(
                "engine.lifecycle.ready",
                {"status": "ready", "transport": "sse", "timestamp_ms": int(time.time() * 1000)},
            ),
        ),
        head if place is None else None,
    )
    return event_stream(chunks(call.window, wanted, place or Place(head, FRAMES_MAX), hello))


ROWS: Final = (
    Row(
        method="GET",
        path="/event",
        handler=_events,
        summary="Events as they happen, or behind one that was seen.",
        sends=("subscribe",),
        replies={200: str},
        query=EventQuery,
        aliases=("/global/event",),
    ),
)
