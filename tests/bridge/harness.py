"""The bridge for tests: a real HTTP server on loopback in front of a daemon, in the test's own loop.

::

    async with bridge_to(daemon) as bridge:
        session = await bridge.post("/session")
        async with bridge.events(sessionID=session["id"]) as frames:
            await bridge.post(f"/session/{session['id']}/prompt_async", parts=text("hello"))
            async for frame in frames: ...
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import httpx2
import trio

from nousd.bridge.embedded import open_memory_dial
from nousd.bridge.http.listen_address import HttpPlace
from nousd.bridge.run import BridgeSettings, open_bridge
from nousd.client.dial import Where
from nousd.daemon.transport.connection import serve_commands
from nousd.daemon.transport.feed import serve_events
from tests.bridge.raw_http import opened
from tests.harness.daemon import WAIT_SECONDS, Daemon

TOKEN: Final = "a-token-that-only-tests-know"


class Frame(NamedTuple):
    """A frame as a client sees it; ``id`` is "" where it has none."""

    id: str
    type: str
    properties: dict[str, Any]
    envelope: dict[str, Any]


class Frames:
    """The frames of one event stream; an async iterator, which ends when the stream does."""

    def __init__(self, body: AsyncIterator[bytes]) -> None:
        self.comments = 0
        self._bytes = body
        self._received = b""

    def __aiter__(self) -> Frames:
        return self

    async def __anext__(self) -> Frame:
        with trio.fail_after(WAIT_SECONDS):
            while True:
                head, end, rest = self._received.partition(b"\n\n")
                if not end:
                    self._received += await anext(self._bytes)
                    continue
                self._received = rest
                if frame := frame_of(head):
                    return frame
                self.comments += 1

    async def until(self, type: str) -> list[Frame]:
        """Return the frames up to the first one of that type."""
        frames = []
        async for frame in self:
            frames.append(frame)
            if frame.type == type:
                return frames
        raise AssertionError(f"the stream ended without {type}")


def frame_of(text: bytes) -> Frame | None:
    """Return the frame that a client parses from a part of a stream; None for a comment."""
    assert b"\r" not in text, "frames end in LF only"
    fields = dict(line.split(b": ", 1) for line in text.split(b"\n") if line[:1] != b":")
    if not fields:
        return None
    assert text.count(b"\ndata:") + text.startswith(b"data:") == 1, "one data line"
    data = json.loads(fields[b"data"])
    id = fields.get(b"id", b"").decode()
    return Frame(id, data["type"], data["properties"], data.get("envelope", {}))


def frames_in(received: bytes) -> list[Frame]:
    """Return the complete frames, without the bytes after the last one."""
    *whole, _ = received.split(b"\n\n")
    return [frame for text in whole if (frame := frame_of(text))]


@dataclass
class Bridge:
    """A bridge and a client of it that has the token."""

    base: str
    http: httpx2.AsyncClient

    async def get(self, path: str, **query: Any) -> Any:
        """Return the JSON of a response, which must be 200."""
        return _good(await self.http.get(path, params=query))

    async def post(self, path: str, **body: Any) -> Any:
        """Return the JSON of a response, which must be 2xx; None if it has no body."""
        return _good(await self.http.post(path, json=body))

    async def new_session(self, **body: Any) -> str:
        """Create a session and return its id."""
        made = await self.post("/session", **body)
        return str(made["id"])

    @asynccontextmanager
    async def events(
        self, path: str = "/event", *, headers: dict[str, str] | None = None, **query: Any
    ) -> AsyncIterator[Frames]:
        """Open an event stream, which has begun when the block is entered."""
        async with self.stream_of("GET", path, params=query, headers=headers) as frames:
            yield frames

    @asynccontextmanager
    async def stream_of(
        self, method: str, path: str, *, headers: dict[str, str] | None = None, **request: Any
    ) -> AsyncIterator[Frames]:
        """Send a request whose response is a stream of events."""
        wanted = {"accept": "text/event-stream", **(headers or {})}
        built = self.http.build_request(method, path, headers=wanted, **request)
        async with opened(built) as reply:
            assert reply.status == 200, await reply.whole()
            async with aclosing(reply.chunks()) as chunks:
                yield Frames(chunks)


def _good(response: httpx2.Response) -> Any:
    assert response.is_success, f"{response.status_code}: {response.text}"
    return response.json() if response.content else None


def text(words: str) -> list[dict[str, str]]:
    """Return a message's parts that are one text."""
    return [{"type": "text", "text": words}]


@asynccontextmanager
async def bridge_to(daemon: Daemon, **settings: Any) -> AsyncIterator[Bridge]:
    """Serve HTTP in front of a daemon; ``settings`` are those of ``BridgeSettings``."""
    services = daemon.services
    async with (
        open_memory_dial(partial(serve_commands, services), partial(serve_events, services)) as way,
        _serving(way, is_patient=False, **settings) as bridge,
    ):
        yield bridge


@asynccontextmanager
async def bridge_alone(socket: Path) -> AsyncIterator[Bridge]:
    """Serve HTTP in front of a daemon on sockets, which may stop and restart."""
    async with _serving(socket, is_patient=True) as bridge:
        yield bridge


@asynccontextmanager
async def _serving(where: Where, *, is_patient: bool, **settings: Any) -> AsyncIterator[Bridge]:
    closing = trio.Event()
    with TemporaryDirectory() as folder:
        wanted = BridgeSettings(
            **{
                "place": HttpPlace("127.0.0.1", 0),
                "current_token": lambda: TOKEN,
                "state_dir": Path(folder),
                **settings,
            }
        )
        async with open_bridge(wanted) as opened, trio.open_nursery() as nursery:
            nursery.start_soon(partial(opened.serve, where, closing, is_patient=is_patient))
            port = opened.listeners[0].socket.getsockname()[1]
            base = f"http://127.0.0.1:{port}"
            headers = {"authorization": f"Bearer {TOKEN}", "user-agent": "nousd-tests"}
            timeout = httpx2.Timeout(WAIT_SECONDS)
            # Reading the certificate store takes longer than most tests.
            async with httpx2.AsyncClient(
                base_url=base, headers=headers, timeout=timeout, trust_env=False, verify=False
            ) as http:
                yield Bridge(base, http)
            closing.set()
