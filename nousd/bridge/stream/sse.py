"""Server-sent events: a reader of the window as an HTTP response.

A stream begins where its client says (``Last-Event-ID``, ``after``) or with what happens next; the
greeting then carries the id of the newest event, so that also a client that was cut off before it saw
anything can come back without a gap.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from typing import Final

import anyio
import anyio.lowlevel
from starlette.datastructures import Headers
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from nousd.bridge.replies import BAD_REQUEST, HttpError
from nousd.bridge.stream.responders import Presence
from nousd.bridge.stream.window import Wanted, Window
from nousd.errors import ClientError
from nousd.views.tandem.frames import FRAMES_MAX, Frame, Place, encoded, frame_id, place_of
from nousd.wire.commands.subscribe import cursor_seq
from nousd.wire.limits import HTTP_KEEPALIVE_SECONDS

_logger: Final = logging.getLogger(__name__)

_DATA: Final = b"data: "
_KEEPALIVE: Final = b":\n\n"

PACE_SECONDS: Final = 0.015
"""How long after a write the next one follows at least, unless there is more already: what a model says
in that time, faster than anybody reads, is then one write to each of many readers."""

_HEADERS: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def place_asked_for(headers: Headers, after: str | None, *, head: int) -> Place | None:
    """Returns the place that a client comes back to; None if it names none.

    Args:
        after: of the query: the id of a frame, or a cursor of ours.

    Raises:
        HttpError: ``after`` is no place, or lies beyond ``head``.
    """
    if after is not None:
        place = _place(after)
        if place is None or place.after > head:
            raise HttpError(BAD_REQUEST, f"after: no id of a frame up to {frame_id(head, 0)}")
        return place
    # A browser brings along whatever id it saw last, be it of another log: then it begins anew.
    place = place_of(headers.get("last-event-id", ""))
    return place if place is not None and place.after <= head else None


def _place(after: str) -> Place | None:
    try:
        return Place(cursor_seq(after), FRAMES_MAX)
    except ValueError:
        return place_of(after)


def greeting(told: Iterable[Frame], head: int | None) -> bytes:
    """Returns the first frames of a stream; the last one has the id of ``head`` if that is given."""
    *first, last = told
    id = None if head is None else frame_id(head, FRAMES_MAX - 1)
    return b"".join([*map(encoded, first), encoded(last, id)])


def events_in(data: bytes) -> list[bytes]:
    """Returns the JSON of each frame."""
    return [line[len(_DATA) :] for line in data.split(b"\n") if line.startswith(_DATA)]


def event_stream(
    chunks: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None
) -> Response:
    """Returns the response that sends these chunks as they come."""
    return _EventStream(chunks, {**_HEADERS, **(headers or {})})


class _EventStream(StreamingResponse):
    """A response that ends its chunks when its client has gone, not whenever they are collected."""

    def __init__(self, chunks: AsyncGenerator[bytes, None], headers: Mapping[str, str]) -> None:
        super().__init__(chunks, headers=headers, media_type="text/event-stream")
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            # Nobody reads it, and the next request on its connection is to be answered.
            await self._chunks.aclose()
        await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._chunks):
            await super().stream_response(send)


async def only(chunk: bytes) -> AsyncGenerator[bytes, None]:
    """Yields it, as the chunks of a stream that has nothing more."""
    yield chunk


async def told(
    window: Window,
    presence: Presence,
    wanted: Wanted,
    place: Place,
    hello: bytes = b"",
    *,
    ends_with_run: bool = False,
) -> AsyncGenerator[bytes, None]:
    """Yields whole frames behind a place, and keep-alives while there are none. Its reader counts as one
    that answers what is asked.

    Args:
        hello: what is sent before them.
        ends_with_run: whether the end of the run, or of its session, is the end of the stream.
    """
    async with presence.of_reader(wanted.session_id, wanted.run_id):
        if hello:
            yield hello
        try:
            async with aclosing(
                pages(window, wanted, place, ends_with_run=ends_with_run)
            ) as chunks:
                async for chunk in chunks:
                    yield chunk
        except ClientError as error:
            # Its reader comes back for the rest.
            _logger.info("a stream of events ends: %s", error)


async def pages(
    window: Window, wanted: Wanted, place: Place, *, ends_with_run: bool
) -> AsyncGenerator[bytes, None]:
    """Yields what ``told`` does, of a reader that answers nothing."""
    written_at = anyio.current_time()
    paced_until = written_at
    while True:
        page = await window.page_behind(place, wanted)
        place = page.place
        if page.data:
            yield page.data
        if ends_with_run and page.has_end:
            return
        if page.data:
            # Who takes his time with what is written is owed no keep-alive for it.
            written_at = anyio.current_time()
            paced_until = written_at + PACE_SECONDS
        elif (left := written_at + HTTP_KEEPALIVE_SECONDS - anyio.current_time()) <= 0:
            yield _KEEPALIVE
            written_at = anyio.current_time()
        elif place.after < window.head:
            # A long stretch without a match must not hold up the others.
            await anyio.lowlevel.checkpoint()
        elif window.has_ended:
            return
        else:
            place = await window.wait_behind(place, wanted, left)
            await anyio.sleep_until(paced_until)
