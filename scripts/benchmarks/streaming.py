"""A model's deltas on their way to subscribers: bursts, replays, and how long one delta takes."""

from __future__ import annotations

import statistics
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

import trio

from .client import Recording, commands, subscription
from .model_stub import make_deltas
from .ping import round_trip_us
from .programs import Daemon, daemon, folder, helper, in_turns, model_flags
from .report import Row, at_least, at_most
from .yardsticks import bare_commits, bare_model_client

_BURST: Final = 5_000
_ROUNDS: Final = 7
_STUB_RATE: Final = 60_000.0
"""Deltas per second to a bare reader, below which the machine was too busy for rates to count."""

_PACE: Final = 1_000
_PACED: Final = 2_500
_PACE_ROUNDS: Final = 3
_PACE_READERS: Final = 8


async def watch_run(running: Daemon, text: str, readers: int) -> tuple[float, list[Recording]]:
    """Prompt while so many subscribers listen to every type of event.

    Returns:
        The seconds from sending the prompt until each of them had the whole run, and what they got.
    """
    recordings = [Recording() for _ in range(readers)]
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(commands(running.socket))
        streams = [
            await stack.enter_async_context(subscription(running.events, types="all"))
            for _ in recordings
        ]
        start = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for recording, stream in zip(recordings, streams, strict=True):
                nursery.start_soon(recording.until_runs_ended, stream)
            await client.ask("prompt", text=text, wait=False)
        return time.perf_counter() - start, recordings


def check_burst(recording: Recording, count: int, *, runs: int = 1, joined_ok: bool) -> None:
    """Check what a subscriber got of bursts of so many deltas.

    Raises:
        RuntimeError: it is not the whole stream in order, or deltas travelled as one event although
            the row is about events.
    """
    deltas = [arrival.delta for arrival in recording.deltas()]
    if "".join(deltas) != "".join(make_deltas(count)) * runs:
        raise RuntimeError("a subscriber did not get the whole stream in order")
    if not joined_ok and len(deltas) != count * runs:
        raise RuntimeError(f"{count * runs} deltas came as {len(deltas)} events")


async def _burst_rate(running: Daemon, readers: int) -> float:
    """Return the model's deltas per second, until the last subscriber had all of them."""
    seconds, recordings = await watch_run(running, f"burst {_BURST}", readers)
    for recording in recordings:
        check_burst(recording, _BURST, joined_ok=True)
    return _BURST / seconds


async def _event_rate(running: Daemon) -> float:
    """The same to one subscriber, each delta an event of its own."""
    seconds, (recording,) = await watch_run(running, f"mixed {_BURST}", 1)
    check_burst(recording, _BURST, joined_ok=False)
    return _BURST / seconds


async def _replay_rate(running: Daemon, runs: int) -> float:
    """Return the deltas per second at which one subscriber gets a log, each an event of its own."""
    recording = Recording()
    start = time.perf_counter()
    async with subscription(running.events, after="evt-0", types="all") as stream:
        await recording.until_runs_ended(stream, runs)
    seconds = time.perf_counter() - start
    check_burst(recording, _BURST, runs=runs, joined_ok=False)
    return runs * _BURST / seconds


async def bursts() -> list[Row]:
    """5,000 deltas as fast as the model sends them, to 1, 8 and 32 subscribers, from the prompt until
    the last of them has the end of the run; beside a bare reader of the same model, then beside our
    own rate to one.

    The daemon joins deltas that it has read together, so a burst reaches the log and the subscribers
    as a few long events: these rates are of the model's deltas and not of events. Where text and
    reasoning take turns nothing can be joined. That is the burst "as events", and what is replayed:
    the log of all those runs, to one subscriber of a daemon that has just started and has nothing of
    it in memory. It stands beside the faster of the two live rates, the joined one.
    """
    with folder() as place, folder() as other, helper("model_stub") as api_base:
        flags = model_flags(api_base)
        async with (
            daemon(place, *flags) as running,
            daemon(other, *flags) as mixing,
            bare_model_client(api_base) as bare,
        ):
            await _burst_rate(running, 1)
            await _event_rate(mixing)
            bare_rate, bare_mixed, to_one, to_8, to_32, as_events = await in_turns(
                _ROUNDS,
                partial(bare.burst_rate, f"burst {_BURST}"),
                partial(bare.burst_rate, f"mixed {_BURST}"),
                partial(_burst_rate, running, 1),
                partial(_burst_rate, running, 8),
                partial(_burst_rate, running, 32),
                partial(_event_rate, mixing),
            )
        replayed = await _measure_replay(other, flags, 1 + _ROUNDS)
    unit = "deltas/s"
    return [
        Row("the model stub", bare_rate, _STUB_RATE, unit, "what it must give", at_least(1)),
        Row("burst to 1", to_one, bare_rate, unit, "a bare reader of the model", at_least(0.5)),
        Row("burst to 8", to_8, to_one, unit, "the rate to 1"),
        Row("burst to 32", to_32, to_one, unit, "the rate to 1", at_least(0.5)),
        Row("burst to 1, as events", as_events, bare_mixed, unit, "a bare reader of the model"),
        Row("replay, as events", replayed, to_one, unit, "the live burst to 1", at_least(2)),
    ]


async def _measure_replay(place: Path, flags: tuple[str, ...], runs: int) -> float:
    rates = []
    for _ in range(5):
        async with daemon(place, *flags) as running:
            rates.append(await _replay_rate(running, runs))
    return statistics.median(rates)


async def _delta_us(running: Daemon) -> float:
    """Return the median time from the model's sending of a delta to a subscriber's having it."""
    _, recordings = await watch_run(running, f"pace {_PACE} {_PACED}", _PACE_READERS)
    times = [
        (arrival.at - int(sent)) / 1e3
        for recording in recordings
        for arrival in recording.deltas()
        for sent in arrival.delta.split()
    ]
    if len(times) != _PACED * _PACE_READERS:
        raise RuntimeError(f"{len(times)} deltas came to all subscribers together")
    return statistics.median(times)


async def latency() -> list[Row]:
    """1,000 deltas a second to 8 subscribers in one process: from the model's ``send`` to the return
    of each subscriber's ``receive``, through the provider, the commit and the feed; over all deltas
    and all subscribers. Beside the sum of 8 round trips of the bare echo and one commit with fsync.
    """
    async with AsyncExitStack() as stack:
        place = stack.enter_context(folder())
        api_base = stack.enter_context(helper("model_stub"))
        echo = stack.enter_context(helper("echo_server", str(place / "echo")))
        commit_us = stack.enter_context(bare_commits(place, at_once=50))
        running = await stack.enter_async_context(daemon(place, *model_flags(api_base)))
        echo_us, committed_us, ours = await in_turns(
            _PACE_ROUNDS,
            partial(round_trip_us, Path(echo)),
            commit_us,
            partial(_delta_us, running),
        )
    yardstick = 8 * echo_us + committed_us
    return [
        Row("delta at 1,000/s to 8, p50", ours, yardstick, "us", "8 echoes + a commit", at_most(1))
    ]
