"""A subscriber whose connection keeps breaking, and which goes on from the last whole line it has.

It keeps nothing of a line that was cut and knows nothing of what the lines mean, so what it has in the
end is what the event socket gave, whole lines joined.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

READ_BYTES = 64 * 1024
ANSWER_READ_BYTES = 256
"""So few that hardly anything of the events behind the answer comes with it."""


class Refused(AssertionError):
    """A subscription was answered with an error."""


class ResumingReader:
    """Reads lines off the event socket in any number of connections.

    Args:
        socket: the event socket.
        after: where to begin.
        subscription: what else the subscription says.
    """

    def __init__(self, socket: Path, *, after: str = "evt-0", **subscription: Any) -> None:
        self.lines: list[bytes] = []
        self.cursor = after
        self.connections = 0
        self._socket = socket
        self._subscription = subscription

    async def take(
        self, bytes_wanted: int, *, is_last: Callable[[bytes], bool] = lambda _: False
    ) -> bool:
        """Connects, reads that many bytes of events and drops the connection wherever that is.

        Returns:
            whether a line came that ``is_last``; nothing behind it is read.

        Raises:
            Refused: the daemon did not take the cursor.
            EOFError: it closed the connection.
            OSError, trio.BrokenResourceError: it is gone.
        """
        stream = await trio.open_unix_socket(str(self._socket))
        self.connections += 1
        try:
            return await self._take(stream, bytes_wanted, is_last)
        finally:
            await trio.aclose_forcefully(stream)

    async def _take(
        self, stream: trio.abc.Stream, wanted: int, is_last: Callable[[bytes], bool]
    ) -> bool:
        rest = (await self._subscribe(stream))[:wanted]
        wanted -= len(rest)
        while True:
            *whole, rest = rest.split(b"\n")
            for line in whole:
                self._keep(line + b"\n")
                if is_last(line):
                    return True
            if wanted <= 0:
                return False
            chunk = await _receive(stream, min(wanted, READ_BYTES))
            wanted -= len(chunk)
            rest += chunk

    async def _subscribe(self, stream: trio.abc.Stream) -> bytes:
        """Returns what came behind the answer."""
        payload = {"after": self.cursor, **self._subscription}
        request = {"v": "1", "id": "resumed", "type": "subscribe", "payload": payload}
        await stream.send_all(json.dumps(request).encode() + b"\n")
        received = b""
        while True:
            # Until it has subscribed, a client gets what happens just then.
            line, newline, received = received.partition(b"\n")
            if not newline:
                received = line + await _receive(stream, ANSWER_READ_BYTES)
            elif b'"id":"resumed"' in line:
                if not json.loads(line)["ok"]:
                    raise Refused(line.decode())
                return received

    def _keep(self, line: bytes) -> None:
        self.lines.append(line)
        self.cursor = "evt-" + line.partition(b'"evt-')[2].partition(b'"')[0].decode()


async def _receive(stream: trio.abc.Stream, bytes_max: int) -> bytes:
    chunk = await stream.receive_some(bytes_max)
    if not chunk:
        raise EOFError("the daemon has closed the connection")
    return bytes(chunk)
