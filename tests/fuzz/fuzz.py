"""Plays mutated conversations against a real daemon and reports forbidden behaviour.

After each case a fresh client must get an answer, and the daemon must not have grown or spoken of a
fault of its own.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

from tests.crash.client import GONE, request
from tests.daemon.process_harness import Place, Process, running
from tests.fuzz.cases import LINE_BYTES_MAX, Case, Cases
from tests.fuzz.oracle import answer_faults, lines_of, told_faults
from tests.harness.daemon import Client
from tests.harness.process_figures import faults_in, figures_of, growth_of, thirds_of

CASE_SECONDS: Final = 30
"""How long a case may take; one that has to wait waits for the command timeout."""

LEAVE_SECONDS: Final = 0.5
FAULTS_MAX: Final = 20
_READ_BYTES: Final = 64 * 1024
_SYNC: Final = b'\n{"id":"sync","type":"subscribe","payload":{}}\n'
_OPTIONS: Final = (
    *("--provider", "mock", "--enable-demo-extension", "--command-timeout", "0.2"),
    *("--line-bytes-max", str(LINE_BYTES_MAX), "--keep-recent-tokens", "20"),
)


@dataclass
class Fuzz:
    """Plays cases in ``folder``; ``faults`` are lines for people and name the case."""

    folder: Path
    seed: int
    cases: int = 0
    lines: int = 0
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # No model may run programs here, nor ask servers: what it would run or ask is mutated, too.
        self._place = Place(self.folder, options=_OPTIONS, allow_exec=False, permission_mode="auto")
        self._source = Cases(self.seed)
        self._resident: list[int] = []
        self._log_read = 0

    async def run(self, *, cases: int, seconds: float) -> None:
        """Play that many cases, or for that long."""
        deadline = time.monotonic() + seconds
        async with running(self._place) as process:
            while self.cases < cases and time.monotonic() < deadline:
                case = self._source.next()
                self.cases += 1
                for fault in [*await self._played(case), *await self._after(process)]:
                    self._found(case, fault)
                if len(self.faults) >= FAULTS_MAX:
                    break
            code = await process.stop()
            if code != 0:
                self.faults.append(f"an orderly stop ended with {code}")
        growth = growth_of(self._resident)
        self.faults += [growth] if growth else []

    def report(self) -> str:
        """The counts in one line."""
        return (
            f"seed {self.seed}: {self.cases} cases, {self.lines} lines, resident MiB, most of each "
            f"third: {thirds_of(self._resident)}; {len(self.faults)} faults"
        )

    def _found(self, case: Case, fault: str) -> None:
        self.faults.append(f"case {self.cases}, seed {self.seed}: {fault}")
        (self.folder / f"case-{self.cases}.txt").write_text(repr(case))

    async def _played(self, case: Case) -> list[str]:
        faults: list[str] = []
        with trio.move_on_after(CASE_SECONDS) as timer:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._play_commands, case, faults)
                nursery.start_soon(self._play_events, case, faults)
        if timer.cancelled_caught:
            faults.append(f"not over after {CASE_SECONDS} s")
        return faults

    # --- the command socket --------------------------------------------------------------------

    async def _play_commands(self, case: Case, faults: list[str]) -> None:
        is_all = case.ending == "half_close"
        owed = lines_of(case.commands, is_all=is_all, line_bytes_max=LINE_BYTES_MAX)
        received = bytearray()
        stream = await trio.open_unix_socket(str(self._place.socket))
        if case.ending == "leave":
            await _send_and_leave(stream, case)
            return
        async with stream, trio.open_nursery() as nursery:
            nursery.start_soon(self._receive, stream, received, None if is_all else len(owed))
            for data in case.writes():
                await stream.send_all(data)
            if is_all:
                await stream.send_eof()
        self.lines += len(owed)
        self._source.ids.learn(bytes(received))
        *answers, rest = received.split(b"\n")
        lines = [bytes(answer) + b"\n" for answer in answers]
        faults += answer_faults(owed, lines, line_bytes_max=LINE_BYTES_MAX)
        if rest:
            faults.append(f"half an answer: {bytes(rest)!r}")

    async def _receive(
        self, stream: trio.abc.Stream, received: bytearray, lines: int | None
    ) -> None:
        """Read that many lines; None: up to the end of the stream."""
        got = 0
        while lines is None or got < lines:
            chunk = await stream.receive_some(_READ_BYTES)
            if not chunk:
                return
            received += chunk
            got += chunk.count(b"\n")

    # --- the event socket ----------------------------------------------------------------------

    async def _play_events(self, case: Case, faults: list[str]) -> None:
        stream = await trio.open_unix_socket(str(self._place.events_socket))
        async with stream:
            if case.ending == "leave":
                await stream.send_all(case.events)
                return
            async with trio.open_nursery() as nursery:
                # Whatever was said before, this is the last word.
                nursery.start_soon(stream.send_all, case.events + _SYNC)
                await self._read_until_synced(stream, faults)

    async def _read_until_synced(self, stream: trio.abc.Stream, faults: list[str]) -> None:
        rest = b""
        while True:
            chunk = await stream.receive_some(_READ_BYTES)
            if not chunk:
                faults.append("the event socket was closed")
                return
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                faults += told_faults(line + b"\n")
                if b'"id":"sync"' in line:
                    return

    # --- after a case --------------------------------------------------------------------------

    async def _after(self, process: Process) -> list[str]:
        """Check that the daemon is alive, and clean up."""
        try:
            client = Client(await trio.open_unix_socket(str(self._place.socket)))
            async with client.stream:
                await client.request("ping")
                await self._abort_all(client)
        except (AssertionError, trio.TooSlowError, *GONE) as error:
            return [f"a fresh client is not served: {error!r}", *self._own_faults()]
        self._resident.append(figures_of(process.pid).resident)
        return self._own_faults()

    async def _abort_all(self, client: Client) -> None:
        await client.send(json.dumps({"id": "all", "type": "get_state"}).encode() + b"\n")
        answer = await client.receive()
        for run in answer["payload"].get("runs", ()):
            await request(client, "abort", session_id=run["session_id"])

    def _own_faults(self) -> list[str]:
        with (self.folder / "daemon.log").open("rb") as log:
            log.seek(self._log_read)
            new = log.read()
        self._log_read += len(new)
        return faults_in(new.decode())


async def _send_and_leave(stream: trio.abc.Stream, case: Case) -> None:
    """Send without reading, until everything is sent or the daemon rightly stops reading."""
    async with stream:
        with trio.move_on_after(LEAVE_SECONDS):
            for data in case.writes():
                await stream.send_all(data)
