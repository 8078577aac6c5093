"""``nousd acp``: serves the sessions to any editor that speaks the Agent Client Protocol, version 1,
over standard input and output.

It is an ordinary client of the daemon. Runs that the editor starts continue in the daemon when the
editor is closed, and the editor shows what other clients do in the same sessions.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from nousd.acp_server.agent import Agent
from nousd.client.client import Client
from nousd.wire.codec.framing import LineSplitter, LineTooLong

LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Maximum length of an editor's line: a prompt may contain images."""

_READ_BYTES: Final = 256 * 1024
_LINES_MAX: Final = 64
"""Maximum lines queued for an editor that does not read; then the sessions wait too."""

_LAST_LINES_SECONDS: Final = 5.0


def serve(socket_path: Path, *, start: Callable[[], object]) -> None:
    """Serve until standard input ends.

    Args:
        start: starts the daemon and returns when it answers; called in a thread.
    """
    # No orderly shutdown is needed: runs belong to the daemon.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Stray prints must not be mistaken for messages.
    output, sys.stdout = os.dup(sys.stdout.fileno()), sys.stderr
    trio.run(_serve, socket_path, start, sys.stdin.fileno(), output)


async def _serve(socket_path: Path, start: Callable[[], object], source: int, output: int) -> None:
    async def ensure() -> None:
        await trio.to_thread.run_sync(start)

    async def read() -> bytes:
        return await trio.to_thread.run_sync(os.read, source, _READ_BYTES, abandon_on_cancel=True)

    async def write(line: bytes) -> None:
        await trio.to_thread.run_sync(_write_all, output, line, abandon_on_cancel=True)

    await talk(socket_path, read=read, write=write, ensure=ensure)


async def talk(
    socket_path: Path,
    *,
    read: Callable[[], Awaitable[bytes]],
    write: Callable[[bytes], Awaitable[None]],
    ensure: Callable[[], Awaitable[None]],
) -> None:
    """Serve until the editor's output ends.

    Args:
        read: returns the next bytes of the editor, or none at the end.
        write: writes one or several lines completely.
        ensure: starts the daemon if none runs.
    """
    lines, waiting = trio.open_memory_channel[bytes](_LINES_MAX)
    async with (
        Client(socket_path) as daemon,
        trio.open_nursery() as writing,
    ):
        writing.start_soon(_write_lines, waiting, write, writing.cancel_scope)
        async with trio.open_nursery() as sessions:
            agent = Agent(daemon, lines.send, sessions, ensure)
            await _take_lines(agent, read)
            agent.close()
            sessions.cancel_scope.cancel()
        lines.close()
        writing.cancel_scope.deadline = trio.current_time() + _LAST_LINES_SECONDS


async def _take_lines(agent: Agent, read: Callable[[], Awaitable[bytes]]) -> None:
    splitter = LineSplitter(LINE_BYTES_MAX)
    while chunk := await read():
        for line in splitter.feed(chunk):
            await _take(agent, line)
    for line in splitter.end():
        await _take(agent, line)


async def _take(agent: Agent, line: bytes | LineTooLong) -> None:
    if isinstance(line, LineTooLong):
        await agent.refuse_line(f"the line has more than {LINE_BYTES_MAX} bytes")
    elif line.strip():
        await agent.rpc.take(line)


async def _write_lines(
    lines: trio.MemoryReceiveChannel[bytes],
    write: Callable[[bytes], Awaitable[None]],
    all_tasks: trio.CancelScope,
) -> None:
    async for line in lines:
        ready = [line]
        with suppress(trio.WouldBlock, trio.EndOfChannel):
            while len(ready) < _LINES_MAX:
                ready.append(lines.receive_nowait())
        try:
            await write(b"".join(each + b"\n" for each in ready))
        except OSError:
            all_tasks.cancel()  # the editor has stopped reading
            return


def _write_all(output: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(output, rest) :]
