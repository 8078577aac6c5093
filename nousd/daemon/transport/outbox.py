"""The lines on their way to one reader: a bounded queue with one writer, which joins what waits.

Whoever puts a line in never waits for the reader; whoever produces more asks for room first.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from nousd.wire.limits import PIPELINE_BYTES_MAX, PIPELINE_MAX


class Outbox:
    """A queue of lines for one stream.

    Invariant: ``_count`` lines of ``_bytes`` bytes were put in and are not yet taken by the reader, the
    ones that are just being written included; past ``PIPELINE_MAX`` or ``PIPELINE_BYTES_MAX`` goes only
    what was put in without asking for room.

    Args:
        write_now: writes what of a line the reader takes at once, and returns how many bytes.
    """

    def __init__(self, write_now: Callable[[bytes], int] = lambda _: 0) -> None:
        self._write_now = write_now
        self._lines: list[bytes] = []
        self._count = 0
        self._bytes = 0
        self._closed = False
        self._filled = trio.Event()
        self._emptied = trio.Event()

    def put(self, line: bytes) -> None:
        """Queues a line."""
        self._lines.append(line)
        self._count += 1
        self._bytes += len(line)
        self._filled.set()

    def put_now(self, line: bytes) -> None:
        """Hand a line to the reader in this moment if nothing waits before it, else queues it.

        For a line that comes alone; of many at once the writer makes one write.
        """
        taken = 0 if self._count else self._write_now(line)
        if taken < len(line):
            self.put(line[taken:])

    def close(self) -> None:
        """Let ``run`` return once everything that was put in is written."""
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
        """Write what is put in until the queue is closed.

        Raises:
            trio.BrokenResourceError: the reader is gone.
        """
        while True:
            await self._filled.wait()
            if not self._lines and self._closed:
                return
            count, joined = len(self._lines), b"".join(self._lines)
            self._lines.clear()
            if not self._closed:
                self._filled = trio.Event()
            taken = self._write_now(joined)
            if taken < len(joined):
                await stream.send_all(joined[taken:])
            self._count -= count
            self._bytes -= len(joined)
            self._emptied.set()
