"""How many agent programs live, and for how long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from nousd.errors import AgentFailed
from nousd.runtimes.agents import lives
from nousd.runtimes.agents.guest import Guest
from nousd.runtimes.agents.interface import AgentLife, Resume, Start, UserText
from nousd.runtimes.agents.lives import LIVES_MAX, Lives
from tests.harness.daemon import WAIT_SECONDS
from tests.runtimes.scripted_adapter import ScriptedAgent


class Quiet(AgentLife):
    """The life of a program that is ready when the test says so."""

    def __init__(self, is_ready: trio.Event) -> None:
        super().__init__()
        self._is_ready = is_ready

    async def begin(self) -> None:
        await self._is_ready.wait()

    async def take(self, line: bytes) -> None:
        """Nothing is said."""

    async def _prompt(self, said: UserText) -> None:
        """Nothing is done."""

    async def _ask_to_stop(self) -> None:
        """Nothing is done."""


class QuietAgent(ScriptedAgent):
    """A program that reads and says nothing."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.is_ready = trio.Event()
        self.is_ready.set()

    def command(self, start: Start, resume: Resume) -> list[str]:
        return ["cat"]

    def life(self, *_: object) -> Quiet:  # type: ignore[override]
        return Quiet(self.is_ready)


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return Start(workdir=tmp_path, model="", instructions="", tools=())


@asynccontextmanager
async def living(agent: QuietAgent) -> AsyncIterator[Lives]:
    async with trio.open_nursery() as nursery:
        yield Lives(agent, nursery, Guest(lambda: None, ()), redact=str)
        nursery.cancel_scope.cancel()


async def test_programs_that_start_at_once_are_no_more_than_may_live(
    tmp_path: Path, start: Start
) -> None:
    agent = QuietAgent(tmp_path)
    agent.is_ready = trio.Event()
    refused: list[AgentFailed] = []

    async def begin(number: int) -> None:
        try:
            await kept.begin(str(number), start, Resume("new"))
        except AgentFailed as failure:
            refused.append(failure)

    async with living(agent) as kept:
        async with trio.open_nursery() as nursery:
            for number in range(LIVES_MAX + 4):
                nursery.start_soon(begin, number)
            await trio.testing.wait_all_tasks_blocked()
            agent.is_ready.set()
        assert len(refused) == 4
        assert "running already" in refused[0].cause


async def test_the_program_that_rests_longest_gives_way_and_none_that_is_in_use(
    tmp_path: Path, start: Start
) -> None:
    async with living(QuietAgent(tmp_path)) as kept:
        for number in range(LIVES_MAX):
            await kept.begin(str(number), start, Resume("new"))
        kept.rest("7")
        kept.rest("3")
        await kept.begin("another", start, Resume("new"))
        assert kept.warm("7", start) is None
        await kept.begin("one more", start, Resume("new"))
        assert kept.warm("3", start) is None
        with pytest.raises(AgentFailed):
            await kept.begin("too many", start, Resume("new"))


async def test_a_program_ends_that_nobody_uses_and_none_in_a_long_turn(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives, "IDLE_SECONDS", 0.05)
    async with living(QuietAgent(tmp_path)) as kept:
        used = await kept.begin("used", start, Resume("new"))
        unused = await kept.begin("unused", start, Resume("new"))
        kept.rest("unused")
        with trio.fail_after(WAIT_SECONDS):
            await unused.over.wait()
            # The turn of the other one takes longer than a program is kept without.
            resting = await kept.begin("unused", start, Resume("new"))
            kept.rest("unused")
            await resting.over.wait()
        assert kept.warm("used", start) is used
        kept.rest("used")
        with trio.fail_after(WAIT_SECONDS):
            await used.over.wait()
