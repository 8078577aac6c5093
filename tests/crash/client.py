"""A client that puts load on a daemon until it dies, and records what it received.

What it does is in ``tests.crash.load``; here is what all of that needs. It does not judge: that is
``tests.crash.record``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import trio

from tests.crash.calls import Made
from tests.crash.inputs import Handed
from tests.crash.record import CrashRecord
from tests.daemon.process_harness import Place
from tests.harness.daemon import Client, Events
from tests.harness.resuming_reader import Refused, ResumingReader

SESSIONS_USED_MAX: Final = 6

GONE: Final = (EOFError, OSError, trio.BrokenResourceError, trio.ClosedResourceError)
"""What a client meets when its daemon has died."""

_REFUSALS: Final = frozenset({"command_rejected", "invalid_payload", "session_not_found"})
"""Error codes that say that nothing was done."""


@dataclass
class World:
    """The knowledge that the clients of all rounds share."""

    record: CrashRecord = field(default_factory=CrashRecord)
    sessions: list[str] = field(default_factory=list)
    in_doubt: list[Handed] = field(default_factory=list)
    """Inputs that were sent and not answered. The next round hands them in again."""
    calls_in_doubt: list[Made] = field(default_factory=list)
    """The same for calls."""


async def ask(client: Client, type: str, **payload: Any) -> dict[str, Any]:
    """Return the answer, a refusal too, which is no fault of either."""
    request_id = await client.ask(type, **payload)
    answer: dict[str, Any] = json.loads(await client.receive_line())
    assert answer["id"] == request_id
    return answer


async def request(client: Client, type: str, **payload: Any) -> dict[str, Any] | None:
    """Return the payload of the answer; None: refused."""
    answer = await ask(client, type, **payload)
    return answer["payload"] if answer["ok"] else None


async def watch(place: Place, record: CrashRecord) -> None:
    """Record every event line until the daemon dies, and declare that requests will be answered."""
    try:
        events = Events(await trio.open_unix_socket(f"{place.socket}.events"))
        async with events.stream:
            record.told_cursor((await events.subscribe(types="all", confirms=True))["head"])
            while True:
                record.told_event(await events.receive_line())
    except GONE:
        return


@dataclass
class Follower:
    """A subscriber that keeps leaving and coming back, over all rounds. ``types`` None: all."""

    place: Place
    types: frozenset[str] | None = None

    def __post_init__(self) -> None:
        types = "all" if self.types is None else sorted(self.types)
        self._reader = ResumingReader(self.place.events_socket, types=types)
        self._checked = 0

    async def run(self, record: CrashRecord, random: Random) -> None:
        """Read and leave, again and again, until the daemon dies."""
        try:
            while True:
                await self._reader.take(random.choice((0, 1, 100, 3_000, 100_000)))
                await trio.sleep(random.random() * 0.02)
        except Refused as refusal:
            record.violations.append(f"{self._reader.cursor} was seen and is refused: {refusal}")
        except GONE:
            return

    def check(self, record: CrashRecord) -> None:
        """Compare the events received since the last check with the log."""
        record.seen_events += len(self._reader.lines)
        record.check_stream(self._checked, self._reader.lines, self.types)
        self._checked = self._reader.last_seq
        self._reader.lines.clear()


class LoadClient:
    """A client. ``name`` is unique over all rounds and is part of everything that it submits."""

    def __init__(self, client: Client, world: World, random: Random, name: str) -> None:
        self.world, self.random, self.name = world, random, name
        self.record = world.record
        self._client = client
        self._numbers = itertools.count()

    async def request(self, type: str, **payload: Any) -> dict[str, Any] | None:
        """Send a command and return the payload of its answer; None: refused."""
        return await request(self._client, type, **payload)

    def session(self) -> str:
        """Return one of the newer sessions."""
        return self.random.choice(self.world.sessions[-SESSIONS_USED_MAX:])

    def unique(self) -> str:
        """Return a name that nothing else has."""
        return f"{self.name}-{next(self._numbers)}"

    def pick(self, choices: Sequence[Any]) -> Any:
        """Return one of them."""
        return self.random.choice(choices)

    async def hand_in(self, handed: Handed) -> None:
        """Submit an input and record its answer; without one it stays in doubt."""
        self.record.runs.asked(handed.session_id, handed.text)
        try:
            answer = await ask(self._client, handed.type, **handed.payload())
        except GONE:
            self.world.in_doubt.append(handed)
            raise
        if answer["ok"]:
            self._note_accepted(handed, answer["payload"])
        elif answer["error"]["code"] in _REFUSALS:
            self.record.inputs.told_refused(handed)
        elif answer["error"]["code"] in ("provider_error", "timeout"):
            self._note_failed(handed, answer["error"])

    async def call(self, made: Made) -> None:
        """Make a call and record its answer; without one it stays in doubt."""
        self.record.runs.asked(made.session_id, made.command)
        try:
            answer = await self.request("call_tool", **made.payload())
        except GONE:
            self.world.calls_in_doubt.append(made)
            raise
        if answer is not None:
            self.record.calls.told_accepted(made, answer["tool_call_id"])

    async def confirm(self, asked: Mapping[str, Any], decision: str) -> None:
        """Decide a pending call, and record the decision: this one, or an earlier one."""
        named = {key: asked[key] for key in ("tool_call_id", "attempt", "input_hash")}
        answer = await ask(self._client, "confirm_tool", **named, decision=decision)
        calls = self.record.calls
        if answer["ok"]:
            calls.told_decided(asked, "denied" if decision == "deny" else "approved", "user")
            if "rule" in answer["payload"]:
                place = asked["session_id"] if decision == "session" else ""
                calls.told_granted(place, answer["payload"]["rule"])
        elif answer["error"]["message"] == "already_decided":
            details = answer["error"]["details"]
            calls.told_decided(asked, details["decision"], details["by"])

    def _note_accepted(self, handed: Handed, answer: dict[str, Any]) -> None:
        self.record.inputs.told_accepted(handed, answer)
        if "output" in answer:
            self.record.runs.told_result(answer)
        elif "run_id" in answer:
            self.record.runs.told_started(answer["run_id"], handed.session_id)

    def _note_failed(self, handed: Handed, error: dict[str, Any]) -> None:
        self.record.inputs.told_accepted(handed, {})
        run_id = error["details"]["run_id"]
        # A timeout leaves the run going.
        status = "error" if error["code"] == "provider_error" else "running"
        told = {"run_id": run_id, "session_id": handed.session_id, "status": status}
        self.record.runs.told_run(told)
