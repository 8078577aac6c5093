"""The lines for one reader: a bounded queue with one writer, which joins waiting lines.

Putting a line never waits for the reader; producers of many lines wait for room first. A line may have
megabytes, so it is not copied.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from nousd.wire.limits import PIPELINE_BYTES_MAX, PIPELINE_MAX


class Outbox:
    """A queue of lines for one stream.

    Invariant: ``_count`` lines of ``_bytes`` bytes are not yet taken by the reader, including those
    being written. ``PIPELINE_MAX`` and ``PIPELINE_BYTES_MAX`` are exceeded only by lines that were put
    without waiting for room.

    Args:
        write_now: writes as much of a line as the reader takes at once, and returns the number of
            bytes.
    """

    def __init__(self, write_now: Callable[[bytes | memoryview], int] = lambda _: 0) -> None:
        self._write_now = write_now
        self._lines: list[bytes | memoryview] = []
        self._count = 0
        self._bytes = 0
        self._closed = False
        self._filled = trio.Event()
        self._emptied = trio.Event()

    def put(self, line: bytes | memoryview) -> None:
        """Queue a line."""
        if not self._lines:
            self._filled.set()
        self._lines.append(line)
        self._count += 1
        self._bytes += len(line)

    def put_now(self, line: bytes) -> None:
        """Write a line at once if no line waits before it, else queue it.

        Use this for single lines; the writer joins many lines into one write.
        """
        sent = 0 if self._count else self._write_now(line)
        if sent < len(line):
            self.put(memoryview(line)[sent:] if sent else line)

    def close(self) -> None:
        """Let ``run`` return once everything is written."""
        self._closed = True
        self._filled.set()

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another line."""
        return self._count >= PIPELINE_MAX or self._bytes >= PIPELINE_BYTES_MAX

    async def wait_room(self) -> None:
        """Wait while the queue is full."""
        while self.is_full:
            self._emptied = trio.Event()
            await self._emptied.wait()

    async def run(self, stream: trio.abc.SendStream) -> None:
        """Write queued lines until the queue is closed.

        Raises:
            trio.BrokenResourceError: the reader is gone.
        """
        while True:
            await self._filled.wait()
            if not self._lines and self._closed:
                return
            count = len(self._lines)
            joined = self._lines[0] if count == 1 else b"".join(self._lines)
            self._lines.clear()
            if not self._closed:
                self._filled = trio.Event()
            sent = self._write_now(joined)
            if sent < len(joined):
                await stream.send_all(memoryview(joined)[sent:] if sent else joined)
            self._count -= count
            self._bytes -= len(joined)
            del joined
            self._emptied.set()
