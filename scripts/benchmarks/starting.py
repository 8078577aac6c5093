"""Programs from their start to their first answer."""

from __future__ import annotations

import compileall
import time
from functools import partial
from pathlib import Path
from typing import Final

from .client import commands
from .histories import write_events
from .ping import PING
from .programs import PYTHON, ROOT, daemon, folder, in_turns
from .report import Row, at_most
from .yardsticks import imports_of, program

_ROUNDS: Final = 9
_EVENTS: Final = 1_000_000


async def _to_pong_ms(place: Path) -> float:
    start = time.perf_counter()
    async with daemon(place) as running, commands(running.socket) as connection:
        await connection.exchange(PING)
        return (time.perf_counter() - start) * 1e3


async def _to_pong_on_nothing_ms() -> float:
    with folder() as place:
        return await _to_pong_ms(place)


async def rows() -> list[Row]:
    """From starting the process to the first pong, with no state at all and with a log of a million
    events (that the operating system has read before); beside a process that only imports.
    """
    compile_all()
    with folder() as place:
        await write_events(place, _EVENTS)
        bare, on_nothing, on_much = await in_turns(
            _ROUNDS,
            imports_of("import trio, msgspec, apsw"),
            _to_pong_on_nothing_ms,
            partial(_to_pong_ms, place),
        )
    beside = "the imports of trio, msgspec and apsw"
    return [
        Row("cold start to pong", on_nothing, bare, "ms", beside, at_most(1.25)),
        Row("the same, 1,000,000 events", on_much, bare, "ms", beside, at_most(2)),
    ]


def compile_all() -> None:
    """Make the bytecode anew: libraries have theirs, and ours is of before the last change where the
    environment forbids to write it.
    """
    compileall.compile_dir(ROOT / "nousd", quiet=1)


async def nousctl() -> list[Row]:
    """The shell client, from its start to its end; beside the import of its command line library."""
    compile_all()
    with folder() as place:
        async with daemon(place) as running:
            nousctl = str(Path(PYTHON).parent / "nousctl")
            ours, bare = await in_turns(
                _ROUNDS,
                program(nousctl, "--socket", str(running.socket), "ping"),
                imports_of("import typer"),
            )
    return [Row("nousctl ping", ours, bare, "ms", "the import of typer")]
