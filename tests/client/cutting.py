"""A scripted daemon in memory that cuts connections anywhere, on either event loop."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import anyio
from anyio.abc import AnyByteStream

from nousd.client.memory import MemoryStream, memory_streams
from nousd.errors import DaemonUnreachable
from nousd.wire.codec.framing import LineSplitter
from tests.harness.fake_daemon import event, ok, refused

WHOLE = 10_000_000


class CuttingDaemon:
    """Serves a fixed log of event lines to subscribers and cuts each connection after some bytes.

    Args:
        tasks: the task group that serves connections.
        budget: the number of bytes that the next connection sends before it ends; 0: it is refused;
            ``WHOLE``: it sends everything and stays open.
        lasts: seconds until a connection ends after its last byte.
    """

    def __init__(
        self,
        tasks: anyio.abc.TaskGroup,
        lines: list[bytes],
        budget: Callable[[], int],
        *,
        lasts: float = 0.0,
    ) -> None:
        self._lasts = lasts
        self._tasks = tasks
        self._lines = lines
        self._budget = budget
        self.connections = 0
        self.wanted: list[dict[str, object]] = []

    def __str__(self) -> str:
        return "the script"

    async def commands(self) -> AnyByteStream:
        raise NotImplementedError

    async def events(self) -> AnyByteStream:
        self.connections += 1
        budget = self._budget()
        if budget == 0:
            raise DaemonUnreachable("nobody listens in the script")
        ours, theirs = memory_streams(512)
        self._tasks.start_soon(self._serve, theirs, budget)
        return ours

    async def _serve(self, stream: MemoryStream, budget: int) -> None:
        async with stream:
            try:
                answer = self._answered(json.loads(await _line(stream)))
                whole = answer + b"".join(self._lines[self._position :])
                await stream.send(whole[:budget])
                await anyio.sleep(self._lasts)
                if budget == WHOLE:
                    await stream.receive()  # until the client leaves
            except (anyio.BrokenResourceError, anyio.EndOfStream):
                pass  # it left before it had all

    def _answered(self, request: dict[str, dict[str, str]]) -> bytes:
        self.wanted.append(dict(request["payload"]))
        after = request["payload"].get("after", "evt-0")
        self._position = int(after.removeprefix("evt-"))
        if self._position > len(self._lines):
            return refused("command_rejected", "cursor_beyond_head")(request) or b""
        return (
            ok("subscribed", {"cursor": after, "head": f"evt-{len(self._lines)}"})(request) or b""
        )


async def _line(stream: MemoryStream) -> bytes:
    splitter = LineSplitter()
    while not (lines := splitter.feed(await stream.receive())):
        pass
    assert isinstance(lines[0], bytes)
    return lines[0]


def script(count: int, dice: random.Random) -> list[bytes]:
    """Return event lines of various lengths, numbered from 1."""
    texts = ("x" * dice.randrange(200) + "\N{LINE SEPARATOR}é" for _ in range(count))
    return [event(number, "status", message=text) for number, text in enumerate(texts, 1)]
