"""The outbox of one reader: its lines are bounded, joined and in order."""

from __future__ import annotations

import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from nousd.daemon.transport import outbox as outbox_module
from nousd.daemon.transport.outbox import Outbox
from nousd.wire.limits import PIPELINE_MAX
from tests.harness.daemon import WAIT_SECONDS


class Sink(trio.abc.SendStream):
    """A stream whose writes wait while ``open`` is not set."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.open = trio.Event()
        self.open.set()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.open.wait()
        self.writes.append(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_lines_are_written_in_the_order_of_put() -> None:
    box, sink = Outbox(), Sink()
    lines = [b"%d\n" % number for number in range(5000)]
    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(box.run, sink)
            for line in lines:
                box.put(line)
            box.close()
    assert b"".join(sink.writes) == b"".join(lines)


async def test_waiting_lines_are_joined_into_one_write() -> None:
    box, sink = Outbox(), Sink()
    sink.open = trio.Event()
    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(box.run, sink)
            box.put(b"first\n")
            await wait_all_tasks_blocked()
            for line in (b"one\n", b"two\n", b"three\n"):
                box.put(line)
            box.close()
            sink.open.set()
    assert sink.writes == [b"first\n", b"one\ntwo\nthree\n"]


async def test_a_closed_outbox_writes_its_remaining_lines_and_stops() -> None:
    with trio.fail_after(WAIT_SECONDS):
        for lines in ([], [b"last\n"]):
            box, sink = Outbox(), Sink()
            for line in lines:
                box.put(line)
            box.close()
            await box.run(sink)
            assert sink.writes == lines


@pytest.mark.parametrize("bound", ["lines", "bytes"])
async def test_wait_room_waits_while_the_outbox_is_full(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "PIPELINE_BYTES_MAX", 5000)
    box, sink = Outbox(), Sink()
    with trio.fail_after(WAIT_SECONDS):
        await box.wait_room()
        if bound == "lines":
            for _ in range(PIPELINE_MAX):
                box.put(b"\n")
        else:
            box.put(b"x" * 5000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(box.wait_room)
            await wait_all_tasks_blocked()
            assert nursery.child_tasks, "there was room"
            nursery.start_soon(box.run, sink)
            await wait_all_tasks_blocked()
            assert len(nursery.child_tasks) == 1, "there was no room after everything was written"
            box.close()


async def test_wait_room_returns_at_once_one_line_below_the_limit() -> None:
    box = Outbox()
    for _ in range(PIPELINE_MAX - 1):
        box.put(b"\n")
    with trio.fail_after(WAIT_SECONDS):
        await box.wait_room()


async def test_run_raises_an_error_if_the_reader_has_gone() -> None:
    box = Outbox()
    ours, theirs = memory_stream_pair()
    await theirs.aclose()
    box.put(b"line\n")
    with pytest.raises(trio.BrokenResourceError), trio.fail_after(WAIT_SECONDS):
        await box.run(ours)


class Kernel:
    """A write function that accepts ``room`` bytes without waiting."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.taken = b""

    def write(self, data: bytes | memoryview) -> int:
        taken = bytes(data[: self.room])
        self.room -= len(taken)
        self.taken += taken
        return len(taken)


@pytest.mark.parametrize("room", [0, 1, 6, 7, 100])
async def test_put_now_writes_at_once_as_much_as_the_reader_accepts(
    room: int,
) -> None:
    kernel, sink = Kernel(room), Sink()
    box = Outbox(kernel.write)
    box.put_now(b"answer\n")
    assert kernel.taken == b"answer\n"[:room]
    box.close()
    with trio.fail_after(WAIT_SECONDS):
        await box.run(sink)
    assert kernel.taken + b"".join(sink.writes) == b"answer\n"


async def test_a_large_line_is_not_copied() -> None:
    line = b"x" * 4_000_000
    kernel, sink = Kernel(1_000), Views()
    box = Outbox(kernel.write)
    box.put_now(line)
    box.close()
    with trio.fail_after(WAIT_SECONDS):
        await box.run(sink)
    (view,) = sink.views
    assert isinstance(view, memoryview)
    assert view.obj is line
    assert len(kernel.taken) + len(view) == len(line)


class Views(Sink):
    """Keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.views: list[bytes | bytearray | memoryview] = []

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self.views.append(data)


async def test_put_now_does_not_overtake_waiting_lines_or_a_write_in_progress() -> None:
    kernel, sink = Kernel(0), Sink()
    sink.open = trio.Event()
    box = Outbox(kernel.write)
    with trio.fail_after(WAIT_SECONDS):
        async with trio.open_nursery() as nursery:
            box.put(b"waiting\n")
            box.put_now(b"second\n")
            nursery.start_soon(box.run, sink)
            await wait_all_tasks_blocked()
            kernel.room = 100
            box.put_now(b"third\n")
            assert list(kernel.taken) == []
            sink.open.set()
            await wait_all_tasks_blocked()
            assert sink.writes == [b"waiting\nsecond\n"]
            box.put_now(b"alone\n")
            assert kernel.taken == b"third\nalone\n"
            box.close()
