"""Inputs that are accepted: how many in a second, and how many share an fsync."""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio

from .client import Commands, commands
from .counted_daemon import read_count
from .programs import PYTHON, Daemon, daemon, folder, helper, in_turns, model_flags
from .report import Row, at_least, at_most

_CLIENTS: Final = 64
_INPUTS_OF_ONE: Final = 300
_INPUTS_OF_EACH: Final = 50
_ROUNDS: Final = 5


class _Client:
    """A client whose session has a run that waits for its model, so that inputs queue up."""

    def __init__(self, connection: Commands, session_id: str) -> None:
        self._connection = connection
        self._session_id = session_id

    async def hand_in(self, count: int) -> None:
        """Hands in so many follow-ups, each when the one before was acknowledged."""
        for _ in range(count):
            await self._connection.ask("follow_up", text="and then?", session_id=self._session_id)

    async def take_back(self) -> None:
        """Empties the queue, so that the next round begins like this one."""
        await self._connection.ask("clear_queue", session_id=self._session_id)


@asynccontextmanager
async def _clients(running: Daemon) -> AsyncIterator[list[_Client]]:
    clients = []
    async with AsyncExitStack() as stack:
        for _ in range(_CLIENTS):
            connection = await stack.enter_async_context(commands(running.socket))
            session_id = (await connection.ask("new_session"))["session_id"]
            await connection.ask("prompt", text="hold", wait=False, session_id=session_id)
            clients.append(_Client(connection, session_id))
        yield clients


async def _rate(clients: Sequence[_Client], inputs_of_each: int) -> float:
    """Return the inputs per second that clients get acknowledged, all at once."""
    start = time.perf_counter()
    await _hand_in(clients, inputs_of_each)
    rate = len(clients) * inputs_of_each / (time.perf_counter() - start)
    for client in clients:
        await client.take_back()
    return rate


async def _hand_in(clients: Sequence[_Client], inputs_of_each: int) -> None:
    async with trio.open_nursery() as nursery:
        for client in clients:
            nursery.start_soon(client.hand_in, inputs_of_each)


async def rows() -> list[Row]:
    """Follow-ups to runs that are going on, each acknowledged when it is on the disk: 64 clients at
    once, each with a session of its own, beside one of them alone. Then, in a daemon that counts them,
    every fsync that SQLite makes while 64 clients hand in, beside the number of inputs.
    """
    with folder() as place, helper("model_stub") as api_base:
        flags = model_flags(api_base)
        async with daemon(place, *flags) as running, _clients(running) as clients:
            await _rate(clients[:1], _INPUTS_OF_EACH)
            of_one, of_all = await in_turns(
                _ROUNDS,
                partial(_rate, clients[:1], _INPUTS_OF_ONE),
                partial(_rate, clients, _INPUTS_OF_EACH),
            )
        syncs = await _syncs_of_all(flags)
    inputs = float(_CLIENTS * _INPUTS_OF_EACH)
    return [
        Row("accepted inputs, 64 clients", of_all, of_one, "/s", "one client", at_least(5)),
        Row("fsyncs for 64 clients' inputs", syncs, inputs, "", "inputs", at_most(0.25)),
    ]


async def _syncs_of_all(flags: tuple[str, ...]) -> float:
    """Return how many fsyncs 64 clients cost that hand in at once; the median of several rounds."""
    with folder() as place:
        count = place / "count"
        program = (PYTHON, "-m", "scripts.benchmarks.counted_daemon", str(count))
        async with daemon(place, *flags, program=program) as running, _clients(running) as clients:
            return statistics.median([await _syncs(clients, count) for _ in range(_ROUNDS)])


async def _syncs(clients: Sequence[_Client], count: Path) -> int:
    before = read_count(count)
    await _hand_in(clients, _INPUTS_OF_EACH)
    syncs = read_count(count) - before
    for client in clients:
        await client.take_back()
    return syncs
