"""Agent programs through the daemon, beside the same programs driven bare over their own protocols."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.daemon.process_harness import running as running_daemon
from tests.runtimes.contracted import RealPlace
from tests.runtimes.real_programs import PROGRAMS, RealProgram

from .client import READ_BYTES, commands, subscription
from .peer_programs import PEERS, Peer, Running, running
from .peer_speech import Acp
from .programs import PYTHON, folder, in_turns, process
from .report import Row

_ROUNDS: Final = 7
_FLOOD: Final = 5_000
_FIRST: Final = [{"say": "words that are no secret and that nobody has to look for. " * 4}]

_SECOND: Final = 1e9
"""In nanoseconds."""


def _bare(program: RealProgram) -> Peer:
    """Return how a program is driven by itself; the wrappers are no peers, and speak ACP."""
    known = {peer.program.name: peer for peer in PEERS}
    return known.get(program.name) or Peer(program=program, words=program.words, speech=Acp)


async def _bare_seconds(bare: Running, text: str) -> tuple[float, float]:
    """Return the time from a prompt to its first delta, and to the end of its turn."""
    turn = await bare.speech.prompt(text)
    return (turn.deltas[0].at - turn.sent) / _SECOND, (turn.ended - turn.sent) / _SECOND


class _Ours:
    """A session of the program in a daemon."""

    def __init__(self, place: RealPlace) -> None:
        self._place = place

    async def seconds(self, text: str) -> tuple[float, float]:
        """Return the time from a prompt to its first delta, and to the end of its run."""
        async with (
            commands(self._place.socket) as client,
            subscription(self._place.events_socket, types="all") as events,
        ):
            begun = time.perf_counter()
            await client.ask("prompt", text=text, wait=False)
            seen, first = b"", 0.0
            while b'"type":"agent_end"' not in seen:
                chunk = await events.receive_some(READ_BYTES)
                seen = seen[-64:] + bytes(chunk)
                if not first and b'"type":"message_update"' in seen:
                    first = time.perf_counter() - begun
            return first, time.perf_counter() - begun


async def _measure(program: RealProgram, origin: str, place: Path) -> list[Row]:
    workspace, ours = place / "work", place / "ours"
    workspace.mkdir()
    ours.mkdir()
    real = RealPlace(ours, program=program, origin=origin, workspace=workspace)
    async with running(_bare(program), place / "bare", origin) as bare, running_daemon(real):
        await bare.speech.begin()
        await bare.speech.new_session()
        async with commands(real.socket) as client:
            await client.ask("new_session", runtime=program.name)
        both = (_Ours(real).seconds, partial(_bare_seconds, bare))
        first, flood = json.dumps(_FIRST), json.dumps([{"flood": _FLOOD}])
        await in_turns(1, *(partial(_part, measure, first, 0) for measure in both))
        firsts = await in_turns(_ROUNDS, *(partial(_part, each, first, 0) for each in both))
        floods = await in_turns(_ROUNDS, *(partial(_part, each, flood, 1) for each in both))
    name = f"{program.name} {program.version}"
    return [
        Row(f"{name}, first delta", firsts[0] * 1e3, firsts[1] * 1e3, "ms", "the program, bare"),
        Row(f"{name}, {_FLOOD:,} deltas", floods[0] * 1e3, floods[1] * 1e3, "ms", "the same"),
    ]


Measure = Callable[[str], Any]


async def _part(measure: Measure, text: str, part: int) -> float:
    return float((await measure(text))[part])


async def rows() -> list[Row]:
    """From a prompt to its first delta, and to the end of a flood: through the daemon, and over the
    program's own protocol, in turns in one run. Programs that are not installed are named.
    """
    found: list[Row] = []
    with process(PYTHON, "-m", "tests.runtimes.acting_model") as model:
        assert model.stdout is not None
        origin = model.stdout.readline().strip()
        for program in PROGRAMS.values():
            if not program.path.exists():
                print(f"{program.name} is not installed: scripts/runtimes", file=sys.stderr)
                continue
            with folder() as place:
                found += await _measure(program, origin, place)
                shutil.rmtree(place / "bare", ignore_errors=True)
    return found
