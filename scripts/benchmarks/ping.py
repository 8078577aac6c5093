"""A command that does nothing: what the way through the sockets costs."""

from __future__ import annotations

import statistics
import time
from functools import partial
from pathlib import Path
from typing import Final

import trio

from .programs import daemon, folder, helper, in_turns
from .report import Row, at_least, at_most

PING: Final = b'{"v":"1","id":"1","type":"ping","payload":{}}\n'
_ROUNDS: Final = 5
_OUTSTANDING: Final = 32


async def round_trip_us(path: Path) -> float:
    """Return the median of 1,000 pings, one after the other, in microseconds."""
    async with await trio.open_unix_socket(path) as stream:
        times = []
        for _ in range(1_100):
            start = time.perf_counter()
            await stream.send_all(PING)
            await stream.receive_some(4096)
            times.append(time.perf_counter() - start)
        return statistics.median(times[100:]) * 1e6


async def _measure_pipelined_rate(path: Path) -> float:
    """Return pings per second, sent ``_OUTSTANDING`` at a time."""
    rounds = 500
    async with await trio.open_unix_socket(path) as stream:
        start = time.perf_counter()
        for _ in range(rounds):
            await stream.send_all(PING * _OUTSTANDING)
            answers = 0
            while answers < _OUTSTANDING:
                answers += (await stream.receive_some(65536)).count(b"\n")
        return rounds * _OUTSTANDING / (time.perf_counter() - start)


async def rows() -> list[Row]:
    """A round trip, and 32 at a time; beside a bare echo server."""
    with folder() as place, helper("echo_server", str(place / "echo")) as echo:
        async with daemon(place) as running:
            bare, ours, bare_rate, our_rate = await in_turns(
                _ROUNDS,
                partial(round_trip_us, Path(echo)),
                partial(round_trip_us, running.socket),
                partial(_measure_pipelined_rate, Path(echo)),
                partial(_measure_pipelined_rate, running.socket),
            )
    return [
        Row("ping, p50", ours, bare, "us", "a bare echo server", at_most(2)),
        Row("ping, 32 outstanding", our_rate, bare_rate, "/s", "a bare echo server", at_least(0.2)),
    ]
