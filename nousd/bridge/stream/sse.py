"""Server-sent events: HTTP responses that stream the events of the hub.

A stream begins at the position that its client names (``Last-Event-ID``, ``after``), or with the next
event. In the latter case its hello has the id of the newest event, so that a client that loses its
connection before the first event can continue without a gap.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Final

import anyio
import anyio.lowlevel
from starlette.datastructures import Headers
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from nousd.bridge.replies import BAD_REQUEST, HttpError
from nousd.bridge.stream.hub import Hub
from nousd.bridge.stream.rendered_event import StreamQuery, encode_frame
from nousd.bridge.stream.responders import Responders
from nousd.errors import ClientError
from nousd.views.event_view import EventView, RenderedFrame
from nousd.views.stream_position import (
    FRAMES_MAX,
    StreamPosition,
    frame_id,
    position_after_event,
    position_after_id,
)
from nousd.wire.commands.subscribe import cursor_seq
from nousd.wire.limits import HTTP_KEEPALIVE_SECONDS

_logger: Final = logging.getLogger(__name__)

_DATA: Final = b"data: "
_COMMENT: Final = b":\n\n"

PACE_SECONDS: Final = 0.015
"""Minimum time between two writes, unless more data is ready: all deltas of that time then cost only one
write per reader, and people cannot notice the delay."""

_HEADERS: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def resolve_position(
    headers: Headers, after: str | None, *, head: int, name: str = "after"
) -> StreamPosition | None:
    """Return the position from which a client continues: the later one if the request names two, None
    if it names none.

    An ``EventSource`` that reconnects repeats the ``after`` of its URL, and adds the last id it saw.

    Args:
        after: the query's parameter: the id of a frame, or a v1 cursor.
        name: the name of that parameter.

    Raises:
        HttpError: ``after`` is not a position, or lies beyond ``head``.
    """
    start = None if after is None else _position(after)
    if after is not None and (start is None or start.seq > head):
        last = frame_id(head, FRAMES_MAX - 1)
        raise HttpError(BAD_REQUEST, f"query: {name} must be the id of a frame, at most {last}")
    # A browser repeats its last id even if the log was replaced; an id beyond the head is ignored.
    seen = position_after_id(headers.get("last-event-id", ""))
    if seen is None or seen.seq > head:
        return start
    return seen if start is None else max(start, seen)


def _position(after: str) -> StreamPosition | None:
    try:
        return position_after_event(cursor_seq(after))
    except ValueError:
        return position_after_id(after)


def encode_hello(frames: Sequence[RenderedFrame], head: int | None) -> bytes:
    """Return the first frames of a stream; if ``head`` is given, the last one has its id."""
    if not frames:
        return b""
    id = None if head is None else frame_id(head, FRAMES_MAX - 1)
    return b"".join([*map(encode_frame, frames[:-1]), encode_frame(frames[-1], id)])


def data_lines(data: bytes) -> list[bytes]:
    """Return the data of each frame."""
    return [line[len(_DATA) :] for line in data.split(b"\n") if line.startswith(_DATA)]


def stream_response(
    chunks: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response that sends the chunks as the generator yields them."""
    return _EventStream(chunks, {**_HEADERS, **(headers or {})})


class _EventStream(StreamingResponse):
    """A response that closes its generator when the client disconnects, not at garbage collection."""

    def __init__(self, chunks: AsyncGenerator[bytes, None], headers: Mapping[str, str]) -> None:
        super().__init__(chunks, headers=headers, media_type="text/event-stream")
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            # A reply to HEAD has no body, and an endless stream would block the next request.
            await self._chunks.aclose()
        await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._chunks):
            await super().stream_response(send)


async def yield_once(chunk: bytes) -> AsyncGenerator[bytes, None]:
    """Yield the chunk of a stream that has only one."""
    yield chunk


async def answering_stream(
    hub: Hub,
    responders: Responders,
    query: StreamQuery,
    position: StreamPosition,
    hello: bytes = b"",
    *,
    ends_with_run: bool = False,
) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of ``stream_pages``, and count the reader as a client that answers requests.

    Args:
        hello: the frames that are sent first.
    """
    async with responders.count_reader(query.session_id, query.run_id):
        if hello:
            yield hello
        try:
            pages = stream_pages(hub, query, position, ends_with_run=ends_with_run)
            async with aclosing(pages) as chunks:
                async for chunk in chunks:
                    yield chunk
        except ClientError as error:
            # The client reconnects and gets the remaining events.
            _logger.info("a stream of events ends: %s", error)


async def stream_pages(
    hub: Hub, query: StreamQuery, position: StreamPosition, *, ends_with_run: bool
) -> AsyncGenerator[bytes, None]:
    """Yield whole frames after a position, and keep-alives while there are none.

    Args:
        ends_with_run: whether the stream ends at the end of the run or the deletion of its session.
    """
    keepalive = _encode_keepalive(query.view)
    written_at = anyio.current_time()
    paced_until = written_at
    while True:
        page = await hub.page_after(position, query)
        position = page.position
        if page.data:
            yield page.data
        if ends_with_run and page.has_end:
            return
        if page.data:
            # The time that a slow reader needed to take the page does not count towards a keep-alive.
            written_at = anyio.current_time()
            paced_until = written_at + PACE_SECONDS
        elif (left := written_at + HTTP_KEEPALIVE_SECONDS - anyio.current_time()) <= 0:
            yield keepalive
            written_at = anyio.current_time()
        elif position.after < hub.head:
            # A long stretch of events without a match must not hold up the other readers.
            await anyio.lowlevel.checkpoint()
        elif hub.has_ended:
            return
        else:
            position = await hub.wait_after(position, query, left)
            await anyio.sleep_until(paced_until)


def _encode_keepalive(view: EventView) -> bytes:
    return _COMMENT if view.keepalive is None else encode_frame(view.keepalive)
