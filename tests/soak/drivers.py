"""Drivers of a soak: each keeps a run going in its own session and sends commands of all kinds."""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any, Final

import trio

from tests.harness.daemon import Client

RUNS_UNTIL_BACK: Final = 20
"""After so many runs the leaf goes back to where it was, so that contexts stay short."""

PATIENCE: Final = 8
"""How often the tests' own patience is waited for an answer before it counts as missing."""

FAULTS: Final = frozenset({"internal_error", "session_error", "invalid_command"})
"""Error codes that no command here may be answered with."""


class Driver:
    """Works on one session until ``stop``. ``runs`` and ``commands`` count, ``faults`` should not.

    ``slowest_seconds`` is the longest wait for the answer to a command that does not wait for a run.
    """

    def __init__(self, client: Client, session_id: str, random: Random, name: str) -> None:
        self.runs = 0
        self.commands = 0
        self.slowest_seconds = 0.0
        self.faults: list[str] = []
        self.session_id = session_id
        self.random = random
        self._client = client
        self._name = name
        self._numbers = itertools.count()
        self._leaf_id: str | None = None
        self._stopping = False

    async def run(self) -> None:
        """Keep a run going, one after the other."""
        while not self._stopping:
            again = {
                "text": self.random.choice(_TEXTS),
                "session_id": self.session_id,
                "client_message_id": f"{self._name}-{next(self._numbers)}",
            }
            await self.ask("prompt", **again, wait=False)
            for _ in range(self.random.randrange(6)):
                await self.random.choice(_OPERATIONS)(self)
            # Sent again, it answers when its run is over.
            await self.ask("prompt", **again, wait=True)
            self.runs += 1
            if self.runs % RUNS_UNTIL_BACK == 0:
                await self._go_back()

    def stop(self) -> None:
        """Let the run that is going on be the last."""
        self._stopping = True

    async def ask(self, type: str, **payload: Any) -> dict[str, Any]:
        """Send a command and return its answer, a refusal too."""
        self.commands += 1
        begun = trio.current_time()
        request_id = await self._client.ask(type, **payload)
        answer = await self._receive(f"{type} {payload}")
        assert answer["id"] == request_id
        if not payload.get("wait"):
            self.slowest_seconds = max(self.slowest_seconds, trio.current_time() - begun)
        if not answer["ok"] and answer["error"]["code"] in FAULTS:
            self.faults.append(f"{type} {payload}: {answer['error']}")
        return answer

    async def _receive(self, what: str) -> dict[str, Any]:
        """Return the next answer, for which a client of a busy machine waits longer than a test."""
        for _ in range(PATIENCE):
            with suppress(trio.TooSlowError):
                answer: dict[str, Any] = json.loads(await self._client.receive_line())
                return answer
        raise AssertionError(f"{self.session_id}: no answer to {what}")

    async def about(self, type: str, **payload: Any) -> dict[str, Any]:
        """Send a command about the driver's session."""
        return await self.ask(type, session_id=self.session_id, **payload)

    async def _go_back(self) -> None:
        if self._leaf_id is None:
            state = await self.about("get_state")
            self._leaf_id = state["payload"]["leaf_id"]
        await self.about("set_leaf", leaf_id=self._leaf_id)


async def _hand_in(driver: Driver) -> None:
    await driver.about(driver.random.choice(("steer", "follow_up")), text="and [[say 5]]")


async def _abort(driver: Driver) -> None:
    await driver.about("abort")


async def _set(driver: Driver) -> None:
    await driver.about("set_steering_mode", mode=driver.random.choice(("all", "one-at-a-time")))
    await driver.about("rename_session", name=f"name {driver.random.random()}")


async def _promote(driver: Driver) -> None:
    queue = await driver.about("get_queue")
    for item in queue["payload"]["inputs"]:
        await driver.about("promote", input_id=item["input_id"])
    await driver.about("clear_queue")


async def _read(driver: Driver) -> None:
    for type in driver.random.sample(_READS, 3):
        await driver.about(type)


async def _read_all(driver: Driver) -> None:
    await driver.ask("list_sessions")
    await driver.ask("get_events", after="evt-0", types="all", limit=200)


async def _use_another_session(driver: Driver) -> None:
    """Make a session or a branch, uses it and delete it."""
    made = await (driver.ask("new_session") if driver.random.random() < 0.5 else _branch(driver))
    session_id = made["payload"]["session_id"]
    await driver.ask("prompt", text="[[say 30]]", session_id=session_id)
    await driver.ask("delete_session", session_id=session_id)


async def _branch(driver: Driver) -> dict[str, Any]:
    return await driver.about("branch_session")


_TEXTS: Final = (
    "[[slow 100]][[say 20]]",
    "[[slow 50]][[say 30]]",
    "[[slow 20]][[think 20]][[say 40]]",
    '[[slow 50]][[say 5]][[tool bash {"command": "sleep 0.2; echo done"}]][[then]][[say 10]]',
    '[[tool ls {}]][[tool read {"path": "none"}]][[then]][[slow 50]][[say 20]]',
    "[[say 300]][[slow 50]][[text and]][[say 20]]",
    "[[slow 50]][[say 10]][[error 400]]",
)
_READS: Final = ("get_state", "get_messages", "get_tree", "get_queue", "list_runs", "list_tools")
_OPERATIONS: Final[tuple[Callable[[Driver], Awaitable[None]], ...]] = (
    _hand_in,
    _hand_in,
    _abort,
    _set,
    _promote,
    _read,
    _read_all,
    _use_another_session,
)
