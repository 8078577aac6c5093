"""How many agent programs live, and for how long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from nousd.daemon.error_boundary import run_contained
from nousd.errors import AgentFailed
from nousd.runtimes.agents import lives
from nousd.runtimes.agents.guest import Guest
from nousd.runtimes.agents.interface import AgentCall, AgentLife, Resume, Start, UserText
from nousd.runtimes.agents.lives import LIVES_MAX, Lives
from nousd.runtimes.agents.programs import Programs
from nousd.runtimes.agents.spaces import Spaces
from tests.harness.daemon import WAIT_SECONDS
from tests.runtimes.bench import runtime_bench
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


async def outside(_session_id: str, _call: AgentCall) -> None:
    """Nothing is called."""


@asynccontextmanager
async def living(agent: QuietAgent) -> AsyncIterator[Lives]:
    async with trio.open_nursery() as nursery:
        programs = Programs(agent, Guest(lambda: None, ()), Spaces(agent.memory, agent.name))
        yield Lives(
            agent,
            nursery,
            programs,
            contain=run_contained,
            record_outside=outside,
            redact=str,
        )
        nursery.cancel_scope.cancel()


class Waits:
    """Notes what is said about waiting for a place."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def __call__(self, what: str) -> None:
        self.told.append(what)


async def all_busy(kept: Lives, start: Start) -> Waits:
    """Begin as many lives as there may be; nothing is waited for."""
    waits = Waits()
    for number in range(LIVES_MAX):
        await kept.begin(str(number), start, Resume("new"), on_wait=waits)
    assert waits.told == []
    return waits


@pytest.mark.slow
async def test_programs_that_start_at_once_are_no_more_than_may_live(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives, "PLACE_SECONDS", 0.05)
    agent = QuietAgent(tmp_path)
    agent.is_ready = trio.Event()
    refused: list[AgentFailed] = []

    async def begin(number: int) -> None:
        try:
            await kept.begin(str(number), start, Resume("new"), on_wait=Waits())
        except AgentFailed as failure:
            refused.append(failure)

    async with living(agent) as kept:
        async with trio.open_nursery() as nursery:
            for number in range(LIVES_MAX + 4):
                nursery.start_soon(begin, number)
            with trio.fail_after(WAIT_SECONDS):
                while len(refused) < 4:
                    await trio.testing.wait_all_tasks_blocked(0.01)
            agent.is_ready.set()
        assert len(refused) == 4
        assert f"{LIVES_MAX} others are busy" in refused[0].cause
        assert refused[0].hint


@pytest.mark.slow
async def test_the_program_that_rests_longest_gives_way_and_none_that_is_in_use(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with living(QuietAgent(tmp_path)) as kept:
        waits = await all_busy(kept, start)
        kept.rest("7")
        kept.rest("3")
        await kept.begin("another", start, Resume("new"), on_wait=waits)
        assert kept.warm("7", start) is None
        await kept.begin("one more", start, Resume("new"), on_wait=waits)
        assert kept.warm("3", start) is None
        assert waits.told == []
        monkeypatch.setattr(lives, "PLACE_SECONDS", 0.05)
        with pytest.raises(AgentFailed):
            await kept.begin("too many", start, Resume("new"), on_wait=waits)
        assert "busy" in waits.told[0]


@pytest.mark.slow
async def test_those_that_wait_for_a_place_get_one_in_their_order(
    tmp_path: Path, start: Start
) -> None:
    served: list[str] = []

    async def begin(name: str) -> None:
        await kept.begin(name, start, Resume("new"), on_wait=Waits())
        served.append(name)

    async with living(QuietAgent(tmp_path)) as kept:
        await all_busy(kept, start)
        with trio.fail_after(WAIT_SECONDS):
            async with trio.open_nursery() as nursery:
                for name in ("first", "second", "third"):
                    nursery.start_soon(begin, name)
                    await trio.testing.wait_all_tasks_blocked()
                for number, _ in enumerate(("first", "second", "third"), 1):
                    # One that only rests makes room as well as one that has ended.
                    kept.rest(str(number)) if number != 2 else kept.drop(str(number))
                    while len(served) < number:
                        await trio.testing.wait_all_tasks_blocked(0.01)
    assert served == ["first", "second", "third"]


@pytest.mark.slow
async def test_one_that_gives_up_its_wait_takes_no_place(tmp_path: Path, start: Start) -> None:
    async with living(QuietAgent(tmp_path)) as kept:
        await all_busy(kept, start)
        with trio.move_on_after(0.05):
            await kept.begin("impatient", start, Resume("new"), on_wait=Waits())
        kept.rest("0")
        with trio.fail_after(WAIT_SECONDS):
            await kept.begin("patient", start, Resume("new"), on_wait=Waits())
        assert kept.warm("impatient", start) is None


async def test_a_program_ends_that_nobody_uses_and_none_in_a_long_turn(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives, "IDLE_SECONDS", 0.05)
    async with living(QuietAgent(tmp_path)) as kept:
        used = await kept.begin("used", start, Resume("new"), on_wait=Waits())
        unused = await kept.begin("unused", start, Resume("new"), on_wait=Waits())
        kept.rest("unused")
        with trio.fail_after(WAIT_SECONDS):
            await unused.over.wait()
            # The turn of the other one takes longer than a program is kept without.
            resting = await kept.begin("unused", start, Resume("new"), on_wait=Waits())
            kept.rest("unused")
            await resting.over.wait()
        assert kept.warm("used", start) is used
        kept.rest("used")
        with trio.fail_after(WAIT_SECONDS):
            await used.over.wait()


@pytest.mark.slow
async def test_a_life_that_takes_the_place_of_its_own_one_needs_no_other(
    tmp_path: Path, start: Start
) -> None:
    async with living(QuietAgent(tmp_path)) as kept:
        waits = await all_busy(kept, start)
        kept.rest("7")
        kept.drop("3")
        with trio.fail_after(WAIT_SECONDS):
            await kept.begin("3", start, Resume("new"), on_wait=waits)
        assert waits.told == []
        assert kept.warm("7", start) is not None


@pytest.mark.slow
async def test_a_prompt_waits_for_a_place_says_so_and_is_carried_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives, "LIVES_MAX", 1)
    async with runtime_bench(tmp_path, ScriptedAgent(tmp_path / "memory")) as bench:
        with trio.fail_after(WAIT_SECONDS):
            first = await bench.start({"say": "first"}, {"hold": True})
            await bench.events.until("message_end", text="first")
            await bench.new_session()
            second = await bench.start({"say": "second"})
            warned = await bench.events.until("warning", code="agent_waits")
            assert warned["payload"]["run_id"] == second["run_id"]
            await bench.client.request("abort", session_id=first["session_id"])
            end = await bench.events.until("agent_end", run_id=second["run_id"])
        assert end["payload"]["status"] == "completed"
        assert "second" in await bench.texts()


async def test_a_prompt_that_waited_in_vain_says_for_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives, "LIVES_MAX", 1)
    monkeypatch.setattr(lives, "PLACE_SECONDS", 0.05)
    async with runtime_bench(tmp_path, ScriptedAgent(tmp_path / "memory")) as bench:
        with trio.fail_after(WAIT_SECONDS):
            await bench.start({"say": "first"}, {"hold": True})
            await bench.events.until("message_end", text="first")
            await bench.new_session()
            error = await bench.client.refusal("prompt", text="hello", wait=True)
    assert "1 others are busy" in error["cause"]
    assert "abort" in error["details"]["hint"]
