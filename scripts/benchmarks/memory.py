"""How much memory the daemon holds."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import trio

from .client import Recording, commands, subscription
from .histories import write_long_sessions
from .ping import PING
from .programs import Daemon, daemon, folder, helper, model_flags
from .prompting import Prompter
from .report import Row, at_most
from .starting import compile_all
from .streaming import check_burst, watch_run

_IDLE_MB: Final = 45.0
_FLOODED_MB: Final = 80.0
_BOTH_IDLE_MB: Final = 40.0
_BOTH_WARM_MB: Final = 80.0
_WARM_SESSIONS: Final = 50
_WARM_ENTRIES: Final = 200
_WARM_CHARS: Final = 200
_FLOODS: Final = 10
_DELTAS_PER_FLOOD: Final = 50_000
_READERS: Final = 4
_SETTLE_SECONDS: Final = 1.0
_FORK_SERVER_LOOKS: Final = 10
"""It is started a moment after the daemon."""

_ENDLESS: Final = 10
_ENDLESS_CHARS: Final = (8, 1_000, 60_000)
_ENDLESS_PEAK_MB: Final = 200.0
_ENDLESS_LOG_MB: Final = 600.0


async def rows() -> list[Row]:
    """The daemon's memory once it has answered a ping, and after ten floods: 50,000 deltas each, every
    one an event of its own, to four subscribers that read and one that never does. Resident is what
    the process has in memory, proportional is that with shared pages divided among those who share
    them. MB are 10^6 bytes, and beside the figures stands what is allowed.
    """
    compile_all()
    with folder() as place, helper("model_stub") as api_base:
        async with daemon(place, *model_flags(api_base)) as running:
            async with commands(running.socket) as connection:
                await connection.exchange(PING)
            await trio.sleep(_SETTLE_SECONDS)
            idle = _memory_mb(running.pid)
            async with subscription(running.events, types="all"):
                for _ in range(_FLOODS):
                    await _flood(running)
            await trio.sleep(_SETTLE_SECONDS)
            flooded = _memory_mb(running.pid)
    return [
        Row(f"{when}, {kind}", figures[key], allowed, "MB", "what is allowed", at_most(1))
        for when, figures, allowed in (
            ("idle memory", idle, _IDLE_MB),
            ("after ten floods", flooded, _FLOODED_MB),
        )
        for kind, key in (("resident", "Rss"), ("proportional", "Pss"))
    ]


async def both() -> list[Row]:
    """The daemon and its fork server together, with shared pages divided among all who share them, which
    other programs of Python do, too: idle, and with 50 sessions of 200 entries that were prompted.
    """
    compile_all()
    with folder() as place, helper("model_stub") as api_base:
        ids = await write_long_sessions(place, _WARM_SESSIONS, _WARM_ENTRIES, _WARM_CHARS)
        async with (
            daemon(place, *model_flags(api_base)) as running,
            commands(running.socket) as connection,
            subscription(running.events) as events,
        ):
            await connection.exchange(PING)
            for _ in range(_FORK_SERVER_LOOKS):
                await trio.sleep(_SETTLE_SECONDS)
                if _children(running.pid):
                    break
            idle = _both_mb(running.pid)
            prompter = Prompter(connection, events)
            for session_id in ids:
                await prompter.prompt_us(session_id)
            await trio.sleep(_SETTLE_SECONDS)
            warm = _both_mb(running.pid)
    sessions = f"{_WARM_SESSIONS} sessions of {_WARM_ENTRIES}"
    return [
        Row(f"with the fork server, {when}", mb, allowed, "MB", "what is allowed", at_most(1))
        for when, mb, allowed in (
            ("idle", idle, _BOTH_IDLE_MB),
            (sessions, warm, _BOTH_WARM_MB),
        )
    ]


def _both_mb(pid: int) -> float:
    return sum(_memory_mb(each)["Pss"] for each in (pid, *_children(pid)))


def _children(pid: int) -> list[int]:
    """Return the processes that one has started: of an idle daemon, the fork server."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


async def endless() -> list[Row]:
    """The daemon's resident memory around ten answers at once that do not end: deltas of 8 characters,
    of 1,000, and of 60,000, until each run has ended at its bound. The peak is the kernel's own figure,
    so nothing between two looks is missed.
    """
    with folder() as place, helper("model_stub") as api_base:
        async with daemon(place, *model_flags(api_base)) as running:
            async with commands(running.socket) as connection:
                await connection.exchange(PING)
            await trio.sleep(_SETTLE_SECONDS)
            before = _memory_mb(running.pid)["Rss"]
            for chars in _ENDLESS_CHARS:
                await _endless_runs(running, chars)
            peak = _peak_mb(running.pid)
            await trio.sleep(_SETTLE_SECONDS)
            after = _memory_mb(running.pid)["Rss"]
        log = sum(file.stat().st_size for file in (place / "state").glob("nousd.db*")) / 1e6
    what = "ten endless answers"
    return [
        Row(f"before {what}, resident", before, _IDLE_MB, "MB", "what is allowed", at_most(1)),
        Row(f"peak of {what}", peak, _ENDLESS_PEAK_MB, "MB", "what is allowed", at_most(1)),
        Row(f"after {what}", after, _ENDLESS_PEAK_MB, "MB", "what is allowed", at_most(1)),
        Row(f"log of {what}", log, _ENDLESS_LOG_MB, "MB", "what is allowed", at_most(1)),
    ]


async def _endless_runs(running: Daemon, chars: int) -> None:
    """Start ten runs with such an answer, each in its own session, and wait until all have ended."""
    async with commands(running.socket) as client, subscription(running.events) as stream:
        for _ in range(_ENDLESS):
            session = await client.ask("new_session")
            text = f"endless {chars}"
            await client.ask("prompt", text=text, wait=False, session_id=session["session_id"])
        await Recording().until_runs_ended(stream, _ENDLESS)


def _peak_mb(pid: int) -> float:
    """Return the most that was ever resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (kib,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(kib) * 1024 / 1e6


async def _flood(running: Daemon) -> None:
    _, recordings = await watch_run(running, f"mixed {_DELTAS_PER_FLOOD}", _READERS)
    for recording in recordings:
        check_burst(recording, _DELTAS_PER_FLOOD, joined_ok=False)


def _memory_mb(pid: int) -> dict[str, float]:
    """Return the sums of ``smaps_rollup``, by their names there."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return {name.rstrip(":"): int(kib) * 1024 / 1e6 for name, kib, _ in fields}
