"""Rounds of load and sudden death on one state folder, each followed by a check.

A round starts the real daemon, lets clients work, and kills it at a random moment; some rounds first
kill it while it starts or recovers, some tell it to stop instead. The next start is where what the
clients were told is held against the log.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Final

import trio

from tests.crash_load import LoadClient, World, request, watch
from tests.crash_record import MARK
from tests.daemon.process_harness import Place, Process, running
from tests.daemon_harness import Client, Events

GONE_SECONDS: Final = 10
"""How long a dead daemon's processes may take to go; their own grace is far shorter."""

RESENT_MAX: Final = 10


@dataclass
class Campaign:
    """Plays rounds in ``folder`` and counts; ``violations`` name round and seed."""

    folder: Path
    seed: int
    gone_seconds: float = GONE_SECONDS
    rounds: int = 0
    kills: int = 0
    violations: list[str] = field(default_factory=list)
    world: World = field(default_factory=World)

    def __post_init__(self) -> None:
        self._place = Place(self.folder, options=("--provider", "mock"))
        self._marks_read = 0
        self._left_behind: set[tuple[int, str]] = set()

    async def round(self) -> None:
        """Plays one round."""
        self.rounds += 1
        random = Random(f"{self.seed}-{self.rounds}")
        if random.random() < 0.3:
            await self._die_while_starting(random.random() * 0.4)
        async with running(self._place) as process:
            await self._check()
            await self._have_session()
            await self._load(random, process)
        self._note_violations()

    async def finish(self) -> None:
        """Checks the last round, every session's queue, and the whole log once more."""
        async with running(self._place) as process:
            self.world.record.changed_sessions.update(self.world.sessions)
            await self._check()
            self.world.record.check_reread([line async for line in self._log(after=0)])
            await process.stop()
        self._left_behind |= set(_processes(self.folder))
        await self._check_left_behind()
        self._note_violations()

    def counts(self) -> str:
        """The campaign in one line."""
        record = self.world.record
        return (
            f"seed {self.seed}: {self.rounds} rounds, {self.kills} kills, "
            f"{len(record.accepted)} accepted inputs, {record.seen_events} events seen, "
            f"{len(record.log)} events checked, {len(record.runs)} runs, "
            f"{record.tool_calls} tool calls, {len(self.violations)} violations"
        )

    def _note_violations(self) -> None:
        found = self.world.record.violations
        self.violations += [f"round {self.rounds}, seed {self.seed}: {each}" for each in found]
        found.clear()

    async def _die_while_starting(self, seconds: float) -> None:
        # Leaving the block early kills it, wherever it is.
        with trio.move_on_after(seconds):
            async with running(self._place):
                pass
        (self.folder / "ready").unlink(missing_ok=True)
        self.kills += 1

    async def _have_session(self) -> None:
        if not self.world.sessions:
            created = await request(await self._place.connect(), "new_session")
            assert created is not None
            self.world.sessions.append(created["session_id"])

    async def _load(self, random: Random, process: Process) -> None:
        lifetime, is_stopped = 0.05 + random.random() * 0.6, random.random() < 0.2
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, self._place, self.world.record)
            for number in range(random.randint(2, 6)):
                name = f"{self.seed}-{self.rounds}-{number}"
                client = LoadClient(self._place, self.world, Random(name), name)
                nursery.start_soon(client.run)
            await trio.sleep(lifetime)
            if is_stopped:
                code = await process.stop()
                assert code == 0, f"an orderly stop ended with {code}"
            else:
                self._left_behind |= set(_processes(self.folder)) - {_identity(process.pid)}
                await process.kill()
                self.kills += 1
            self.world.record.died(datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
        self._left_behind |= set(_processes(self.folder))

    # --- the check after a start ---

    async def _check(self) -> None:
        record, client = self.world.record, await self._place.connect()
        async for line in self._log(after=record.head):
            record.read(line)
        record.check(self._new_marks())
        for session_id in sorted(record.changed_sessions):
            queue = await request(client, "get_queue", session_id=session_id)
            record.check_queue(session_id, [] if queue is None else queue["inputs"])
        for run_id in record.ended_runs:
            answer = await request(client, "get_run", run_id=run_id)
            record.check_run({"run_id": run_id, "status": ""} if answer is None else answer["run"])
        record.changed_sessions.clear()
        record.ended_runs.clear()
        await self._check_resending(client)
        await self._check_left_behind()

    async def _check_resending(self, client: Client) -> None:
        record = self.world.record
        for input_id in list(record.accepted)[-RESENT_MAX:]:
            handed = record.accepted[input_id]
            answer = await request(client, handed.type, **handed.payload())
            record.check_resent(handed, input_id, answer)

    async def _check_left_behind(self) -> None:
        """Waits until what dead daemons left has gone."""
        deadline = time.monotonic() + self.gone_seconds
        while left := {each for each in self._left_behind if _identity(each[0]) == each}:
            if time.monotonic() > deadline:
                self.world.record.violations.append(f"left of a dead daemon: {sorted(left)}")
                break
            await trio.sleep(0.02)
        self._left_behind.clear()

    async def _log(self, after: int) -> AsyncIterator[bytes]:
        events = Events(await trio.open_unix_socket(f"{self._place.socket}.events"))
        async with events.stream:
            answer = await events.subscribe(after=f"evt-{after}", types="all")
            head = int(answer["head"].removeprefix("evt-"))
            while after < head:
                line = await events.receive_line()
                after = int(line.partition(b'"evt-')[2].partition(b'"')[0])
                if after <= head:
                    yield line

    def _new_marks(self) -> list[str]:
        path = self._place.work / "marks"
        if not path.exists():
            return []
        whole = path.read_text()
        new, self._marks_read = whole[self._marks_read :], len(whole)
        return MARK.findall(new)


def _processes(folder: Path) -> Iterator[tuple[int, str]]:
    """Yields the processes that work in the folder or were started with its name."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and _is_of(Path(entry.path), folder):
            identity = _identity(int(entry.name))
            if identity is not None:
                yield identity


def _is_of(process: Path, folder: Path) -> bool:
    try:
        # Of a zombie nothing is left to read.
        works_here = (process / "cwd").readlink().is_relative_to(folder)
        return works_here or os.fsencode(folder) in (process / "cmdline").read_bytes()
    except OSError:
        return False


def _identity(pid: int) -> tuple[int, str] | None:
    """Returns the pid with its start time, since pids are used again; None: gone, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else (pid, fields[19])
