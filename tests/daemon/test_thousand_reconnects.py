"""A client that loses its connection a thousand times during one run still receives every byte.

The model's answer is released just ahead of the reader: each connection begins in the middle of a
streaming run and breaks at a random byte.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import trio

from tests.daemon.process_harness import Place, running
from tests.harness.resuming_reader import ResumingReader
from tests.harness.stub_model import Gate, Reply, StubModel, burst, burst_reply, delta, finish

RECONNECTS: Final = 1000
PORTION: Final = 400
PORTIONS: Final = 50
"""The answer: the number of deltas after each gate, and the number of gates."""

TAKE_BYTES_MAX: Final = 5_000
AHEAD_BYTES: Final = 20_000
"""Bytes of the answer released ahead of the reader; more than one connection reads."""

LINE_BYTES_MIN: Final = 150
SECONDS_MAX: Final = 120
"""A limit for a busy machine; the test usually takes a few seconds."""

FILTERS: Final[tuple[dict[str, Any], ...]] = (
    {"types": "v1"},
    {"types": ["message_update", "agent_end"]},
)


@pytest.fixture
async def place(short_folder: Path, stub: StubModel) -> Place:
    return Place(short_folder, stub)


class HeldAnswer:
    """A long answer in portions, each released when the reader needs it."""

    def __init__(self) -> None:
        self._gates = [Gate() for _ in range(PORTIONS)]
        # Text and reasoning alternate, because neighbouring deltas of one kind may be joined.
        portion = burst(*[delta(content="word "), delta(reasoning="hm ")] * (PORTION // 2))
        held = itertools.chain.from_iterable((gate, portion) for gate in self._gates)
        self.reply = Reply((*held, *finish()))
        self._released = 0

    @property
    def is_held(self) -> bool:
        return self._released < PORTIONS

    def keep_ahead_of(self, bytes_read: int) -> None:
        """Release portions until there is more to read than one connection reads."""
        while self.is_held and self._bytes_released < bytes_read + AHEAD_BYTES:
            self._gates[self._released].open()
            self._released += 1

    @property
    def _bytes_released(self) -> int:
        return self._released * PORTION * LINE_BYTES_MIN


def end_matcher(run_id: str) -> Any:
    """Return a predicate for the line that ends the run."""
    end, run = b'"type":"agent_end"', f'"run_id":"{run_id}"'.encode()
    return lambda line: end in line and run in line


async def whole_log(place: Place, is_last: Any, **subscription: Any) -> AsyncIterator[bytes]:
    reader = ResumingReader(place.events_socket, **subscription)
    await reader.take(2**30, is_last=is_last)
    for line in reader.lines:
        yield line


@pytest.mark.slow
@pytest.mark.behaviour("subscribing_replays_then_follows")
async def test_a_reader_with_a_thousand_reconnects_receives_exactly_the_bytes_of_the_log(
    place: Place, stub: StubModel
) -> None:
    seed = Random().randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown if it fails
    random, answer = Random(seed), HeldAnswer()
    stub.script(answer.reply, *[burst_reply(50) for _ in range(20)])
    with trio.fail_after(SECONDS_MAX):
        async with running(place):
            client = await place.connect()
            started = await client.request("prompt", text="go", wait=False)
            run_id, is_last = started["run_id"], end_matcher(started["run_id"])
            await stub.next_request()
            reader = ResumingReader(place.events_socket, types="all")
            filtered = [
                ResumingReader(place.events_socket, **wish)
                for wish in (*FILTERS, {"run_id": run_id, "types": "all"})
            ]
            others = await another_session(client)
            async with trio.open_nursery() as nursery:
                for other in filtered:
                    nursery.start_soon(read_to_the_end, other, is_last, Random(random.random()))
                while reader.connections < RECONNECTS:
                    answer.keep_ahead_of(sum(map(len, reader.lines)))
                    if reader.connections % (RECONNECTS // 15) == 0:
                        await other_run(client, others)
                    assert not await reader.take(random.randrange(TAKE_BYTES_MAX), is_last=is_last)
                assert answer.is_held, "the run was over before the thousandth connection"
                answer.keep_ahead_of(2**30)
                await reader.take(2**30, is_last=is_last)
        # A restarted daemon can read from the log only.
        async with running(place):
            logged = [line async for line in whole_log(place, is_last, types="all")]
            assert reader.lines == logged
            assert len(logged) > PORTION * PORTIONS
            for other, wish in zip(filtered, FILTERS, strict=False):
                assert other.lines == [line async for line in whole_log(place, is_last, **wish)]
            assert filtered[-1].lines == [line for line in logged if run_id.encode() in line]
    assert all(other.connections > 20 for other in filtered)


async def read_to_the_end(reader: ResumingReader, is_last: Any, random: Random) -> None:
    """Read with random losses until the run ends; some takes are enough for the longest line."""
    while not await reader.take(
        random.choice((0, 700, 700, 5_000, 20_000, 200_000)), is_last=is_last
    ):
        pass


async def another_session(client: Any) -> str:
    session_id: str = (await client.request("new_session"))["session_id"]
    return session_id


async def other_run(client: Any, session_id: str) -> None:
    """Start a run in another session; its events interleave with those of the long run."""
    await client.ask("prompt", text="meanwhile", wait=False, session_id=session_id)
    await client.receive()
