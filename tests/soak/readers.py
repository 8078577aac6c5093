"""Readers of a soak: they stall, reconnect, and have every line in the end.

Of each line a reader keeps its number, a checksum and its session, so that millions of lines are
little; ``faults`` holds that against the log, read once more.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from sys import intern
from typing import Any, Final
from zlib import crc32

import trio

from nousd.wire.events import FROZEN_EVENTS
from tests.harness.resuming_reader import ResumingReader, seq_of

_SESSION: Final = b'"session_id":"'
_SHOWN_MAX: Final = 3

EVERYTHING_SHARE: Final = 0.05
"""Readers of all sessions. They are few, since a reader written in Python takes some 50,000 lines a
second, all readers together."""


class Numbers:
    """Gives each session a number."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    def of(self, session_id: bytes) -> int:
        return self._numbers.setdefault(session_id, len(self._numbers))

    def of_line(self, line: bytes) -> int:
        """Return the number of an event line's session, which comes first in the payload."""
        return self.of(line.partition(_SESSION)[2].partition(b'"')[0])


@dataclass(frozen=True, slots=True)
class Logged:
    """A line of the log, as readers are held against it."""

    seq: int
    sum: int
    type: str
    session_id: str


class SoakLog:
    """All of the log that there still is. ``deleted``: sessions of which only a tombstone is left."""

    def __init__(self, lines: Sequence[Logged]) -> None:
        self.lines = lines
        tombstones = [line for line in lines if line.type == "session_deleted"]
        self.tombstones = frozenset(line.seq for line in tombstones)
        self.deleted = frozenset(line.session_id for line in tombstones)
        self._by_session: dict[str, list[Logged]] = {}
        for line in lines:
            self._by_session.setdefault(line.session_id, []).append(line)

    def of(self, session_id: str | None) -> Sequence[Logged]:
        """Return the lines of a session; None: all."""
        return self.lines if session_id is None else self._by_session.get(session_id, [])


class SoakReader(ResumingReader):
    """A reader. ``stalls`` and ``connections`` count how often it stopped reading and connected."""

    def __init__(
        self, socket: Path, numbers: Numbers, random: Random, stall_seconds: float, **wish: Any
    ) -> None:
        super().__init__(socket, **wish)
        self.stalls = 0
        self.seqs = array("Q")
        self.sums = array("L")
        self._sessions = array("L")
        self._numbers = numbers
        self._random = random
        self._stall_seconds = stall_seconds
        self._living = trio.CancelScope()

    def keep(self, line: bytes) -> None:
        """Keep the number, checksum and session of a line."""
        self.seqs.append(self.last_seq)
        self.sums.append(crc32(line))
        self._sessions.append(self._numbers.of_line(line))

    async def run(self) -> None:
        """Read, stalls, leaves and comes back until ``stop``."""
        with self._living:
            while True:
                await self.read(self._random.choice((0, 1, 5_000, 50_000, 500_000)))
                chance = self._random.random()
                if chance < 0.1:
                    await self.drop()
                if chance < 0.5:
                    self.stalls += 1
                    await trio.sleep(self._random.random() * self._stall_seconds)

    def stop(self) -> None:
        """End ``run``; bytes received on the connection are kept."""
        self._living.cancel()

    async def read_up_to(self, seq: int) -> None:
        """Read on, without stalling, until that line is there."""
        if self.last_seq < seq:
            await self.read(2**40, is_last=lambda line: seq_of(line) >= seq)

    def wanted(self, log: SoakLog) -> list[Logged]:
        """Return the lines of the log that are for this reader."""
        types = self.subscription["types"]
        names = FROZEN_EVENTS if types == "v1" else types
        lines = log.of(self.subscription.get("session_id"))
        return [line for line in lines if types == "all" or line.type in names]

    def faults(self, log: SoakLog) -> list[str]:
        """Return a line for each difference between the lines read and the log."""
        gone = {self._numbers.of(session_id.encode()) for session_id in log.deleted}
        expected = [(line.seq, line.sum) for line in self.wanted(log)]
        got = [
            (seq, sum_)
            for seq, sum_, session in zip(self.seqs, self.sums, self._sessions, strict=True)
            if session not in gone or seq in log.tombstones
        ]
        if got == expected:
            return []
        missing, strange = set(expected) - set(got), set(got) - set(expected)
        told = (
            f"{self.subscription}: {len(missing)} lines missing, such as "
            f"{sorted(missing)[:_SHOWN_MAX]}; {len(strange)} not in the log, such as "
            f"{sorted(strange)[:_SHOWN_MAX]}; {len(got) - len(set(got))} duplicates"
        )
        return [told]


def wishes(random: Random, sessions: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the subscriptions of readers: mostly one session, sometimes everything."""
    while True:
        chance = random.random()
        about: dict[str, Any] = (
            {"session_id": random.choice(sessions)} if chance > EVERYTHING_SHARE else {}
        )
        types: Any = random.choice(("all", "v1", ["message_end", "agent_end", "queue_update"]))
        yield {**about, "types": types}


class _LogReader(ResumingReader):
    """Reads the log in one piece."""

    def __init__(self, socket: Path) -> None:
        super().__init__(socket, types="all")
        self.logged: list[Logged] = []

    def keep(self, line: bytes) -> None:
        event = json.loads(line)
        # The same few types and sessions again and again are to be the same strings.
        type_, session_id = intern(event["type"]), intern(event["payload"].get("session_id", ""))
        self.logged.append(Logged(self.last_seq, crc32(line), type_, session_id))


async def read_log(socket: Path, head: int) -> SoakLog:
    """Return the log up to its head."""
    reader = _LogReader(socket)
    await reader.take(2**40, is_last=lambda line: seq_of(line) >= head)
    return SoakLog(reader.logged)
