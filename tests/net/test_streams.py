"""The low-overhead socket stream behaves like any trio stream."""

from __future__ import annotations

import socket

import pytest
import trio
from trio.testing import check_two_way_stream

from nousd.net.streams import DirectStream


async def connected() -> tuple[DirectStream, DirectStream]:
    ours, theirs = socket.socketpair()
    return over(ours), over(theirs)


async def clogged() -> tuple[DirectStream, DirectStream]:
    """Return a pair of which neither could write without waiting."""
    ours, theirs = await connected()
    for end in (ours, theirs):
        while end.write_now(b"x" * 65536):
            pass
    return ours, theirs


def over(end: socket.socket) -> DirectStream:
    return DirectStream(trio.SocketStream(trio.socket.from_stdlib_socket(end)))


async def test_it_is_a_stream_as_trio_demands_of_every_stream() -> None:
    with trio.fail_after(60):
        await check_two_way_stream(connected, clogged)


async def test_what_the_kernel_takes_at_once_is_written_and_the_rest_is_left() -> None:
    ours, theirs = await connected()
    async with ours, theirs:
        sent = b"y" * 10_000_000
        taken = ours.write_now(sent)
        assert 0 < taken < len(sent)
        assert ours.write_now(b"more") == 0
        received = 0
        with trio.fail_after(10):
            while received < taken:
                received += len(await theirs.receive_some())
        assert received == taken


async def test_nothing_is_written_to_whatever_has_the_number_of_a_closed_socket() -> None:
    ours, theirs = await connected()
    await ours.aclose()
    heir, other = socket.socketpair()  # has the number that is free now
    with heir, other:
        assert ours.write_now(b"answer\n") == 0
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.recv(1)
    await theirs.aclose()


async def test_a_reset_connection_is_broken_for_whoever_reads_and_whoever_writes() -> None:
    ours, theirs = await connected()
    async with ours:
        await ours.send_all(b"never read")
        await theirs.aclose()
        assert ours.write_now(b"x") == 0
        with trio.fail_after(10), pytest.raises(trio.BrokenResourceError):
            await ours.receive_some()
        with pytest.raises(trio.BrokenResourceError):
            await ours.send_all(b"x")
