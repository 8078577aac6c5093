"""Clients that put random load on a daemon until it dies, and note what they were told.

Which operations are chosen follows from the seed alone; what they meet is a matter of timing. It does
not judge: that is ``tests.crash_record``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import trio

from tests.crash_record import CrashRecord, Handed
from tests.daemon.process_harness import Place
from tests.daemon_harness import Client, Events

SESSIONS_USED_MAX: Final = 6
INPUTS_USED_MAX: Final = 20

GONE: Final = (EOFError, OSError, trio.BrokenResourceError, trio.ClosedResourceError)
"""What a client meets when its daemon has died."""


@dataclass
class World:
    """What the clients of all rounds know together."""

    record: CrashRecord = field(default_factory=CrashRecord)
    sessions: list[str] = field(default_factory=list)
    in_doubt: list[Handed] = field(default_factory=list)
    """Inputs that were sent and not answered. The next round hands them in again."""

    def latest_sessions(self) -> list[str]:
        return self.sessions[-SESSIONS_USED_MAX:]


async def request(client: Client, type: str, **payload: Any) -> dict[str, Any] | None:
    """Returns the payload of the answer; None: refused, which is no fault of either."""
    request_id = await client.ask(type, **payload)
    answer = json.loads(await client.receive_line())
    assert answer["id"] == request_id
    granted: dict[str, Any] = answer["payload"]
    return granted if answer["ok"] else None


async def watch(place: Place, record: CrashRecord) -> None:
    """Notes every event line until the daemon dies."""
    try:
        events = Events(await trio.open_unix_socket(f"{place.socket}.events"))
        async with events.stream:
            await events.subscribe(types="all")
            while True:
                record.told_event(await events.receive_line())
    except GONE:
        return


class LoadClient:
    """One client. ``name`` is unique over all rounds and stands in all that it hands in."""

    def __init__(self, place: Place, world: World, random: Random, name: str) -> None:
        self._place, self._world, self._random, self._name = place, world, random, name
        self._numbers = itertools.count()

    async def run(self) -> None:
        """Works until the daemon dies."""
        try:
            self._client = Client(await trio.open_unix_socket(str(self._place.socket)))
            async with self._client.stream:
                while self._world.in_doubt:
                    await self._hand_in(self._world.in_doubt.pop())
                while True:
                    [operation] = self._random.choices(_OPERATIONS, _WEIGHTS)
                    pause = self._random.random() * 0.02
                    await operation(self)
                    await trio.sleep(pause)
        except GONE:
            return

    async def _request(self, type: str, **payload: Any) -> dict[str, Any] | None:
        return await request(self._client, type, **payload)

    def _session(self) -> str:
        return self._random.choice(self._world.latest_sessions())

    def _text(self) -> str:
        number = next(self._numbers)
        return self._random.choice(_TEXTS).replace("NAME", f"{self._name}-{number}")

    async def _hand_in(self, handed: Handed) -> None:
        answered = False
        try:
            answer = await self._request(handed.type, **handed.payload())
            answered = True
        finally:
            if not answered:
                self._world.in_doubt.append(handed)
        if answer is not None:
            self._world.record.told_accepted(handed, answer)

    async def _new_input(self, type: str) -> None:
        text = self._text()
        await self._hand_in(
            Handed(type, self._session(), text, f"{self._name}-{next(self._numbers)}")
        )

    async def prompt(self) -> None:
        await self._new_input("prompt")

    async def steer(self) -> None:
        await self._new_input("steer")

    async def follow_up(self) -> None:
        await self._new_input("follow_up")

    async def abort(self) -> None:
        answer = await self._request("abort", session_id=self._session())
        if answer is not None:
            self._world.record.told_cleared(answer)

    async def clear_queue(self) -> None:
        answer = await self._request("clear_queue", session_id=self._session())
        if answer is not None:
            self._world.record.told_cleared(answer)

    async def promote(self) -> None:
        inputs = list(
            itertools.islice(reversed(self._world.record.accepted.items()), INPUTS_USED_MAX)
        )
        if inputs:
            input_id, handed = self._random.choice(inputs)
            await self._request("promote", input_id=input_id, session_id=handed.session_id)

    async def resume(self) -> None:
        answer = await self._request("resume", session_id=self._session())
        if answer is not None:
            self._world.record.told_started(answer)

    async def new_session(self) -> None:
        self._add_session(await self._request("new_session"))

    async def branch_session(self) -> None:
        self._add_session(await self._request("branch_session", session_id=self._session()))

    def _add_session(self, answer: dict[str, Any] | None) -> None:
        if answer is not None:
            self._world.sessions.append(answer["session_id"])

    async def switch_session(self) -> None:
        await self._request("switch_session", session_id=self._session())

    async def set_mode(self) -> None:
        await self._request(
            self._random.choice(("set_steering_mode", "set_follow_up_mode")),
            mode=self._random.choice(("one-at-a-time", "all")),
            session_id=self._session(),
        )


def _bash(command: str) -> str:
    return f'[[tool bash {{"command": "{command}"}}]]'


_TEXTS: Final = (
    "[[slow 1]][[say 20]] NAME",
    "[[slow 5]][[say 40]] NAME",
    "\u2028 just words NAME",
    _bash("echo MARK-NAME >> marks; sleep 0.05"),
    "[[slow 1]][[say 3]]" + _bash("echo MARK-NAME >> marks; sleep 0.05") + "[[then]][[say 5]]",
    _bash("echo MARK-NAMEa >> marks") + _bash("echo MARK-NAMEb >> marks"),
    _bash("echo MARK-NAME >> marks; (setsid sleep 300 &); sleep 300"),
    "[[error 400]] NAME",
    "[[say 2]][[hang]] NAME",
)

_SHARES: Final[dict[Callable[[LoadClient], Any], int]] = {
    LoadClient.prompt: 10,
    LoadClient.steer: 4,
    LoadClient.follow_up: 6,
    LoadClient.abort: 3,
    LoadClient.clear_queue: 1,
    LoadClient.promote: 2,
    LoadClient.resume: 3,
    LoadClient.new_session: 1,
    LoadClient.branch_session: 1,
    LoadClient.switch_session: 1,
    LoadClient.set_mode: 2,
}
_OPERATIONS: Final = tuple(_SHARES)
_WEIGHTS: Final = tuple(_SHARES.values())
