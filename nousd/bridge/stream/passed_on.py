"""Events that the daemon itself renders in a view, passed on as server-sent events.

Such a view is a fold over the log, which the daemon has at hand. So each stream is a subscription of its
own and passes on the lines of the event socket; the id of a frame is the ``seq`` of its event.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from typing import Final

import anyio

from nousd.bridge.stream.hub import Hub
from nousd.bridge.stream.rendered_event import encode_frame
from nousd.bridge.stream.responders import Responders
from nousd.client.answers import ReceivedEvent
from nousd.client.client import Client
from nousd.client.subscription import Subscription
from nousd.errors import ClientError
from nousd.views.event_view import RenderedFrame
from nousd.wire.commands.subscribe import Subscribe
from nousd.wire.limits import HTTP_KEEPALIVE_SECONDS

_logger: Final = logging.getLogger(__name__)

_COMMENT: Final = b":\n\n"


async def forward_events(
    daemon: Client, hub: Hub, responders: Responders, subscription: Subscribe
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a subscription as frames, and keep-alives while there are none. Meanwhile,
    count the reader as a client that answers requests. The stream ends when the hub ends.

    Args:
        subscription: the subscription; its view and ``after_seq`` must be set.
    """
    assert subscription.after_seq is not None
    async with responders.count_reader(subscription.session_id, subscription.run_id):
        # A client that loses its connection before the first frame continues from here.
        yield b"id: %d\n\n" % subscription.after_seq
        try:
            async with daemon.subscribe(subscription) as events:
                while not hub.has_ended:
                    received = await _next(events, hub)
                    if received is None:
                        yield _COMMENT
                        continue
                    frames = [_frame(received)]
                    while events.has_more:
                        frames.append(_frame(await anext(events)))
                    yield b"".join(frames)
        except ClientError as error:
            # The client reconnects and gets the remaining events.
            _logger.info("a stream of events ends: %s", error)


def _frame(received: ReceivedEvent) -> bytes:
    return encode_frame(RenderedFrame(received.line), int(received.id))


async def _next(events: Subscription, hub: Hub) -> ReceivedEvent | None:
    """Return the next event; None if a keep-alive is due, or if the hub has ended."""
    received: ReceivedEvent | None = None
    lost: ClientError | None = None

    async def listen() -> None:
        nonlocal received, lost
        try:
            received = await anext(events)
        except ClientError as error:
            lost = error
        waiting.cancel_scope.cancel()

    with anyio.move_on_after(HTTP_KEEPALIVE_SECONDS):
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(listen)
            await hub.wait_ended()
            waiting.cancel_scope.cancel()
    if lost is not None:
        raise lost
    return received
