"""Lines on their way to one reader: bounded, joined, in order."""

from __future__ import annotations

import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from nousd.daemon.transport import outbox as outbox_module
from nousd.daemon.transport.outbox import Outbox
from nousd.wire.limits import PIPELINE_MAX


class Sink(trio.abc.SendStream):
    """Takes a write only when the test lets it."""

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


async def test_lines_go_out_in_order_and_whoever_puts_them_in_never_waits() -> None:
    box, sink = Outbox(), Sink()
    lines = [b"%d\n" % number for number in range(5000)]
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(box.run, sink)
            for line in lines:
                box.put(line)
            box.close()
    assert b"".join(sink.writes) == b"".join(lines)


async def test_what_waits_is_written_at_once() -> None:
    box, sink = Outbox(), Sink()
    sink.open = trio.Event()
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(box.run, sink)
            box.put(b"first\n")
            await wait_all_tasks_blocked()
            for line in (b"one\n", b"two\n", b"three\n"):
                box.put(line)
            box.close()
            sink.open.set()
    assert sink.writes == [b"first\n", b"one\ntwo\nthree\n"]


async def test_closing_lets_everything_out_first_also_when_nothing_ever_came() -> None:
    with trio.fail_after(5):
        for lines in ([], [b"last\n"]):
            box, sink = Outbox(), Sink()
            for line in lines:
                box.put(line)
            box.close()
            await box.run(sink)
            assert sink.writes == lines


@pytest.mark.parametrize("bound", ["lines", "bytes"])
async def test_a_full_box_makes_whoever_asks_wait_until_something_is_taken(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "PIPELINE_BYTES_MAX", 5000)
    box, sink = Outbox(), Sink()
    with trio.fail_after(5):
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


async def test_one_line_short_of_full_is_room() -> None:
    box = Outbox()
    for _ in range(PIPELINE_MAX - 1):
        box.put(b"\n")
    with trio.fail_after(5):
        await box.wait_room()


async def test_a_reader_that_is_gone_is_told_to_the_writer() -> None:
    box = Outbox()
    ours, theirs = memory_stream_pair()
    await theirs.aclose()
    box.put(b"line\n")
    with pytest.raises(trio.BrokenResourceError), trio.fail_after(5):
        await box.run(ours)


class Kernel:
    """Takes at once as many bytes as the test says."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.taken = b""

    def write(self, data: bytes) -> int:
        taken = data[: self.room]
        self.room -= len(taken)
        self.taken += taken
        return len(taken)


@pytest.mark.parametrize("room", [0, 1, 6, 7, 100])
async def test_a_line_for_now_is_out_before_any_task_runs_as_far_as_the_reader_takes_it(
    room: int,
) -> None:
    kernel, sink = Kernel(room), Sink()
    box = Outbox(kernel.write)
    box.put_now(b"answer\n")
    assert kernel.taken == b"answer\n"[:room]
    box.close()
    with trio.fail_after(5):
        await box.run(sink)
    assert kernel.taken + b"".join(sink.writes) == b"answer\n"


async def test_a_line_for_now_does_not_overtake_what_waits_or_is_just_being_written() -> None:
    kernel, sink = Kernel(0), Sink()
    sink.open = trio.Event()
    box = Outbox(kernel.write)
    with trio.fail_after(5):
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
