"""The low-overhead socket stream behaves like any trio stream."""

from __future__ import annotations

import socket

import pytest
import trio
from trio.testing import check_two_way_stream

from nousd.net.streams import DirectStream
from tests.harness.daemon import WAIT_SECONDS


async def connected() -> tuple[DirectStream, DirectStream]:
    ours, theirs = socket.socketpair()
    return stream_over(ours), stream_over(theirs)


async def clogged() -> tuple[DirectStream, DirectStream]:
    """Return a pair whose buffers are full in both directions."""
    ours, theirs = await connected()
    for end in (ours, theirs):
        while end.write_now(b"x" * 65536):
            pass
    return ours, theirs


def stream_over(end: socket.socket) -> DirectStream:
    return DirectStream(trio.SocketStream(trio.socket.from_stdlib_socket(end)))


async def test_a_direct_stream_passes_trios_stream_checks() -> None:
    with trio.fail_after(60):
        await check_two_way_stream(connected, clogged)


async def test_write_now_writes_only_what_the_kernel_accepts_at_once() -> None:
    ours, theirs = await connected()
    async with ours, theirs:
        sent = b"y" * 10_000_000
        taken = ours.write_now(sent)
        assert 0 < taken < len(sent)
        assert ours.write_now(b"more") == 0
        received = 0
        with trio.fail_after(WAIT_SECONDS):
            while received < taken:
                received += len(await theirs.receive_some())
        assert received == taken


async def test_a_closed_stream_does_not_write_to_a_reused_descriptor() -> None:
    ours, theirs = await connected()
    await ours.aclose()
    heir, other = socket.socketpair()  # reuses the free descriptor number
    with heir, other:
        assert ours.write_now(b"answer\n") == 0
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.recv(1)
    await theirs.aclose()


async def test_a_reset_connection_fails_reads_and_writes() -> None:
    ours, theirs = await connected()
    async with ours:
        await ours.send_all(b"never read")
        await theirs.aclose()
        assert ours.write_now(b"x") == 0
        with trio.fail_after(WAIT_SECONDS), pytest.raises(trio.BrokenResourceError):
            await ours.receive_some()
        with pytest.raises(trio.BrokenResourceError):
            await ours.send_all(b"x")
