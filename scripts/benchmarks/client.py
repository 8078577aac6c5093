"""The client of every row: plain trio sockets, and as little work as possible while time counts."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import trio

READ_BYTES: Final = 256 * 1024

_RUN_END: Final = b'"type":"agent_end"'
_DELTAS: Final = (b'"type":"message_update"', b'"type":"reasoning_update"')


class Commands:
    """A connection to the command socket."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._rest = b""
        self._ids = itertools.count(1)

    async def ask(self, type: str, **payload: Any) -> dict[str, Any]:
        """Send a command and return the payload of its answer.

        Raises:
            RuntimeError: it was refused.
        """
        answer = msgspec.json.decode(await self.ask_for_line(type, **payload))
        return dict(answer["payload"])

    async def ask_for_line(self, type: str, **payload: Any) -> bytes:
        """Send a command and return its answer undecoded: decoding megabytes holds up whoever measures
        in the same process.

        Raises:
            RuntimeError: it was refused.
        """
        line = {"v": "1", "id": f"{next(self._ids)}", "type": type, "payload": payload}
        answer = await self.exchange(msgspec.json.encode(line) + b"\n")
        if b'"payload":{},"ok":false' in answer[:READ_BYTES]:
            raise RuntimeError(f"{type} was refused: {answer!r}")
        return answer

    async def exchange(self, line: bytes) -> bytes:
        """Send a line and return the next one."""
        await self._stream.send_all(line)
        chunks = [self._rest]
        while b"\n" not in chunks[-1]:
            chunk = await self._stream.receive_some(READ_BYTES)
            if not chunk:
                raise RuntimeError("the daemon has hung up")
            chunks.append(chunk)
        answer, _, self._rest = b"".join(chunks).partition(b"\n")
        return answer


@asynccontextmanager
async def commands(path: Path) -> AsyncIterator[Commands]:
    """Connect to the command socket."""
    async with await trio.open_unix_socket(path) as stream:
        yield Commands(stream)


class Arrival(NamedTuple):
    """A delta, and when its last byte was here (``time.monotonic_ns``)."""

    at: int
    delta: str


class _Payload(msgspec.Struct):
    delta: str


class _Line(msgspec.Struct):
    payload: _Payload


class Recording:
    """The bytes that a subscriber received, not parsed until the measured time is over."""

    def __init__(self) -> None:
        self._chunks: list[tuple[int, bytes]] = []

    async def until_runs_ended(self, stream: trio.SocketStream, runs: int = 1) -> None:
        """Read until so many runs have ended.

        Raises:
            RuntimeError: the stream ended before.
        """
        rest = b""
        while runs:
            chunk = await stream.receive_some(READ_BYTES)
            if not chunk:
                raise RuntimeError("the stream of events has ended")
            self._chunks.append((time.monotonic_ns(), bytes(chunk)))
            # Whole lines only: no end is counted twice, and none behind which more is to come.
            lines, _, rest = (rest + chunk).rpartition(b"\n")
            runs -= lines.count(_RUN_END)

    def deltas(self) -> Iterator[Arrival]:
        """Yield the events of deltas in the order in which they came; one may hold several deltas."""
        decoder = msgspec.json.Decoder(_Line)
        rest = b""
        for at, chunk in self._chunks:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if any(kind in line for kind in _DELTAS):
                    yield Arrival(at, decoder.decode(line).payload.delta)


@asynccontextmanager
async def subscription(path: Path, **payload: Any) -> AsyncIterator[trio.SocketStream]:
    """Subscribes; what was asked for is what comes next on the stream."""
    async with await trio.open_unix_socket(path) as stream:
        line = json.dumps({"v": "1", "id": "s", "type": "subscribe", "payload": payload})
        await stream.send_all(line.encode() + b"\n")
        answer = b""
        # Byte by byte up to its end, because events may follow it in the same read.
        while not answer.endswith(b"\n"):
            answer += await stream.receive_some(1)
        if b'"subscribed"' not in answer:
            raise RuntimeError(f"the subscription was refused: {answer!r}")
        yield stream
