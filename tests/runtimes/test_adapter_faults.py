"""An adapter with a fault ends the life of its program, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
import trio

from nousd.runtimes.agents.interface import Resume, Start, UserText, Write
from tests.harness.daemon import WAIT_SECONDS, of_type
from tests.runtimes.bench import RuntimeBench, runtime_bench, said
from tests.runtimes.scripted_adapter import ScriptedAgent, ScriptedLife


class FaultyLife(ScriptedLife):
    """A life of which one place has a fault."""

    def __init__(
        self, where: str, start: Start, resume: Resume, write: Write, nursery: trio.Nursery
    ) -> None:
        super().__init__(start, resume, write, nursery)
        self._where = where
        self._nursery = nursery

    def _fail(self, where: str) -> None:
        if where == self._where:
            raise ZeroDivisionError("the fault")

    async def begin(self) -> None:
        self._fail("begin")
        await super().begin()

    async def _prompt(self, said: UserText) -> None:
        self._fail("prompt")
        await super()._prompt(said)

    async def _ask_to_stop(self) -> None:
        self._fail("stop")
        await super()._ask_to_stop()

    async def take_notification(self, method: str, params: msgspec.Raw) -> None:
        if method == "text" and self._where == "task":
            self._nursery.start_soon(self._fail_in_task)
        if method == "text":
            self._fail("message")
        await super().take_notification(method, params)

    async def _fail_in_task(self) -> None:
        self._fail("task")


class FaultyAgent(ScriptedAgent):
    """Its lives have a fault in one place, as long as ``where`` names one."""

    where = ""

    def command(self, start: Start, resume: Resume) -> Sequence[str]:
        if self.where == "command":
            raise ZeroDivisionError("the fault")
        return super().command(start, resume)

    def life(
        self,
        start: Start,
        resume: Resume,
        write: Write,
        nursery: trio.Nursery,
        variables: Mapping[str, str],
    ) -> ScriptedLife:
        return FaultyLife(self.where, start, resume, write, nursery)


@pytest.fixture
def agent(tmp_path: Path) -> FaultyAgent:
    return FaultyAgent(tmp_path / "memory")


async def goes_on(bench: RuntimeBench, agent: FaultyAgent) -> bool:
    """Return whether the next turn works, with a program of its own."""
    agent.where = ""
    run = await bench.run({"say": "again"})
    begun = [note for note in of_type(run, "agent_session") if "resume" in note]
    # A text that was not delivered before may be now.
    return "again" in said(run) and len(begun) == 1


@pytest.mark.parametrize("where", ["command", "begin", "prompt", "message", "task"])
@pytest.mark.slow(keep=1)
async def test_a_fault_of_an_adapter_ends_its_run_once_and_the_daemon_goes_on(
    tmp_path: Path, agent: FaultyAgent, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with runtime_bench(tmp_path, agent) as bench:
        agent.where = where
        with caplog.at_level(logging.ERROR):
            run = await bench.run({"say": "first"})
        (failure,) = of_type(run, "error")
        (end,) = of_type(run, "agent_end")
        assert (failure["code"], end["status"]) == ("agent_failed", "error")
        assert "ZeroDivisionError" in caplog.text
        assert await goes_on(bench, agent)


@pytest.mark.slow
async def test_a_fault_while_an_adapter_stops_its_program_spoils_no_abort(
    tmp_path: Path, agent: FaultyAgent
) -> None:
    async with runtime_bench(tmp_path, agent) as bench:
        agent.where = "stop"
        with trio.fail_after(WAIT_SECONDS):
            await bench.start({"say": "first"}, {"hold": True})
            await bench.events.until("message_update", delta="first")
            await bench.client.request("abort")
            run = await bench.events.run()
        assert of_type(run, "error") == []
        assert of_type(run, "agent_end")[0]["status"] == "cancelled"
        assert await goes_on(bench, agent)


@pytest.mark.slow
async def test_the_run_of_another_session_is_not_touched_by_a_fault(
    tmp_path: Path, agent: FaultyAgent
) -> None:
    async with runtime_bench(tmp_path, agent) as bench:
        with trio.fail_after(WAIT_SECONDS):
            other = await bench.start({"say": "one"}, {"hold": True})
            await bench.events.until("message_update", delta="one")
            agent.where = "task"
            await bench.new_session()
            faulty = await bench.start({"say": "two"}, {"hold": True})
            await bench.events.until("agent_end", run_id=faulty["run_id"])
            steered = await bench.client.request(
                "steer", session_id=other["session_id"], text='[{"say": "steered"}]'
            )
            assert steered
            end = await bench.events.until("agent_end", run_id=other["run_id"])
        assert end["payload"]["status"] == "completed"
