"""A subscriber whose connection keeps breaking and which resumes after its last complete line.

It drops incomplete lines and does not interpret complete ones, so its result is exactly the lines
sent on the event socket.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

READ_BYTES = 64 * 1024
ANSWER_READ_BYTES = 256
"""A size so small that few bytes of events come with the answer."""

IsLast = Callable[[bytes], bool]


class Refused(AssertionError):
    """A subscription was answered with an error."""


def seq_of(line: bytes) -> int:
    """Return the number of an event line."""
    return int(line.partition(b'"evt-')[2].partition(b'"')[0])


class ResumingReader:
    """Reads lines off the event socket in any number of connections.

    Args:
        socket: the event socket.
        after: the first cursor.
        subscription: other fields of the subscription.
    """

    def __init__(self, socket: Path, *, after: str = "evt-0", **subscription: Any) -> None:
        self.lines: list[bytes] = []
        self.last_seq = int(after.removeprefix("evt-"))
        self.connections = 0
        self.subscription = subscription
        self._socket = socket
        self._stream: trio.abc.Stream | None = None
        self._rest = b""

    @property
    def cursor(self) -> str:
        """The id of the last whole line."""
        return f"evt-{self.last_seq}"

    def keep(self, line: bytes) -> None:
        """Take a whole line."""
        self.lines.append(line)

    async def take(self, bytes_wanted: int, *, is_last: IsLast = lambda _: False) -> bool:
        """Connect, read that many bytes of events and drop the connection.

        Returns:
            True if a line came that ``is_last``; later lines are not kept.

        Raises:
            Refused: the daemon did not take the cursor.
            EOFError: it closed the connection.
            OSError, trio.BrokenResourceError: it is gone.
        """
        try:
            return await self.read(bytes_wanted, is_last=is_last)
        finally:
            await self.drop()

    async def read(self, bytes_wanted: int, *, is_last: IsLast = lambda _: False) -> bool:
        """Like ``take``, on the current connection, which stays open."""
        if self._stream is None:
            self._stream = await trio.open_unix_socket(str(self._socket))
            self.connections += 1
            self._rest = await self._subscribe(self._stream)
            bytes_wanted -= len(self._rest)
        while True:
            *whole, self._rest = self._rest.split(b"\n")
            for line in whole:
                self.last_seq = seq_of(line)
                self.keep(line + b"\n")
                if is_last(line):
                    return True
            if bytes_wanted <= 0:
                return False
            chunk = await _receive(self._stream, min(bytes_wanted, READ_BYTES))
            bytes_wanted -= len(chunk)
            self._rest += chunk

    async def drop(self) -> None:
        """Drop the connection and any incomplete line."""
        stream, self._stream, self._rest = self._stream, None, b""
        if stream is not None:
            await trio.aclose_forcefully(stream)

    async def _subscribe(self, stream: trio.abc.Stream) -> bytes:
        """Return the bytes received after the answer."""
        payload = {"after": self.cursor, **self.subscription}
        request = {"v": "1", "id": "resumed", "type": "subscribe", "payload": payload}
        await stream.send_all(json.dumps(request).encode() + b"\n")
        received = b""
        while True:
            # Before its subscription, a client receives current events.
            line, newline, received = received.partition(b"\n")
            if not newline:
                received = line + await _receive(stream, ANSWER_READ_BYTES)
            elif b'"id":"resumed"' in line:
                if not json.loads(line)["ok"]:
                    raise Refused(line.decode())
                return received


async def _receive(stream: trio.abc.Stream, bytes_max: int) -> bytes:
    chunk = await stream.receive_some(bytes_max)
    if not chunk:
        raise EOFError("the daemon has closed the connection")
    return bytes(chunk)
