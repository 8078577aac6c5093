"""Streams of events: of everything, of a session, of a run."""

from __future__ import annotations

import time
from collections import deque
from itertools import islice
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta
from starlette.responses import Response

from nousd.bridge.replies import NOT_FOUND, HttpError, json_reply
from nousd.bridge.routing.route import Call, Row
from nousd.bridge.stream.sse import event_stream, events_in, greeting, only, place_asked_for, told
from nousd.bridge.stream.window import Wanted
from nousd.client.client import Client
from nousd.views.tandem.frames import FRAMES_MAX, Frame, Place
from nousd.wire.codec.envelope import decode_event
from nousd.wire.commands import GetEvents
from nousd.wire.commands.subscribe import cursor_seq
from nousd.wire.objects.words import EventTypes

EVENTS_MAX: Final = 10_000
"""Frames in one answer that is no stream; the next ones are behind the last."""


class EventQuery(
    msgspec.Struct, frozen=True, rename={"session_id": "sessionID", "run_id": "runID"}
):
    """Which events a stream is to have, and behind which it begins: the id of a frame, or a cursor."""

    session_id: str | None = None
    run_id: str | None = None
    after: str | None = None


class RunEventQuery(msgspec.Struct, frozen=True):
    """Behind which the events begin: the id of a frame, or a cursor; ``since_seq`` is the ``seq`` of an
    envelope, which is the same number. ``tail``: of a list only so many, the last ones.
    """

    after: str | None = None
    since_seq: Annotated[int, Meta(ge=0, le=2**62)] | None = None
    tail: Annotated[int, Meta(ge=0, le=EVENTS_MAX)] | None = None

    @property
    def behind(self) -> str | None:
        """Behind which the events begin."""
        if self.after is None and self.since_seq is not None:
            return str(self.since_seq)
        return self.after


async def _events(call: Call) -> Response:
    """A stream of a run that names no place begins with the run: who asks for it has just started it, or
    comes back to it without knowing how far it was.
    """
    query: EventQuery = call.query
    wanted = Wanted(query.session_id or None, query.run_id or None)
    head = call.window.head
    place = place_asked_for(call.request.headers, query.after, head=head)
    if place is None and wanted.run_id is not None:
        start = await _first(call.daemon, wanted.run_id)
        place = None if start is None else Place(start.seq, 0)
    ready = {"status": "ready", "transport": "sse", "timestamp_ms": int(time.time() * 1000)}
    hello = (Frame("server.connected", {}), Frame("engine.lifecycle.ready", ready))
    first = greeting(hello, head if place is None else None)
    return event_stream(
        told(call.window, call.services.presence, wanted, place or Place(head, FRAMES_MAX), first)
    )


class _Owner(msgspec.Struct):
    session_id: str


class _First(NamedTuple):
    """The first event of its kind."""

    seq: int
    session_id: str


async def _first(daemon: Client, run_id: str, types: EventTypes = "all") -> _First | None:
    """Returns a run's first event of these types; None if there is none."""
    page = await daemon.ask(GetEvents(run_id=run_id, types=types, limit=1))
    if not page.events:
        return None
    event = decode_event(bytes(page.events[0]))
    owner = msgspec.json.decode(event.payload, type=_Owner)
    return _First(cursor_seq(event.id), owner.session_id)


async def _run_events(call: Call) -> Response:
    """A list of what was told so far, or a stream that ends with the run."""
    run_id = call.path["run_id"]
    first = await _first(call.daemon, run_id)
    if first is None:
        raise HttpError(NOT_FOUND, "there is no such run")
    start = Place(first.seq, 0)
    query: RunEventQuery = call.query
    asked = place_asked_for(call.request.headers, query.behind, head=call.window.head)
    place = max(asked or start, start)
    wanted = Wanted(first.session_id, run_id, only_run=True)
    if "text/event-stream" not in call.request.headers.get("accept", ""):
        return json_reply(await _listed(call, wanted, place))
    hello = greeting((Frame("run.stream.connected", {"runID": run_id}),), None)
    end = await _first(call.daemon, run_id, ("agent_end",))
    if end is not None and end.seq <= place.after:
        # Whoever has the end and comes back, as browsers do by themselves, would wait for ever.
        return event_stream(only(hello))
    return event_stream(
        told(call.window, call.services.presence, wanted, place, hello, ends_with_run=True)
    )


async def _listed(call: Call, wanted: Wanted, place: Place) -> list[msgspec.Raw]:
    tail: int | None = call.query.tail
    listed: deque[msgspec.Raw] = deque(maxlen=tail)
    while place.after < call.window.head and (tail is not None or len(listed) < EVENTS_MAX):
        page = await call.window.page_behind(place, wanted)
        listed += map(msgspec.Raw, events_in(page.data))
        place = page.place
        if page.has_end:
            break
    return list(islice(listed, EVENTS_MAX))


ROWS: Final = (
    Row(
        method="GET",
        path="/event",
        handler=_events,
        summary="Events as they happen, of a run from its beginning, or behind one that was seen.",
        sends=("subscribe", "get_events"),
        replies={200: str},
        query=EventQuery,
        aliases=("/global/event",),
    ),
    Row(
        method="GET",
        path="/run/{run_id}/events",
        handler=_run_events,
        summary="What was told of a run so far, or a stream of it that ends with the run.",
        sends=("subscribe", "get_events"),
        replies={200: list[Frame]},
        query=RunEventQuery,
        streams=True,
    ),
)
