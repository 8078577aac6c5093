"""Rounds of load and sudden death on one state folder, each followed by a check.

A round starts the real daemon, lets clients work, and kills it at a random moment; some rounds first
kill it while it starts or recovers, several times over, some leave it many open runs to recover, some
tell it to stop instead. In some, its fork server is killed before, or the supervisors of commands are.
The next start is where what the clients were told is held against the log.

What is promised, and what proves it:

====================================  =======================================================
accepted is durable                   ``InputRecord.check``, ``check_queue``, ``check_resent``;
                                      ``SessionRecord.check``, ``check_state``, ``check_tools``,
                                      ``check_messages``; ``RunRecord.told_started``;
                                      ``CallRecord.check``, ``check_resent``
seen is stored                        ``CrashRecord._check_seen``, ``check_stream``,
                                      ``told_cursor``; ``SessionRecord.told_entries``;
                                      ``RunRecord.told_run``, ``told_result``;
                                      ``CallRecord.told_record``
one start, one end                    ``tests.harness.lifecycle``; ``RunRecord``: ends of cut off runs;
                                      ``InputRecord.check_queue``: what was not consumed is
                                      pending; ``check_state``: nothing runs by itself
no tool twice                         ``RunRecord._check_marks``; ``CallRecord._began``
one decision, and it lasts            ``CallRecord.check``, ``check_attempt``, ``check_rules``
no reader can hurt another            here: each ``Follower`` is complete; the rest in
                                      ``scripts/soak`` and ``tests/daemon/test_feed.py``
everything is bounded                 ``scripts/soak``, ``scripts/fuzz``
nobody else gets in                   here: a stale socket and lock never stop a start; the
                                      rest in ``tests/net/test_peers.py`` and
                                      ``tests/daemon/test_sockets.py``
secrets                               ``tests/test_redaction.py``
no orphan                             ``Campaign._wait_gone``
a power cut                           ``tests/store/test_sqlite_writer.py``: what has been synced
                                      when something is acknowledged
====================================  =======================================================
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final

import trio

from nousd.tools.process.process_table import descendants
from tests.crash.client import Follower, LoadClient, World, ask, request, watch
from tests.crash.inputs import Handed
from tests.crash.load import work
from tests.crash.runs import MARK
from tests.daemon.process_harness import Place, Process, running
from tests.harness.daemon import Client, Events

GONE_SECONDS: Final = 10
"""How long a dead daemon's processes may take to go; their own grace is far shorter."""

CALLS_SHOWN_MAX: Final = 300
"""Attempts that are read after a start; more than a round makes."""

RESENT_MAX: Final = 10
STARTS_CUT_MAX: Final = 3
OPEN_RUNS: Final = 30

_OPTIONS: Final = ("--provider", "mock", "--keep-recent-tokens", "20")
"""Little is kept, so that short sessions can be compacted."""

_FOLLOWED: Final = (
    None,
    frozenset({"queue_update", "agent_start", "agent_end", "session_deleted"}),
    frozenset({"message_update"}),
)


@dataclass
class Campaign:
    """Plays rounds in ``folder`` and counts; ``violations`` name round and seed."""

    folder: Path
    seed: int
    gone_seconds: float = GONE_SECONDS
    rounds: int = 0
    kills: int = 0
    kills_starting: int = 0
    kills_recovering: int = 0
    kills_of_helpers: int = 0
    violations: list[str] = field(default_factory=list)
    world: World = field(default_factory=World)

    def __post_init__(self) -> None:
        self._place = Place(self.folder, options=_OPTIONS)
        self._followers = [Follower(self._place, types) for types in _FOLLOWED]
        self._marks_read = 0
        self._start_seconds = 0.5
        self._cut_starts: list[tuple[str, str]] = []

    async def round(self) -> None:
        """Play one round."""
        self.rounds += 1
        # The last round has waited until nothing was left; time has passed since.
        self._refuse(
            set(_processes(self.folder)), "appeared after a dead daemon's processes had gone"
        )
        random = Random(f"{self.seed}-{self.rounds}")
        if random.random() < 0.4:
            for _ in range(random.randint(1, STARTS_CUT_MAX)):
                await self._die_while_starting(random.random())
        begun = time.monotonic()
        async with running(self._place) as process:
            self._start_seconds = time.monotonic() - begun
            await self._check()
            await self._have_session()
            if random.random() < 0.15:
                await self._leave_open_runs(random)
            await self._load(random, process)
        self._note_violations()

    async def finish(self) -> None:
        """Check the last round, every session, and the whole log once more."""
        record = self.world.record
        async with running(self._place) as process:
            record.sessions.changed.update(self.world.sessions)
            await self._check()
            record.check_reread([line async for line in self._log(after=0)])
            await process.stop()
        await self._wait_gone()
        self._note_violations()

    def counts(self) -> str:
        """The campaign in one line."""
        record = self.world.record
        return (
            f"seed {self.seed}: {self.rounds} rounds, {self.kills} kills "
            f"({self.kills_starting} while starting, {self.kills_recovering} of them while "
            f"recovering), {self.kills_of_helpers} of fork servers and supervisors, "
            f"{len(record.inputs.accepted)} accepted inputs, "
            f"{record.seen_events} events seen, {record.events} events in the log, "
            f"{record.runs.count} runs, {record.runs.tool_calls} tool calls, "
            f"{len(record.calls.accepted)} of them of clients, {record.calls.decided} answers, "
            f"{len(record.sessions.deleted)} deleted sessions, {len(self.violations)} violations"
        )

    def _note_violations(self) -> None:
        found = self.world.record.violations
        self.violations += [f"round {self.rounds}, seed {self.seed}: {each}" for each in found]
        found.clear()

    # --- what happens to the daemon ---

    async def _die_while_starting(self, share: float) -> None:
        """Kill a daemon at a random point of a start, or of its first moments after one."""
        begun = _now()
        # Leaving the block early kills it, wherever it is.
        with trio.move_on_after(share * 1.2 * self._start_seconds):
            async with running(self._place):
                await trio.sleep_forever()
        await self._wait_gone()
        (self.folder / "ready").unlink(missing_ok=True)
        self._cut_starts.append((begun, _now()))
        self.kills += 1
        self.kills_starting += 1

    async def _have_session(self) -> None:
        if not self.world.sessions:
            created = await request(await self._place.connect(), "new_session")
            assert created is not None
            self.world.sessions.append(created["session_id"])

    async def _leave_open_runs(self, random: Random) -> None:
        """Start many runs that do not end by themselves, for the next start to close."""
        client = await self._place.connect()
        load = LoadClient(client, self.world, random, f"{self.seed}-{self.rounds}-open")
        for _ in range(OPEN_RUNS):
            created = await request(client, "new_session")
            assert created is not None
            self.world.record.sessions.told_created(created)
            text = "[[say 3]][[hang]]" + load.unique()
            await load.hand_in(Handed("prompt", created["session_id"], text, load.unique()))

    async def _load(self, random: Random, process: Process) -> None:
        known: set[tuple[int, str]] = set()
        lifetime, is_stopped = 0.05 + random.random() * 0.6, random.random() < 0.2
        record = self.world.record
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, self._place, record)
            for number, follower in enumerate(self._followers):
                nursery.start_soon(
                    follower.run, record, Random(f"{self.seed}-{self.rounds}-follower-{number}")
                )
            for number in range(random.randint(2, 6)):
                name = f"{self.seed}-{self.rounds}-{number}"
                nursery.start_soon(work, self._place, self.world, Random(name), name)
            helpers = random.choice(("", "", "server", "supervisors"))
            await trio.sleep(lifetime / 2)
            self._kill_helpers(process.pid, helpers)
            await trio.sleep(lifetime / 2)
            if is_stopped:
                code = await process.stop()
                assert code == 0, f"an orderly stop ended with {code}"
            else:
                known = {*_processes(self.folder), *_descendants(process.pid)}
                await process.kill()
                self.kills += 1
            record.runs.died(_now())
        await self._wait_gone(known)

    def _kill_helpers(self, daemon: int, which: str) -> None:
        """Kill the fork server, or all supervisors that it has forked. Not both: what a supervisor
        leaves is the server's to end.
        """
        for server in children(daemon, "_fork_server_main"):
            killed = {"server": [server], "supervisors": children(server)}.get(which, [])
            for pid in killed:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.kills_of_helpers += len(killed)

    # --- the check after a start ---

    async def _check(self) -> None:
        record, client = self.world.record, await self._place.connect()
        async for line in self._log(after=record.head):
            record.read(line)
        record.check(self._new_marks(), head=await self._head())
        for follower in self._followers:
            follower.check(record)
        for session_id in sorted(record.sessions.changed):
            await self._check_session(client, session_id)
        record.sessions.changed.clear()
        for run_id in record.runs.ended:
            answer = await request(client, "get_run", run_id=run_id)
            record.runs.check_run({"run_id": run_id} if answer is None else answer["run"])
        record.runs.ended.clear()
        await self._check_calls(client)
        state = await request(client, "get_state")
        assert state is not None
        record.sessions.check_active(state["session_id"])
        await self._check_resending(client)
        self._count_recoveries()

    async def _check_session(self, client: Client, session_id: str) -> None:
        sessions, about = self.world.record.sessions, {"session_id": session_id}
        sessions.check_state(session_id, await request(client, "get_state", **about))
        if session_id in sessions.deleted:
            return
        queue = await _granted(client, "get_queue", session_id)
        self.world.record.inputs.check_queue(session_id, queue["inputs"])
        sessions.check_messages(session_id, await _granted(client, "get_messages", session_id))
        tools = await _granted(client, "list_tools", session_id)
        sessions.check_tools(session_id, tools["tools"])
        permissions = await _granted(client, "list_permissions", session_id)
        self.world.record.calls.check_rules(session_id, permissions)

    async def _check_calls(self, client: Client) -> None:
        calls = self.world.record.calls
        for key in list(calls.changed)[-CALLS_SHOWN_MAX:]:
            call_id, attempt = key
            answer = await request(client, "get_tool_call", tool_call_id=call_id, attempt=attempt)
            calls.check_attempt(key, None if answer is None else answer["call"])
        calls.changed.clear()

    async def _check_resending(self, client: Client) -> None:
        inputs = self.world.record.inputs
        for handed in list(inputs.accepted.values())[-RESENT_MAX:]:
            answer = await request(client, handed.type, **handed.payload(waits=False))
            inputs.check_resent(handed, answer)
        calls = self.world.record.calls
        for made, _ in list(calls.accepted.values())[-RESENT_MAX:]:
            calls.check_resent(made, await request(client, "call_tool", **made.payload()))

    async def _wait_gone(self, known: Collection[tuple[int, str]] = ()) -> None:
        """Wait until no process of a dead daemon is left: none that works in the folder, none that was
        ``known`` before.
        """
        deadline = time.monotonic() + self.gone_seconds
        while left := {*_processes(self.folder), *(each for each in known if _lives(each))}:
            if time.monotonic() > deadline:
                break
            await trio.sleep(0.02)
        self._refuse(left, "left of a dead daemon")

    def _refuse(self, left: set[tuple[int, str]], what: str) -> None:
        if left:
            self.world.record.violations.append(f"{what}: {sorted(left)}")

    def _count_recoveries(self) -> None:
        """Count the interrupted starts that wrote to the log, which only recovery does."""
        record = self.world.record
        self.kills_recovering += sum(record.wrote_between(*times) for times in self._cut_starts)
        self._cut_starts.clear()
        record.forget_times()

    async def _head(self) -> int:
        events = await self._place.watch(types="all")
        return _seq((await events.subscribe(types="all"))["head"])

    async def _log(self, after: int) -> AsyncIterator[bytes]:
        events = Events(await trio.open_unix_socket(str(self._place.events_socket)))
        async with events.stream:
            answer = await events.subscribe(after=f"evt-{after}", types="all")
            head = _seq(answer["head"])
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


async def _granted(client: Client, type: str, session_id: str) -> dict[str, Any]:
    answer = await ask(client, type, session_id=session_id)
    assert answer["ok"], f"{type} of {session_id}: {answer}"
    payload: dict[str, Any] = answer["payload"]
    return payload


def _seq(cursor: str) -> int:
    return int(cursor.removeprefix("evt-"))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _processes(folder: Path) -> Iterator[tuple[int, str]]:
    """Yield the processes that work in the folder or were started with its name."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and _is_of(Path(entry.path), folder):
            identity = _identity(int(entry.name))
            if identity is not None:
                yield identity


def children(parent: int, program: str = "") -> list[int]:
    """Return the children of a process whose command line has the name of a program in it."""
    return [
        descendant.id
        for descendant in descendants(parent)
        if descendant.parent == parent and program.encode() in _command_line(descendant.id)
    ]


def _descendants(parent: int) -> Iterator[tuple[int, str]]:
    for descendant in descendants(parent):
        identity = _identity(descendant.id)
        if identity is not None:
            yield identity


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _is_of(process: Path, folder: Path) -> bool:
    try:
        # Of a zombie nothing is left to read.
        works_here = (process / "cwd").readlink().is_relative_to(folder)
        return works_here or os.fsencode(folder) in (process / "cmdline").read_bytes()
    except OSError:
        return False


def _lives(process: tuple[int, str]) -> bool:
    return _identity(process[0]) == process


def _identity(pid: int) -> tuple[int, str] | None:
    """Return the pid with its start time, since pids are used again; None: gone, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else (pid, fields[19])
