"""Streams of events: of the whole log, of a session, or of a run."""

from __future__ import annotations

import time
from collections import deque
from itertools import islice
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.responses import Response

from nousd.bridge.replies import RUN_NOT_FOUND, HttpError, json_reply
from nousd.bridge.routing.route import Call, Routes
from nousd.bridge.stream.passed_on import forward_events
from nousd.bridge.stream.rendered_event import StreamQuery
from nousd.bridge.stream.sse import (
    answering_stream,
    data_lines,
    encode_hello,
    resolve_position,
    stream_response,
    yield_once,
)
from nousd.views.stream_position import FRAMES_MAX, StreamPosition, position_after_event
from nousd.views.tandem.frames import Frame
from nousd.wire.commands import GetSession
from nousd.wire.commands.subscribe import Subscribe
from nousd.wire.objects.field_types import View

routes: Final = Routes()

EVENTS_MAX: Final = 10_000
"""Maximum frames in a reply that is not a stream; the next request continues after the last one."""


class EventQuery(
    msgspec.Struct, frozen=True, rename={"session_id": "sessionID", "run_id": "runID"}
):
    """The events of a stream; ``after`` is the id of a frame, or a cursor, after which it begins.
    ``view`` selects another vocabulary than Tandem's.
    """

    session_id: str | None = None
    run_id: str | None = None
    after: str | None = None
    view: View | None = None


class RunEventQuery(msgspec.Struct, frozen=True):
    """``after`` is the id of a frame, or a cursor, after which the events begin; ``since_seq`` the
    ``seq`` of an envelope, which is the same number. ``tail`` limits a list to its last frames.
    """

    after: str | None = None
    since_seq: Annotated[int, Meta(ge=0, le=2**62)] | None = None
    tail: Annotated[int, Meta(ge=0, le=EVENTS_MAX)] | None = None

    @property
    def start(self) -> tuple[str, str | None]:
        """The name and the value of the parameter that is in effect."""
        if self.after is None and self.since_seq is not None:
            return "since_seq", str(self.since_seq)
        return "after", self.after


@routes.get(
    "/event",
    sends=("subscribe", "get_events", "get_session"),
    replies={200: str},
    query=EventQuery,
    aliases=("/global/event",),
)
async def _stream_events(call: Call) -> Response:
    """Stream events from now on, after a frame, or of a run from its beginning.

    A stream of a run that names no position begins with the run: its client has just started the run,
    or reconnects without knowing its position.
    """
    asked: EventQuery = call.query
    query = StreamQuery(call.view, asked.session_id or None, asked.run_id or None)
    if query.session_id is not None:
        await call.daemon.ask(GetSession(session_id=query.session_id))
    head = call.hub.head
    position = resolve_position(call.request.headers, asked.after, head=head)
    if position is None and query.run_id is not None:
        first = await call.hub.first_event(query.run_id)
        position = None if first is None else StreamPosition(first.seq, 0)
    start = position or position_after_event(head)
    responders = call.services.responders
    if asked.view is not None:
        subscription = Subscribe(
            session_id=query.session_id,
            run_id=query.run_id,
            view=asked.view,
            after_seq=max(0, start.seq * FRAMES_MAX + start.frames - 1),
        )
        return stream_response(forward_events(call.daemon, call.hub, responders, subscription))
    frames = call.view.hello(int(time.time() * 1000))
    hello = encode_hello(frames, head if position is None else None)
    return stream_response(answering_stream(call.hub, responders, query, start, hello))


@routes.get(
    "/run/{run_id}/events",
    sends=("subscribe", "get_events"),
    replies={200: list[Frame]},
    query=RunEventQuery,
    streams=True,
)
async def _run_events(call: Call) -> Response:
    """List the events of a run so far, or stream them until the run ends.

    Reply with a list of the frames so far, or with a stream that ends with the run.
    """
    run_id = call.path["run_id"]
    first = await call.hub.first_event(run_id)
    if first is None:
        raise HttpError(RUN_NOT_FOUND, "there is no such run")
    start = StreamPosition(first.seq, 0)
    asked: RunEventQuery = call.query
    name, after = asked.start
    requested = resolve_position(call.request.headers, after, head=call.hub.head, name=name)
    position = max(requested or start, start)
    query = StreamQuery(call.view, first.session_id, run_id, only_run=True)
    if "text/event-stream" not in call.request.headers.get("accept", ""):
        return json_reply(await _list_frames(call, query, position))
    hello = encode_hello(call.view.hello(int(time.time() * 1000), run_id), None)
    end = await call.hub.first_event(run_id, ("agent_end",))
    if end is not None and end.seq <= position.after:
        # Browsers reconnect by themselves, and a client that already has the end would wait forever.
        return stream_response(yield_once(hello))
    responders = call.services.responders
    stream = answering_stream(call.hub, responders, query, position, hello, ends_with_run=True)
    return stream_response(stream)


async def _list_frames(
    call: Call, query: StreamQuery, position: StreamPosition
) -> list[msgspec.Raw]:
    tail: int | None = call.query.tail
    listed: deque[msgspec.Raw] = deque(maxlen=tail)
    while position.after < call.hub.head and (tail is not None or len(listed) < EVENTS_MAX):
        page = await call.hub.page_after(position, query)
        listed += map(msgspec.Raw, data_lines(page.data))
        position = page.position
        if page.has_end:
            break
    return list(islice(listed, EVENTS_MAX))
