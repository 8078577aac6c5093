"""The HTTP server and its access checks in front of a small application, without a daemon."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from trio.testing import wait_all_tasks_blocked

from nousd.bridge.access.credentials import Credentials, CurrentToken
from nousd.bridge.access.gate import AccessPolicy, Gate
from nousd.bridge.http import server
from nousd.bridge.http.bodies import read_body
from nousd.bridge.http.listen_address import HttpPlace
from nousd.bridge.replies import HttpError, error_reply
from nousd.bridge.stream.sse import stream_response
from nousd.runtime_paths.tickets import browser_sessions, login_links
from tests.bridge.raw_http import Address, Answer, answer_in, exchange, request
from tests.harness.daemon import WAIT_SECONDS

TOKEN: Final = "a-token-that-only-tests-know"


def credentials_of(current_token: CurrentToken, state_dir: Path = Path("/nowhere")) -> Credentials:
    """Return credentials; without a folder there are no sessions of browsers."""
    return Credentials(current_token, browser_sessions(state_dir), login_links(state_dir))


CREDENTIALS: Final = credentials_of(lambda: TOKEN)
FLOOD: Final = b"x" * 65_536


@dataclass
class SmallServer:
    """``/global/health`` is public; ``/echo`` repeats a body, ``/quiet`` and ``/flood`` are streams that
    do not end, ``/deaf`` reads no body, ``/fault`` fails.
    """

    address: Address
    closing: trio.Event = field(default_factory=trio.Event)
    ended: trio.Event = field(default_factory=trio.Event)
    seen: list[str] = field(default_factory=list)
    streams: int = 0
    stream_ended: trio.Event = field(default_factory=trio.Event)

    async def ask(
        self, *words: str, token: str = TOKEN, method: str = "GET", host: str = "localhost"
    ) -> Answer:
        """Request a target with some header lines."""
        target, *lines = words
        sent = request(method, target, *lines, token=token, host=host)
        return answer_in(await exchange(self.address, sent), method)

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until ``holds`` is true, also under a clock that stands still."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not holds():
            assert time.monotonic() < deadline, "it never came"
            await wait_all_tasks_blocked()

    async def _serve(self, request: Request) -> Response:
        self.seen.append(request.url.path)
        if request.url.path == "/fault":
            raise RuntimeError("planted")
        if request.url.path == "/deaf":
            await wait_all_tasks_blocked()  # until no more of the body can arrive
        try:
            text = await read_body(request) if request.url.path == "/echo" else b"well"
        except HttpError as error:
            return error_reply(error)
        return PlainTextResponse(text, headers={"x-tandem-run-id": "run-1"})

    async def _stream(self, request: Request) -> Response:
        async def chunks() -> AsyncGenerator[bytes, None]:
            self.streams += 1
            try:
                yield b": hello\n\n"
                while True:
                    if request.url.path == "/flood":
                        yield FLOOD
                    else:
                        await trio.sleep_forever()
            finally:
                self.streams -= 1
                self.stream_ended.set()

        return stream_response(chunks())

    def app(self) -> Starlette:
        """Return the application."""
        plain = [
            Route(path, self._serve, methods=["GET", "POST"])
            for path in ("/global/health", "/echo", "/deaf", "/fault", "/a/{name}")
        ]
        streams = [Route(path, self._stream, methods=["GET"]) for path in ("/quiet", "/flood")]
        return Starlette(routes=[*plain, *streams])


@asynccontextmanager
async def small_server(
    path: Path | None = None, safety: AccessPolicy | None = None
) -> AsyncIterator[SmallServer]:
    """Serve until the end of the block and of the grace period."""
    place = HttpPlace("127.0.0.1", 0) if path is None else HttpPlace(path=path)
    async with server.open_listeners(place) as listeners:
        small = SmallServer(path or listeners[0].socket.getsockname()[1])
        hosts = None if path else AccessPolicy(CREDENTIALS).hosts
        gate = Gate(small.app(), safety or AccessPolicy(CREDENTIALS, hosts))

        async def serve() -> None:
            await server.serve(gate, listeners, small.closing)
            small.ended.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            yield small
            small.closing.set()
