"""Large request bodies wait for one another; small ones never wait."""

from __future__ import annotations

import pytest
import trio
from starlette.requests import Request
from starlette.types import Message
from trio.testing import MockClock, wait_all_tasks_blocked

from nousd.bridge.http.bodies import LARGE_BODIES_MAX, LARGE_BYTES, Bodies
from nousd.bridge.replies import HttpError
from nousd.wire.limits import HTTP_BODY_SECONDS


class _Sender:
    """A request whose body arrives when the test sends it."""

    def __init__(self, length: int | None) -> None:
        head = (b"transfer-encoding", b"chunked")
        if length is not None:
            head = (b"content-length", b"%d" % length)
        self.is_read = False
        self._sent = trio.Event()
        self.request = Request({"type": "http", "headers": [head]}, self._receive)

    def send(self) -> None:
        self._sent.set()

    async def _receive(self) -> Message:
        self.is_read = True
        await self._sent.wait()
        return {"type": "http.request", "body": b"{}", "more_body": False}


async def _take(bodies: Bodies, sender: _Sender) -> None:
    async with bodies.read(sender.request) as body:
        assert body == b"{}"


@pytest.mark.parametrize("length", [LARGE_BYTES + 1, None], ids=["long", "of unknown length"])
async def test_a_large_body_waits_until_another_one_was_read(length: int | None) -> None:
    bodies = Bodies()
    senders = [_Sender(length) for _ in range(LARGE_BODIES_MAX + 1)]
    async with trio.open_nursery() as reading:
        for sender in senders:
            reading.start_soon(_take, bodies, sender)
        await wait_all_tasks_blocked()
        waiting = [sender for sender in senders if not sender.is_read]
        assert len(waiting) == 1
        next(sender for sender in senders if sender.is_read).send()
        await wait_all_tasks_blocked()
        assert waiting[0].is_read
        for sender in senders:
            sender.send()


async def test_a_small_body_does_not_wait_for_large_ones() -> None:
    bodies = Bodies()
    large = [_Sender(LARGE_BYTES + 1) for _ in range(LARGE_BODIES_MAX)]
    small = _Sender(LARGE_BYTES)
    small.send()
    async with trio.open_nursery() as reading:
        for sender in large:
            reading.start_soon(_take, bodies, sender)
        await wait_all_tasks_blocked()
        await _take(bodies, small)
        for sender in large:
            sender.send()


async def test_a_large_body_without_room_in_time_is_refused_as_retryable(
    autojump_clock: MockClock,
) -> None:
    bodies = Bodies()
    async with trio.open_nursery() as reading:
        for _ in range(LARGE_BODIES_MAX):
            reading.start_soon(_hold, bodies)
        await wait_all_tasks_blocked()
        start = trio.current_time()
        with pytest.raises(HttpError, match="too many large bodies") as refused:
            await _take(bodies, _Sender(None))
        assert trio.current_time() - start == HTTP_BODY_SECONDS
        assert refused.value.failure.status == 503
        assert refused.value.failure.retryable
        reading.cancel_scope.cancel()


async def _hold(bodies: Bodies) -> None:
    sender = _Sender(None)
    sender.send()
    async with bodies.read(sender.request):
        await trio.sleep_forever()
