"""A client that loses its connection a thousand times within one run has every byte in the end.

The model's answer is held back so that the reader is always close behind it: each connection begins
in the middle of a run that is streaming, and breaks at a random byte.
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
"""The answer: deltas between two gates, and how often."""

TAKE_BYTES_MAX: Final = 5_000
AHEAD_BYTES: Final = 20_000
"""How much of the answer is let out before the reader needs it; more than one connection reads."""

LINE_BYTES_MIN: Final = 150
SECONDS_MAX: Final = 120
"""A bound for a machine that is busy; it takes a few seconds."""

FILTERS: Final[tuple[dict[str, Any], ...]] = (
    {"types": "v1"},
    {"types": ["message_update", "agent_end"]},
)


@pytest.fixture
async def place(short_folder: Path, stub: StubModel) -> Place:
    return Place(short_folder, stub)


class HeldAnswer:
    """A long answer that comes in portions, each let out when it is needed."""

    def __init__(self) -> None:
        self._gates = [Gate() for _ in range(PORTIONS)]
        # Text and reasoning by turns, since neighbours of one kind may be joined on their way.
        portion = burst(*[delta(content="word "), delta(reasoning="hm ")] * (PORTION // 2))
        held = itertools.chain.from_iterable((gate, portion) for gate in self._gates)
        self.reply = Reply((*held, *finish()))
        self._let_out = 0

    @property
    def is_held(self) -> bool:
        return self._let_out < PORTIONS

    def keep_ahead_of(self, bytes_read: int) -> None:
        """Let out portions until there is more to read than one connection will."""
        while self.is_held and self._bytes_let_out < bytes_read + AHEAD_BYTES:
            self._gates[self._let_out].open()
            self._let_out += 1

    @property
    def _bytes_let_out(self) -> int:
        return self._let_out * PORTION * LINE_BYTES_MIN


def ends(run_id: str) -> Any:
    """Return what recognises the end of that run."""
    end, run = b'"type":"agent_end"', f'"run_id":"{run_id}"'.encode()
    return lambda line: end in line and run in line


async def whole_log(place: Place, is_last: Any, **subscription: Any) -> AsyncIterator[bytes]:
    reader = ResumingReader(place.events_socket, **subscription)
    await reader.take(2**30, is_last=is_last)
    for line in reader.lines:
        yield line


@pytest.mark.slow
@pytest.mark.behaviour("subscribing_replays_then_follows")
async def test_a_thousand_reconnects_in_one_run_give_exactly_the_bytes_of_the_log(
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
            run_id, is_last = started["run_id"], ends(started["run_id"])
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
        # Started again, a daemon has nothing but the log to read from.
        async with running(place):
            logged = [line async for line in whole_log(place, is_last, types="all")]
            assert reader.lines == logged
            assert len(logged) > PORTION * PORTIONS
            for other, wish in zip(filtered, FILTERS, strict=False):
                assert other.lines == [line async for line in whole_log(place, is_last, **wish)]
            assert filtered[-1].lines == [line for line in logged if run_id.encode() in line]
    assert all(other.connections > 20 for other in filtered)


async def read_to_the_end(reader: ResumingReader, is_last: Any, random: Random) -> None:
    """Read with its own losses until the run is over; once in a while enough for the longest line."""
    while not await reader.take(
        random.choice((0, 700, 700, 5_000, 20_000, 200_000)), is_last=is_last
    ):
        pass


async def another_session(client: Any) -> str:
    session_id: str = (await client.request("new_session"))["session_id"]
    return session_id


async def other_run(client: Any, session_id: str) -> None:
    """Start a run in another session, whose events come between those of the long one."""
    await client.ask("prompt", text="meanwhile", wait=False, session_id=session_id)
    await client.receive()
