"""HTTP/1.1 by hand on one connection, for tests that stop mid-stream or send invalid bytes."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import h11
import httpx2
import trio

from tests.harness.daemon import WAIT_SECONDS

Address = int | Path
"""A port of this machine, or the path of a Unix socket."""


class RawReply:
    """The response to one request; its body is read on demand."""

    def __init__(self, stream: trio.SocketStream, machine: h11.Connection) -> None:
        self.stream = stream
        self._machine = machine
        self.status = 0
        self.headers: dict[str, str] = {}

    async def begin(self) -> None:
        """Read status and headers."""
        event = await self._event()
        while isinstance(event, h11.InformationalResponse):
            event = await self._event()
        assert isinstance(event, h11.Response), event
        self.status = event.status_code
        self.headers = {name.decode(): value.decode() for name, value in event.headers}

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body's pieces."""
        while not isinstance(event := await self._event(), h11.EndOfMessage):
            assert isinstance(event, h11.Data), event
            yield bytes(event.data)

    async def whole(self) -> bytes:
        """Return the rest of the body."""
        return b"".join([chunk async for chunk in self.chunks()])

    async def _event(self) -> object:
        with trio.fail_after(WAIT_SECONDS):
            while (event := self._machine.next_event()) is h11.NEED_DATA:
                self._machine.receive_data(await self.stream.receive_some())
        return event


@asynccontextmanager
async def opened(request: httpx2.Request) -> AsyncIterator[RawReply]:
    """Send a request on a new connection, which is closed at the end of the block."""
    assert request.url.port is not None
    stream = await trio.open_tcp_stream(request.url.host, request.url.port)
    async with stream:
        machine = h11.Connection(h11.CLIENT)
        head = h11.Request(
            method=request.method, target=request.url.raw_path, headers=request.headers.raw
        )
        for event in (head, h11.Data(data=request.content), h11.EndOfMessage()):
            await stream.send_all(machine.send(event) or b"")
        reply = RawReply(stream, machine)
        await reply.begin()
        yield reply


async def exchange(
    place: Address, request: bytes, *, half_close: bool = False, then: bytes = b""
) -> bytes:
    """Send bytes on a new connection, and return all bytes until the server closes it.

    Args:
        half_close: close the sending side after the request.
        then: bytes to send after the first bytes of a response.
    """
    with trio.fail_after(WAIT_SECONDS):
        stream = await connected(place)
        async with stream:
            with suppress(trio.BrokenResourceError):
                await stream.send_all(request)
                if half_close:
                    await stream.send_eof()
            received = await _some(stream)
            if then:
                await stream.send_all(then)
            while more := await _some(stream):
                received += more
            return received


async def connected(place: Address) -> trio.SocketStream:
    """Return a connection to a port of this machine, or to a Unix socket."""
    if isinstance(place, Path):
        return await trio.open_unix_socket(place)
    return await trio.open_tcp_stream("127.0.0.1", place)


async def _some(stream: trio.SocketStream) -> bytes:
    try:
        return bytes(await stream.receive_some())
    except trio.BrokenResourceError:
        return b""  # closed before the server has read all bytes


def request(
    method: str = "GET",
    target: str = "/global/health",
    *lines: str,
    host: str = "localhost",
    token: str = "",
    body: bytes = b"",
) -> bytes:
    """Return a request after which the server closes the connection."""
    head = [f"{method} {target} HTTP/1.1", f"host: {host}", "connection: close", *lines]
    if token:
        head.append(f"authorization: Bearer {token}")
    return "\r\n".join([*head, "", ""]).encode("latin-1") + body


class Answer(NamedTuple):
    """A complete response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The code of the envelope of errors."""
        envelope = json.loads(self.body)
        assert set(envelope) >= {"error", "code", "retryable"}, envelope
        return str(envelope["code"])


def answer_in(received: bytes, method: str = "GET") -> Answer:
    """Return the only response in the bytes."""
    answers = answers_in(received, method)
    assert len(answers) == 1, received
    return answers[0]


def answers_in(received: bytes, method: str = "GET") -> list[Answer]:
    """Return the final responses to requests with this method."""
    answers = []
    while received:
        machine = h11.Connection(h11.CLIENT)
        machine.send(h11.Request(method=method, target="/", headers=[("host", "h")]))
        machine.send(h11.EndOfMessage())
        machine.receive_data(received)
        machine.receive_data(b"")
        while isinstance(head := machine.next_event(), h11.InformationalResponse):
            pass
        assert isinstance(head, h11.Response), received
        body = b""
        while isinstance(event := machine.next_event(), h11.Data):
            body += event.data
        headers = {name.decode(): value.decode() for name, value in head.headers}
        answers.append(Answer(head.status_code, headers, body))
        received = machine.trailing_data[0]
    return answers
