"""Many stream readers, and readers that do not read."""

from __future__ import annotations

import gc
import socket
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit, setrlimit

import pytest
import trio

from nousd.bridge.http import server
from nousd.bridge.stream.hub import PAGE_BYTES
from nousd.providers.mock.provider import MockProvider
from tests.bridge.harness import TOKEN, Bridge, bridge_to, text
from tests.harness.daemon import socket_daemon

READERS = 1000
MEASURED = 100
SESSIONS = 20
STALLED = 20
WORD = f"[[text {'x' * 500_000}]]"
RUNS = 3
HELD_BYTES_MAX = 60 * 1024
"""The memory that a reader may take, both of its ends together."""


@contextmanager
def descriptors(count: int) -> Iterator[None]:
    """Raise the limit of open files: both ends of each connection are in this process."""
    soft, hard = getrlimit(RLIMIT_NOFILE)
    if hard < count:
        pytest.skip(f"only {hard} open files are allowed")
    setrlimit(RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        setrlimit(RLIMIT_NOFILE, (soft, hard))


@asynccontextmanager
async def raw_stream(bridge: Bridge, target: str) -> AsyncIterator[trio.SocketStream]:
    """Open an event stream with small system buffers, and read nothing from it."""
    _, _, address = bridge.base.rpartition("/")
    host, _, port = address.partition(":")
    with trio.socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await sock.connect((host, int(port)))
        stream = trio.SocketStream(sock)
        head = f"GET {target} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {TOKEN}\r\n\r\n"
        await stream.send_all(head.encode())
        yield stream


async def received(stream: trio.SocketStream, until: bytes) -> bytes:
    data = b""
    while until not in data:
        chunk = await stream.receive_some()
        assert chunk, f"ended after {data[-200:]!r}"
        data += chunk
    return data


async def rest_of(stream: trio.SocketStream) -> bytes:
    """Return all bytes until the connection ends in any way."""
    data = b""
    try:
        while chunk := await stream.receive_some():
            data += chunk
    except trio.BrokenResourceError:
        pass
    return data


async def flood(bridge: Bridge, session: str) -> None:
    """Produce far more output than a connection buffers."""
    for _ in range(RUNS):
        await bridge.post(f"/session/{session}/prompt_sync", parts=text(WORD))


@pytest.mark.slow
async def test_a_thousand_idle_readers_take_little_memory_and_receive_their_events_and_the_end(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This test does not measure how many readers a busy machine serves within the grace period.
    monkeypatch.setattr(server, "GRACE_SECONDS", 60.0)
    with descriptors(4 * READERS):
        async with AsyncExitStack() as connections:
            async with (
                socket_daemon(short_folder, provider=MockProvider()) as daemon,
                bridge_to(daemon) as bridge,
            ):
                sessions = [await bridge.new_session() for _ in range(SESSIONS)]
                streams = []
                tracemalloc.start()
                before = _held()
                for number in range(READERS):
                    target = f"/event?sessionID={sessions[number % SESSIONS]}"
                    stream = await connections.enter_async_context(raw_stream(bridge, target))
                    await received(stream, b"lifecycle.ready")
                    streams.append(stream)
                    if len(streams) == MEASURED:
                        held = _held() - before
                        tracemalloc.stop()
                assert held < MEASURED * HELD_BYTES_MAX

                await bridge.post(f"/session/{sessions[0]}/prompt_sync", parts=text("hello"))
                for number in range(0, READERS, SESSIONS):
                    with trio.fail_after(60):
                        await received(streams[number], b"session.run.finished")
            with trio.fail_after(60):
                for stream in streams:
                    assert (await rest_of(stream)).endswith(b"0\r\n\r\n"), "a proper end"


async def test_a_stalled_reader_is_cut_off_and_does_not_block_others(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = trio.Event()

    class Watched(server._DeadlineStream):
        async def send_all(self, data: bytes | bytearray | memoryview) -> None:
            try:
                await super().send_all(data)
            except trio.BrokenResourceError:
                cut.set()
                raise

    monkeypatch.setattr(server, "_DeadlineStream", Watched)
    monkeypatch.setattr(server, "HTTP_WRITE_SECONDS", 1.0)
    async with (
        socket_daemon(short_folder, provider=MockProvider()) as daemon,
        bridge_to(daemon) as bridge,
        raw_stream(bridge, "/event") as stalled,
        bridge.events() as frames,
    ):
        session = await bridge.new_session()
        await received(stalled, b"lifecycle.ready")
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(flood, bridge, session)
                for _ in range(RUNS):
                    await frames.until("session.run.finished")
            await cut.wait()
            data = await rest_of(stalled)
    assert data.count(b"session.run.finished") < RUNS
    assert not data.endswith(b"0\r\n\r\n"), "no proper end, so that the reader resumes"


@pytest.mark.slow
async def test_stalled_readers_hold_few_pages_of_memory_each(short_folder: Path) -> None:
    async with (
        socket_daemon(short_folder, provider=MockProvider()) as daemon,
        bridge_to(daemon) as bridge,
    ):
        session = await bridge.new_session()
        async with AsyncExitStack() as connections:
            for _ in range(STALLED):
                stalled = await connections.enter_async_context(raw_stream(bridge, "/event"))
                await received(stalled, b"lifecycle.ready")
            tracemalloc.start()
            await flood(bridge, session)
            held = _held()
        with trio.fail_after(60):
            await bridge.get("/global/health")
            freed = held - _held()
        tracemalloc.stop()
    assert freed < STALLED * 4 * PAGE_BYTES


def _held() -> int:
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    return held


@pytest.mark.slow
async def test_a_stalled_reader_does_not_delay_the_shutdown(short_folder: Path) -> None:
    async with AsyncExitStack() as connections:
        async with (
            socket_daemon(short_folder, provider=MockProvider()) as daemon,
            bridge_to(daemon) as bridge,
        ):
            session = await bridge.new_session()
            stalled = await connections.enter_async_context(raw_stream(bridge, "/event"))
            await received(stalled, b"lifecycle.ready")
            await flood(bridge, session)
            asked_at = trio.current_time()
        assert trio.current_time() - asked_at < server.GRACE_SECONDS + 30
        assert not (await rest_of(stalled)).endswith(b"0\r\n\r\n")
