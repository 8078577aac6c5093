"""The lines on their way to one reader: a bounded queue with one writer, which joins what waits.

Whoever puts a line in never waits for the reader; whoever produces more asks for room first.
"""

from __future__ import annotations

from typing import Final

import trio

from nousd.wire.limits import PIPELINE_MAX

_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes that wait before more is produced. One answer may be larger; then it waits alone."""


class Outbox:
    """A queue of lines for one stream.

    Invariant: at most ``PIPELINE_MAX`` lines beyond what was put in without asking for room.
    """

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._bytes = 0
        self._closed = False
        self._filled = trio.Event()
        self._emptied = trio.Event()

    def put(self, line: bytes) -> None:
        """Queues a line."""
        self._lines.append(line)
        self._bytes += len(line)
        self._filled.set()

    def close(self) -> None:
        """Lets ``run`` return once everything that was put in is written."""
        self._closed = True
        self._filled.set()

    async def wait_room(self) -> None:
        """Waits while the queue is full."""
        while len(self._lines) >= PIPELINE_MAX or self._bytes >= _BYTES_MAX:
            self._emptied = trio.Event()
            await self._emptied.wait()

    async def run(self, stream: trio.abc.SendStream) -> None:
        """Writes what is put in until the queue is closed.

        Raises:
            trio.BrokenResourceError: the reader is gone.
        """
        while True:
            await self._filled.wait()
            if not self._lines and self._closed:
                return
            joined = b"".join(self._lines)
            self._lines.clear()
            self._bytes = 0
            if not self._closed:
                self._filled = trio.Event()
            self._emptied.set()
            await stream.send_all(joined)
