"""Many connections for a long time on one real daemon: growth, leaks and losses.

Drivers keep a run going in each session and send commands of all kinds, readers stall and come back.
In the end every reader must have every line, memory must have been flat after the warm-up, and the
daemon must hold as many descriptors as before.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final

import trio

from nousd.store.sqlite.store import READERS_MAX
from tests.crash.client import request
from tests.daemon.process_harness import Place, Process, running
from tests.harness.daemon import Client
from tests.harness.process_figures import Figures, faults_in, figures_of, growth_of, thirds_of
from tests.soak.drivers import Driver
from tests.soak.readers import Numbers, SoakReader, read_log, wishes

SAMPLES: Final = 120
STALL_SHARE_MAX: Final = 0.1
"""How long one stall may last, as a share of the whole time."""

END_SECONDS: Final = 120
"""How long the end may take: the last runs, and readers that are far behind."""

DATABASE_DESCRIPTORS_MAX: Final = 3 * (1 + READERS_MAX)
"""The writer and the readers, each with the file, its write-ahead log and its shared memory."""

SETTLE_SECONDS: Final = 20
_WARM_UP: Final = '[[tool bash {"command": "true"}]][[then]][[say 100]]'


@dataclass
class Soak:
    """A soak; ``faults`` are lines for people."""

    folder: Path
    seed: int
    seconds: float
    sessions: int
    connections: int
    faults: list[str] = field(default_factory=list)
    samples: list[Figures] = field(default_factory=list)
    runs_at_once: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._place = Place(self.folder, options=("--provider", "mock"))
        self._drivers: list[Driver] = []
        self._readers: list[SoakReader] = []
        self._before = self._after = Figures(0, 0, 0, 0, 0, 0)
        self._events = 0

    async def run(self) -> None:
        """Play it, and fill in ``faults``."""
        async with running(self._place) as process:
            await self._warm_up()
            self._before = await _settled(process)
            control = await self._load(process)
            await self._compare(control)
            await self._place.aclose()
            self._after = await _settled(process, until=self._is_as_before)
            if not self._is_as_before(self._after):
                self.faults.append(f"descriptors: {self._before} before, {self._after} after")
            code = await process.stop()
            if code != 0:
                self.faults.append(f"an orderly stop ended with {code}")
        self.faults += [fault for driver in self._drivers for fault in driver.faults]
        self.faults += faults_in((self.folder / "daemon.log").read_text())
        self.faults += filter(None, [growth_of([sample.resident for sample in self.samples])])

    def report(self) -> str:
        """The figures, for people."""
        drivers, readers = self._drivers, self._readers
        descriptors = max(sample.descriptors for sample in self.samples)
        threads = max(sample.threads for sample in self.samples)
        return f"""\
seed {self.seed}: {self.seconds:.0f} s, {self.connections} connections, {self.sessions} sessions
runs at once, median and most: {statistics.median(self.runs_at_once):.0f}, {max(self.runs_at_once)}
runs: {sum(driver.runs for driver in drivers)}
commands: {sum(driver.commands for driver in drivers)}
slowest answer: {max(driver.slowest_seconds for driver in drivers):.2f} s
events in the log: {self._events}
lines read: {sum(len(reader.seqs) for reader in readers)}
stalls: {sum(reader.stalls for reader in readers)}
reader connections: {sum(reader.connections for reader in readers)}
resident MiB, most of each third: {thirds_of([sample.resident for sample in self.samples])}
proportional MiB, most of each third: {thirds_of([each.proportional for each in self.samples])}
descriptors before, most, after: {self._before.descriptors}, {descriptors}, {self._after.descriptors}
threads before, most, after: {self._before.threads}, {threads}, {self._after.threads}
faults: {len(self.faults)}"""

    async def _warm_up(self) -> None:
        """Perform each operation once that makes a daemon open descriptors it keeps."""
        client = await self._place.connect()
        await client.request("prompt", text=_WARM_UP)
        events = await self._place.watch(after="evt-0", types="all")
        await events.next()
        await self._place.aclose()

    # --- the load ------------------------------------------------------------------------------

    async def _load(self, process: Process) -> Client:
        control = await self._place.connect()
        await self._make_drivers(control)
        self._make_readers()
        async with trio.open_nursery() as nursery:
            for reader in self._readers:
                nursery.start_soon(reader.run)
            async with trio.open_nursery() as drivers:
                for driver in self._drivers:
                    drivers.start_soon(driver.run)
                await self._sample(process, control)
                drivers.cancel_scope.deadline = trio.current_time() + END_SECONDS
                for driver in self._drivers:
                    driver.stop()
                await _abort_all(control)
            for reader in self._readers:
                reader.stop()
        return control

    async def _make_drivers(self, control: Client) -> None:
        for number in range(self.sessions):
            name = f"{self.seed}-driver-{number}"
            created = await control.request("new_session")
            client = await self._place.connect()
            self._drivers.append(Driver(client, created["session_id"], Random(name), name))

    def _make_readers(self) -> None:
        random, numbers = Random(f"{self.seed}-readers"), Numbers()
        sessions = [driver.session_id for driver in self._drivers]
        count = self.connections - self.sessions - 1
        self._readers = [
            SoakReader(
                self._place.events_socket,
                numbers,
                Random(f"{self.seed}-reader-{number}"),
                self.seconds * STALL_SHARE_MAX,
                **wish,
            )
            for number, wish in enumerate(islice(wishes(random, sessions), count))
        ]

    async def _sample(self, process: Process, control: Client) -> None:
        for _ in range(SAMPLES):
            await trio.sleep(self.seconds / SAMPLES)
            self.samples.append(figures_of(process.pid))
            state = await control.request("get_state")
            self.runs_at_once.append(len(state["runs"]))

    # --- the end -------------------------------------------------------------------------------

    async def _compare(self, control: Client) -> None:
        """Let every reader read to the end, and compare its lines with the log."""
        state = await control.request("get_state")
        log = await read_log(self._place.events_socket, int(state["cursor"].removeprefix("evt-")))
        self._events = len(log.lines)
        with trio.move_on_after(END_SECONDS) as deadline:
            async with trio.open_nursery() as nursery:
                for reader in self._readers:
                    wanted = reader.wanted(log)
                    nursery.start_soon(reader.read_up_to, wanted[-1].seq if wanted else 0)
        if deadline.cancelled_caught:
            self.faults.append(f"some readers were not at the end {END_SECONDS} s after it")
        for reader in self._readers:
            self.faults += reader.faults(log)
            await reader.drop()

    def _is_as_before(self, figures: Figures) -> bool:
        """True if the number of descriptors is back; the log's readers open theirs on first use."""
        before = self._before.descriptors - self._before.databases
        return (
            figures.descriptors - figures.databases <= before
            and figures.databases <= DATABASE_DESCRIPTORS_MAX
        )


async def _abort_all(control: Client) -> None:
    state = await control.request("get_state")
    for run in state["runs"]:
        await request(control, "abort", session_id=run["session_id"])


async def _settled(process: Process, until: Callable[[Figures], bool] = lambda _: False) -> Figures:
    """Return the figures once they are as wanted, or have not changed for a second."""
    same, figures = 0, figures_of(process.pid)
    with trio.move_on_after(SETTLE_SECONDS):
        while same < 20 and not until(figures):
            await trio.sleep(0.05)
            before, figures = figures, figures_of(process.pid)
            same = same + 1 if figures.descriptors == before.descriptors else 0
    return figures
