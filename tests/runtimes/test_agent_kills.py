"""Agent programs and their daemon are killed at any moment: nothing is lost, nothing runs twice."""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from tests.harness.daemon import Event, of_type
from tests.runtimes.bench import WAIT_SECONDS
from tests.runtimes.contracted import Real, RealPlace
from tests.runtimes.test_agent_processes import (
    AgentPlace,
    CodexPlace,
    OpencodePlace,
    Talk,
    new_session,
    placed,
    talking,
)

KILLS: Final = int(os.environ.get("NOUSD_TEST_KILLS", "20"))


def some_acts(chance: random.Random) -> list[dict[str, Any]]:
    """Return what the program does in a turn: it talks, calls tools, and takes its time."""
    acts: list[dict[str, Any]] = [{"say": "begun"}]
    for _ in range(chance.randint(1, 3)):
        name = f"file{chance.randrange(10**9)}"
        acts.append({"call": ["workspace.write", {"path": name, "content": name}]})
        acts.append({"say": f"wrote {name}"})
    return acts


async def all_events(place: AgentPlace | RealPlace) -> list[Event]:
    """Return everything in the log; what is not balanced fails."""
    events = await place.watch(after="evt-0", types="all")
    seen = [await events.next()]
    while seen[-1]["id"] != events.head:
        seen.append(await events.next())
    return seen


def consumed(events: Sequence[Event]) -> Counter[str]:
    """Return how often each input was consumed."""
    updates = of_type(events, "queue_update")
    return Counter(
        each["input_id"]
        for update in updates
        if update["change"] == "consumed"
        for each in update["inputs"]
    )


def started(events: Sequence[Event]) -> Counter[str]:
    """Return how often each call of the program was started, by the program's own id if it has one."""
    own_ids = {
        each["tool_call_id"]: each["runtime_tool_call_id"] or each["tool_call_id"]
        for each in of_type(events, "tool_call_requested")
    }
    return Counter(own_ids[each["tool_call_id"]] for each in of_type(events, "tool_call_started"))


class Campaign:
    """Prompts one session, and kills in the middle of the runs.

    Args:
        victim: ``agent`` or ``daemon``.
    """

    def __init__(self, place: AgentPlace | RealPlace, victim: str) -> None:
        self.accepted: list[str] = []
        self._place = place
        self._victim = victim
        self._chance = random.Random(victim)
        self._session_id = ""
        self._kills = 0
        self._is_running = False

    async def life(self) -> None:
        """Run a daemon until it is killed, or until there were enough kills."""
        async with talking(self._place) as talk:
            self._session_id = self._session_id or await new_session(talk, self._place.runtime)
            while self._kills < KILLS:
                await self._begin_a_run(talk)
                self._kills += 1
                if self._victim == "daemon":
                    await talk.process.kill()
                    return
                for number in self._place.programs():
                    with suppress(ProcessLookupError):
                        os.kill(number, signal.SIGKILL)
                if self._is_running:
                    await talk.events.run()

    @property
    def is_over(self) -> bool:
        return self._kills >= KILLS

    async def _begin_a_run(self, talk: Talk) -> None:
        """Start a run, and follow it for a while, or to its end."""
        text = json.dumps(some_acts(self._chance))
        answer = await talk.client.request(
            "prompt", session_id=self._session_id, text=text, wait=False
        )
        self.accepted.append(answer["input_id"])
        for _ in range(self._chance.randint(1, 70)):
            event = await talk.events.next()
            if event["type"] == "agent_end":
                self._is_running = False
                return
        self._is_running = True

    async def finish(self) -> list[Event]:
        """Carry out what is left; return everything in the log."""
        async with talking(self._place) as talk:
            named = {"session_id": self._session_id}
            while (await talk.client.request("get_queue", **named))["inputs"]:
                await talk.client.request("resume", **named)
                await talk.events.run()
            await talk.run(self._session_id, {"say": "the end"})
            return await all_events(self._place)


@pytest.fixture(params=[AgentPlace, CodexPlace, OpencodePlace], ids=lambda kind: str(kind.runtime))
def place(request: pytest.FixtureRequest) -> Iterator[AgentPlace]:
    with placed(request.param) as place:
        yield place


async def killed_again_and_again(place: AgentPlace | RealPlace, victim: str) -> None:
    """Check that kills lose nothing, repeat nothing, and leave nothing."""
    campaign = Campaign(place, victim)
    with trio.fail_after(WAIT_SECONDS * (KILLS + 1)):
        while not campaign.is_over:
            await campaign.life()
        events = await campaign.finish()
    assert [consumed(events)[input_id] for input_id in campaign.accepted] == [1] * KILLS
    assert set(started(events).values()) <= {1}
    # They die a moment after the daemon.
    with trio.fail_after(WAIT_SECONDS):
        while place.programs():
            await trio.lowlevel.checkpoint()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["agent", "daemon"])
async def test_kills_lose_nothing_and_repeat_nothing(place: AgentPlace, victim: str) -> None:
    await killed_again_and_again(place, victim)


@pytest.mark.slow
@pytest.mark.parametrize(
    "victim",
    [
        pytest.param("agent", marks=pytest.mark.row("kills of the agent", real=True)),
        pytest.param("daemon", marks=pytest.mark.row("kills of the daemon", real=True)),
    ],
)
async def test_kills_with_a_real_program(program: Real, tmp_path: Path, victim: str) -> None:
    async with program.place(tmp_path) as place:
        await killed_again_and_again(place, victim)
