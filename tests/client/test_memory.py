"""Streams in memory behave like sockets, on both event loops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest

from nousd.client.memory import MemoryDial, MemoryStream, memory_streams
from nousd.errors import DaemonUnreachable
from tests.harness.daemon import WAIT_SECONDS

ROOM = 100


def play(backend: str, script: Callable[[MemoryStream, MemoryStream], Awaitable[None]]) -> None:
    """Run ``script`` with both ends of a connection with a small buffer, for ten seconds at most."""

    async def run() -> None:
        ours, theirs = memory_streams(ROOM)
        with anyio.fail_after(WAIT_SECONDS):
            async with ours, theirs:
                await script(ours, theirs)

    anyio.run(run, backend=backend)


async def all_of(stream: MemoryStream, max_bytes: int = 7) -> bytes:
    """Receive to the end, in small pieces."""
    received = b""
    while True:
        try:
            received += await stream.receive(max_bytes)
        except anyio.EndOfStream:
            return received


class Outcome:
    """The outcome of a call in its own task: the value it returned, or the type of its error."""

    def __init__(self, tasks: anyio.abc.TaskGroup, call: Callable[[], Awaitable[Any]]) -> None:
        self.value: Any = None
        self.scope = anyio.CancelScope()
        tasks.start_soon(self._run, call)

    async def _run(self, call: Callable[[], Awaitable[Any]]) -> None:
        with self.scope:
            try:
                self.value = await call()
            except (
                anyio.BrokenResourceError,
                anyio.BusyResourceError,
                anyio.ClosedResourceError,
                anyio.EndOfStream,
            ) as error:
                self.value = type(error)


def test_bytes_arrive_in_order_in_both_directions(backend: str) -> None:
    async def script(ours: MemoryStream, theirs: MemoryStream) -> None:
        await ours.send(b"one")
        await ours.send(bytearray(b"two"))
        await theirs.send(b"back")
        assert await theirs.receive() == b"onetwo"
        assert (await ours.receive(3), await ours.receive(3)) == (b"bac", b"k")

    play(backend, script)


def test_a_sender_waits_until_the_buffer_has_room(backend: str) -> None:
    text = bytes(range(256)) * 20

    async def script(ours: MemoryStream, theirs: MemoryStream) -> None:
        async with anyio.create_task_group() as tasks:
            sent = Outcome(tasks, lambda: ours.send(text))
            await anyio.wait_all_tasks_blocked()
            assert not sent.scope.cancel_called
            received = await theirs.receive(10_000)
            assert received == text[:ROOM]
            while len(received) < len(text):
                received += await theirs.receive(13)
        assert received == text

    play(backend, script)


def test_a_cancelled_send_delivers_what_fitted_in_the_buffer(backend: str) -> None:
    async def script(ours: MemoryStream, theirs: MemoryStream) -> None:
        async with anyio.create_task_group() as tasks:
            sent = Outcome(tasks, lambda: ours.send(b"x" * 1000))
            await anyio.wait_all_tasks_blocked()
            sent.scope.cancel()
        await ours.send_eof()
        assert await all_of(theirs) == b"x" * ROOM

    play(backend, script)


def test_a_cancelled_receive_loses_no_bytes(backend: str) -> None:
    async def script(ours: MemoryStream, theirs: MemoryStream) -> None:
        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                received = Outcome(tasks, theirs.receive)
                await anyio.wait_all_tasks_blocked()
                received.scope.cancel()
            assert received.value is None
        await ours.send(b"still")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await theirs.receive()
        assert await theirs.receive() == b"still"

    play(backend, script)


def test_a_stream_still_receives_after_send_eof(backend: str) -> None:
    async def script(ours: MemoryStream, theirs: MemoryStream) -> None:
        await ours.send(b"last words")
        await ours.send_eof()
        with pytest.raises(anyio.ClosedResourceError):
            await ours.send(b"more")
        assert await all_of(theirs) == b"last words"
        await theirs.send(b"answer")
        assert await ours.receive() == b"answer"

    play(backend, script)


def test_bytes_sent_before_closing_are_still_received(backend: str) -> None:
    async def script(ours: MemoryStream, theirs: MemoryStream) -> None:
        await ours.send(b"x" * 50)
        await ours.aclose()
        assert await all_of(theirs) == b"x" * 50
        with pytest.raises(anyio.BrokenResourceError):
            await theirs.send(b"answer")

    play(backend, script)


@pytest.mark.parametrize("closing", ["ours", "theirs"])
def test_closing_either_end_wakes_a_waiting_sender_and_receiver(backend: str, closing: str) -> None:
    async def script(ours: MemoryStream, theirs: MemoryStream) -> None:
        async with anyio.create_task_group() as tasks:
            received = Outcome(tasks, ours.receive)
            sent = Outcome(tasks, lambda: ours.send(b"x" * 1000))
            await anyio.wait_all_tasks_blocked()
            await (ours if closing == "ours" else theirs).aclose()
        closed = anyio.ClosedResourceError
        ends = (
            (closed, closed)
            if closing == "ours"
            else (anyio.EndOfStream, anyio.BrokenResourceError)
        )
        assert (received.value, sent.value) == ends

    play(backend, script)


def test_a_second_receiver_and_a_second_sender_are_refused(backend: str) -> None:
    async def script(ours: MemoryStream, theirs: MemoryStream) -> None:
        async with anyio.create_task_group() as tasks:
            send = partial(theirs.send, b"x" * 1000)
            calls = [Outcome(tasks, call) for call in (theirs.receive, theirs.receive, send, send)]
            await anyio.wait_all_tasks_blocked()
            assert [call.value for call in calls].count(anyio.BusyResourceError) == 2
            tasks.cancel_scope.cancel()

    play(backend, script)


def test_a_stream_is_readable_with_bytes_or_after_the_end(backend: str) -> None:
    async def script(ours: MemoryStream, theirs: MemoryStream) -> None:
        seen = [ours.is_readable]
        await theirs.send(b"x")
        seen.append(ours.is_readable)
        await ours.receive()
        seen.append(ours.is_readable)
        await theirs.aclose()
        seen.append(ours.is_readable)
        assert seen == [False, True, False, True]

    play(backend, script)


def test_send_now_sends_what_the_buffer_has_room_for(backend: str) -> None:
    async def script(ours: MemoryStream, theirs: MemoryStream) -> None:
        assert ours.send_now(b"x" * 60) == 60
        assert ours.send_now(b"x" * 60) == 40
        assert ours.send_now(b"x") == 0
        assert await theirs.receive(1000) == b"x" * ROOM
        await theirs.aclose()
        assert ours.send_now(b"x") == 0

    play(backend, script)


@pytest.mark.parametrize("max_bytes", [0, -1])
def test_receive_refuses_a_maximum_below_one_byte(backend: str, max_bytes: int) -> None:
    async def script(ours: MemoryStream, theirs: MemoryStream) -> None:
        with pytest.raises(ValueError, match="at least 1"):
            await ours.receive(max_bytes)

    play(backend, script)


# --- dialing ---------------------------------------------------------------------------------


def test_connections_over_the_limit_or_after_closing_are_refused(backend: str) -> None:
    served: list[bytes] = []

    async def serve(stream: MemoryStream) -> None:
        served.append(await all_of(stream))

    async def run() -> None:
        with anyio.fail_after(WAIT_SECONDS):
            async with anyio.create_task_group() as tasks:
                dial = MemoryDial(tasks.start_soon, commands=serve, events=serve, connections_max=2)
                first, second = await dial.commands(), await dial.events()
                with pytest.raises(DaemonUnreachable, match="too many connections"):
                    await dial.commands()
                await first.send(b"hello")
                await first.aclose()
                await anyio.wait_all_tasks_blocked()
                assert served == [b"hello"]
                third = await dial.commands()
                dial.close()
                with pytest.raises(DaemonUnreachable, match="in this process any more"):
                    await dial.events()
                await second.aclose()
                await third.aclose()
        assert len(served) == 3

    anyio.run(run, backend=backend)


def test_a_connection_ends_when_its_server_function_returns(backend: str) -> None:
    async def serve(stream: MemoryStream) -> None:
        await stream.send(b"bye")

    async def run() -> None:
        with anyio.fail_after(WAIT_SECONDS):
            async with anyio.create_task_group() as tasks:
                dial = MemoryDial(tasks.start_soon, commands=serve, events=serve)
                stream = await dial.commands()
                assert isinstance(stream, MemoryStream)
                assert await all_of(stream) == b"bye"
                await stream.aclose()

    anyio.run(run, backend=backend)
