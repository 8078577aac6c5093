"""The client of the rows about HTTP: requests written by hand, and as little work as possible while time
counts. Not HTTP: just enough of it for a server that behaves.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import msgspec
import trio

from .client import READ_BYTES

_RUN_END: Final = b"session.run.finished"


class Server(NamedTuple):
    """The loopback address of a server, and the token that it requires, if any."""

    port: int
    token: str = ""

    def request(self, method: str, target: str, body: bytes = b"", *, accept: str = "*/*") -> bytes:
        """Return the bytes of a request."""
        lines = [
            f"{method} {target} HTTP/1.1",
            f"Host: 127.0.0.1:{self.port}",
            f"Authorization: Bearer {self.token}",
            f"Accept: {accept}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        return "\r\n".join([*lines, "", ""]).encode() + body


class HttpConnection:
    """A connection that is kept for one request after the other."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.rest = b""

    async def exchange(self, request: bytes) -> bytes:
        """Send a request and return the body of its answer, which has a length.

        Raises:
            RuntimeError: the answer is none of success.
        """
        await self.stream.send_all(request)
        head = await self.head()
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        while len(self.rest) < length:
            await self._read()
        body, self.rest = self.rest[:length], self.rest[length:]
        return body

    async def head(self) -> bytes:
        """Return the head of an answer."""
        while b"\r\n\r\n" not in self.rest:
            await self._read()
        head, _, self.rest = self.rest.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 2"):
            raise RuntimeError(f"refused: {head!r} {self.rest!r}")
        return head

    async def _read(self) -> None:
        chunk = await self.stream.receive_some(READ_BYTES)
        if not chunk:
            raise RuntimeError("the server has hung up")
        self.rest += chunk


@asynccontextmanager
async def connect(server: Server) -> AsyncIterator[HttpConnection]:
    """Connect to the server."""
    async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
        yield HttpConnection(stream)


async def answers(port: int) -> None:
    """Wait until somebody listens there."""
    while True:
        try:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
        except OSError:
            await trio.sleep(0.001)
        else:
            await stream.aclose()
            return


class _Properties(msgspec.Struct):
    delta: str | None = None


class _Frame(msgspec.Struct):
    properties: _Properties


class SseRecording:
    """The bytes that an SSE client received, not parsed until the measured time is over."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []

    async def until_run_ended(self, connection: HttpConnection) -> None:
        """Read until the end of a run was told.

        Raises:
            RuntimeError: the stream ended before.
        """
        self._chunks.append(connection.rest)
        last = connection.rest
        while _RUN_END not in last:
            chunk = await connection.stream.receive_some(READ_BYTES)
            if not chunk:
                raise RuntimeError("the stream of events has ended")
            self._chunks.append(bytes(chunk))
            last = last[-len(_RUN_END) :] + chunk

    def deltas(self) -> list[str]:
        """Return the deltas of the model, in the order in which they came."""
        decoder = msgspec.json.Decoder(_Frame)
        frames = [
            line[6:] for line in _body(b"".join(self._chunks)).split(b"\n") if line[:6] == b"data: "
        ]
        told = [decoder.decode(frame).properties for frame in frames if b'"delta"' in frame]
        # The first is the user's own text.
        return [properties.delta or "" for properties in told[1:]]


def _body(chunked: bytes) -> bytes:
    """Take out of a chunked body what is there whole."""
    body: list[bytes] = []
    while chunked:
        size, end, rest = chunked.partition(b"\r\n")
        length = int(size or b"0", 16)
        if not end or len(rest) < length:
            break
        body.append(rest[:length])
        chunked = rest[length + 2 :]
    return b"".join(body)


@asynccontextmanager
async def event_stream(server: Server) -> AsyncIterator[HttpConnection]:
    """Open a stream of all events, from now on."""
    async with connect(server) as connection:
        await connection.stream.send_all(
            server.request("GET", "/event", accept="text/event-stream")
        )
        await connection.head()
        yield connection


async def new_session(server: Server, **body: Any) -> str:
    """Make a session and return its id."""
    async with connect(server) as connection:
        request = server.request("POST", "/session", json.dumps(body).encode())
        return str(json.loads(await connection.exchange(request))["id"])
