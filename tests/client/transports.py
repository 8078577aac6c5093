"""A daemon scripted by the test on anyio, over Unix sockets or in memory; it knows only envelopes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import AnyByteStream

from nousd.client.dial import Where
from nousd.client.memory import MemoryDial
from nousd.wire.codec.framing import LineSplitter


class Peer:
    """The daemon's end of a connection."""

    def __init__(self, stream: AnyByteStream) -> None:
        self._stream = stream
        self._splitter = LineSplitter()
        self._lines: list[bytes] = []

    async def heard(self) -> dict[str, Any]:
        """Return the next request."""
        while not self._lines:
            for line in self._splitter.feed(await self._stream.receive()):
                assert isinstance(line, bytes)
                self._lines.append(line)
        request: dict[str, Any] = json.loads(self._lines.pop(0))
        return request

    async def say(self, data: bytes | None) -> None:
        assert data is not None
        await self._stream.send(data)

    async def left(self) -> None:
        """Wait until the client has hung up, and ignore what it still sends."""
        try:
            while True:
                await self._stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return


Play = Callable[[Peer], Awaitable[None]]


class Played:
    """The functions that serve each connection; the connection ends when its function returns."""

    def __init__(self) -> None:
        self.commands: Play = Peer.left
        self.events: Play = Peer.left

    async def serve_commands(self, stream: AnyByteStream) -> None:
        await _served(stream, self.commands)

    async def serve_events(self, stream: AnyByteStream) -> None:
        await _served(stream, self.events)


async def _served(stream: AnyByteStream, play: Play) -> None:
    async with stream:
        try:
            await play(Peer(stream))
        except (anyio.BrokenResourceError, anyio.EndOfStream):
            return  # a client may leave at any time


@asynccontextmanager
async def in_memory(daemon: Played, _folder: Path) -> AsyncIterator[Where]:
    async with anyio.create_task_group() as tasks:
        yield MemoryDial(
            tasks.start_soon, commands=daemon.serve_commands, events=daemon.serve_events
        )
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def over_sockets(daemon: Played, folder: Path) -> AsyncIterator[Where]:
    path = folder / "played.sock"
    commands = await anyio.create_unix_listener(path)
    events = await anyio.create_unix_listener(f"{path}.events")
    async with commands, events, anyio.create_task_group() as tasks:
        tasks.start_soon(commands.serve, daemon.serve_commands)
        tasks.start_soon(events.serve, daemon.serve_events)
        yield path
        tasks.cancel_scope.cancel()
