"""The HTTP rows of the limits table; see ``tests/daemon/test_limits.py``.

For time limits the server runs under its own clock, in a thread beside the daemon.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, suppress
from functools import partial
from typing import Any, cast

import trio
from starlette.requests import Request
from starlette.types import Message
from trio.testing import MockClock

from nousd.bridge.http import bodies, server
from nousd.bridge.replies import HttpError
from nousd.bridge.routes import prompts
from nousd.bridge.stream.hub import Hub, Page
from nousd.bridge.stream.rendered_event import StreamQuery
from nousd.bridge.stream.sse import stream_pages
from nousd.views.stream_position import StreamPosition
from nousd.views.tandem.events import TANDEM
from nousd.wire.limit_table import LIMITS
from tests.bridge.harness import bridge_to, text
from tests.bridge.raw_http import answer_in, connected, exchange, request
from tests.bridge.small_server import TOKEN, small_server
from tests.daemon.limits_bench import Kit
from tests.harness.daemon import WAIT_SECONDS
from tests.harness.stub_model import hanging_reply, text_reply

JUST_BEFORE = 0.001
"""An action at the moment of a deadline is late, so one "at the limit" happens a little earlier."""


async def in_its_own_time(play: Callable[[], Awaitable[None]]) -> None:
    await trio.to_thread.run_sync(partial(trio.run, play, clock=MockClock(autojump_threshold=0)))


def moment(name: str, offset: int) -> float:
    """Return the second at which a client does what the limit allows time for."""
    return LIMITS[name][0] + offset - (JUST_BEFORE if offset == 0 else 0)


async def connections(kit: Kit, offset: int) -> None:
    bound = kit.scale("http_connections_max", server, "HTTP_CONNECTIONS_MAX", 3)
    async with small_server() as small, AsyncExitStack() as others:
        for _ in range(bound + offset - 1):
            other = await others.enter_async_context(await connected(cast("int", small.address)))
            await other.send_all(request("GET", "/quiet", token=TOKEN))
            await other.receive_some()
        answer = await small.ask("/echo")
        assert answer.status == (503 if offset > 0 else 200)
        assert offset <= 0 or f"503 `{answer.code}`" in LIMITS["http_connections_max"][1]


async def strangers(kit: Kit, offset: int) -> None:
    bound = kit.scale("http_strangers_max", server, "HTTP_STRANGERS_MAX", 3)
    async with small_server() as small, AsyncExitStack() as others:
        held = []
        for _ in range(bound + offset):
            held.append(await others.enter_async_context(await connected(small.address)))
            await held[-1].send_all(request().replace(b"connection: close\r\n", b""))
            assert (await held[-1].receive_some()).startswith(b"HTTP/1.1 200")
        with trio.move_on_after(WAIT_SECONDS if offset > 0 else JUST_BEFORE):
            assert await held[0].receive_some() == b""
            assert offset > 0


async def headers_bytes(_kit: Kit, offset: int) -> None:
    size = LIMITS["http_headers_bytes_max"][0] + offset
    empty = len(request("GET", "/global/health", "x-a: "))
    sent = request("GET", "/global/health", "x-a: " + "b" * (size - empty))
    async with small_server() as small:
        answer = answer_in(await exchange(small.address, sent))
    assert answer.status == (431 if offset > 0 else 200)
    assert offset <= 0 or f"431 `{answer.code}`" in LIMITS["http_headers_bytes_max"][1]


async def body_bytes(_kit: Kit, offset: int) -> None:
    body = b"x" * (LIMITS["http_body_bytes_max"][0] + offset)
    sent = request("POST", "/echo", f"content-length: {len(body)}", token=TOKEN, body=body)
    async with small_server() as small:
        answer = answer_in(await exchange(small.address, sent))
    assert answer.status == (413 if offset > 0 else 200)
    assert offset <= 0 or f"413 `{answer.code}`" in LIMITS["http_body_bytes_max"][1]


async def body_seconds(_kit: Kit, offset: int) -> None:
    async def receive() -> Message:
        await trio.sleep(moment("http_body_seconds", offset))
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def play() -> None:
        try:
            await bodies.read_body(Request({"type": "http", "headers": []}, receive))
            assert offset <= 0
        except HttpError as error:
            assert offset > 0
            told = f"{error.failure.status} `{error.failure.code}`"
            assert told in LIMITS["http_body_seconds"][1]

    await in_its_own_time(play)


async def prompt_seconds(kit: Kit, offset: int) -> None:
    if offset > 0:
        kit.scale("http_prompt_seconds", prompts, "HTTP_PROMPT_SECONDS", 0)
    kit.stub.script(hanging_reply() if offset > 0 else text_reply("Hello"))
    async with bridge_to(kit.daemon) as bridge:
        session = await bridge.new_session()
        path = f"/session/{session}/prompt_sync"
        answer = await bridge.http.post(path, json={"parts": text("go")})
        assert answer.status_code == (504 if offset > 0 else 200)
        if offset > 0:
            told = f"504 `{answer.json()['code']}`"
            assert told in LIMITS["http_prompt_seconds"][1]
            assert (await bridge.post(f"/session/{session}/cancel"))["cancelled"]


async def idle_seconds(_kit: Kit, offset: int) -> None:
    async def play() -> None:
        async with small_server() as small, await connected(small.address) as stream:
            await trio.sleep(moment("http_idle_seconds", offset))
            received = b""
            with suppress(trio.BrokenResourceError):
                await stream.send_all(request())
                received = bytes(await stream.receive_some())
            assert received.startswith(b"HTTP/1.1 200") is (offset <= 0)

    await in_its_own_time(play)


class _QuietHub:
    """A hub with one event, at a given time."""

    head = 0
    has_ended = False

    def __init__(self, at: float) -> None:
        self._at = trio.current_time() + at

    async def page_after(self, position: StreamPosition, _query: StreamQuery) -> Page:
        data = b"data: {}\n\n" if trio.current_time() >= self._at else b""
        return Page(data, position, has_end=False)

    async def wait_after(
        self, position: StreamPosition, _query: StreamQuery, seconds: float
    ) -> StreamPosition:
        await trio.sleep(min(seconds, self._at - trio.current_time()))
        return position


async def keepalive_seconds(_kit: Kit, offset: int) -> None:
    async def play() -> None:
        hub = cast("Hub", _QuietHub(moment("http_keepalive_seconds", offset)))
        start = StreamPosition(0, 0)
        async with aclosing(
            stream_pages(hub, StreamQuery(TANDEM), start, ends_with_run=False)
        ) as told:
            assert (await anext(told)).startswith(b":" if offset > 0 else b"data")

    await in_its_own_time(play)


async def write_seconds(_kit: Kit, offset: int) -> None:
    async def play() -> None:
        async with small_server() as small, await connected(small.address) as stream:
            await stream.send_all(request("GET", "/flood", token=TOKEN))
            await small.until(lambda: small.streams)
            await trio.sleep(moment("http_write_seconds", offset))
            assert small.streams == (0 if offset > 0 else 1)

    await in_its_own_time(play)


HTTP_PLAYS: dict[str, Callable[[Any, int], Awaitable[None]]] = {
    "http_connections_max": connections,
    "http_strangers_max": strangers,
    "http_headers_bytes_max": headers_bytes,
    "http_body_bytes_max": body_bytes,
    "http_body_seconds": body_seconds,
    "http_prompt_seconds": prompt_seconds,
    "http_idle_seconds": idle_seconds,
    "http_keepalive_seconds": keepalive_seconds,
    "http_write_seconds": write_seconds,
}
