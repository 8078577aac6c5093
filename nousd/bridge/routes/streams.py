"""Streams of events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec
from starlette.responses import Response, StreamingResponse

from nousd.bridge.daemon import Daemon
from nousd.bridge.table import Call, Row
from nousd.client.typed import decoded
from nousd.views.tandem.events import Seen, frames
from nousd.views.tandem.frames import encoded, frame_id
from nousd.wire.subscribe import Subscribe


class EventQuery(msgspec.Struct, frozen=True):
    """Which events a stream is to have."""

    sessionID: str | None = None  # noqa: N815
    runID: str | None = None  # noqa: N815
    after: str | None = None


async def _events(call: Call) -> Response:
    wanted = Subscribe(
        session_id=call.query.sessionID,
        run_id=call.query.runID,
        types="all",
        after=call.query.after,
    )
    return StreamingResponse(_frames(call.daemon, wanted), media_type="text/event-stream")


async def _frames(daemon: Daemon, wanted: Subscribe) -> AsyncIterator[bytes]:
    async with daemon.subscribe(wanted) as subscription:
        async for received in subscription:
            event = decoded(received)
            if event is None:
                continue
            seq = int(received.id.removeprefix("evt-"))
            for index, frame in enumerate(frames(Seen(seq, received.ts, event))):
                yield encoded(frame, frame_id(seq, index))


ROWS: Final = (
    Row(
        method="GET",
        path="/event",
        handler=_events,
        summary="Events as they happen.",
        sends=("subscribe",),
        replies={200: str},
        query=EventQuery,
        aliases=("/global/event",),
    ),
)
