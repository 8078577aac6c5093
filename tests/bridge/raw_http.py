"""HTTP/1.1 by hand on one connection, for tests that stop in mid-stream or send what nobody should."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import h11
import httpx2
import trio

from tests.daemon_harness import WAIT_SECONDS


class RawReply:
    """The answer to one request; its body comes as it is asked for."""

    def __init__(self, stream: trio.SocketStream, machine: h11.Connection) -> None:
        self.stream = stream
        self._machine = machine
        self.status = 0
        self.headers: dict[str, str] = {}

    async def begin(self) -> None:
        """Reads status and headers."""
        event = await self._event()
        while isinstance(event, h11.InformationalResponse):
            event = await self._event()
        assert isinstance(event, h11.Response), event
        self.status = event.status_code
        self.headers = {name.decode(): value.decode() for name, value in event.headers}

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yields the body's pieces."""
        while not isinstance(event := await self._event(), h11.EndOfMessage):
            assert isinstance(event, h11.Data), event
            yield bytes(event.data)

    async def whole(self) -> bytes:
        """Returns the rest of the body."""
        return b"".join([chunk async for chunk in self.chunks()])

    async def _event(self) -> object:
        with trio.fail_after(WAIT_SECONDS):
            while (event := self._machine.next_event()) is h11.NEED_DATA:
                self._machine.receive_data(await self.stream.receive_some())
        return event


@asynccontextmanager
async def opened(request: httpx2.Request) -> AsyncIterator[RawReply]:
    """Sends a request on a connection of its own, which is closed when the block is left."""
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
