"""A turn of an agent program ends once, and repeats nothing, whatever the program does.

Wrappers around agent programs are known to lose the end of a turn: where a turn has no events, where
the program does not start, where a tool fails, and where a call waits behind another.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import trio

from nousd.runtimes.agents.interface import Agent, Resume, Start
from tests.harness.daemon import Event, of_type
from tests.runtimes.bench import WAIT_SECONDS, RuntimeBench, runtime_bench, said
from tests.runtimes.contracted import AGENTS
from tests.runtimes.scripted_adapter import ScriptedAgent
from tests.runtimes.test_agent_contract import NAMELESS_CALLS, READ, files_in, write

pytestmark = pytest.mark.slow(keep=2)  # the default suite tries 2 of the agents with each


class OtherCommand(ScriptedAgent):
    """The scripted agent with another program in its place."""

    def __init__(self, memory: Path, command: Sequence[str]) -> None:
        super().__init__(memory)
        self._other = command

    def command(self, start: Start, resume: Resume) -> Sequence[str]:
        return self._other


@pytest.fixture(params=AGENTS)
def agent(request: pytest.FixtureRequest, tmp_path: Path) -> Agent:
    return AGENTS[request.param](tmp_path / "memory")


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "notes.txt").write_text("what is noted")
    return folder


@pytest.fixture
async def bench(workdir: Path, agent: Agent) -> AsyncIterator[RuntimeBench]:
    async with runtime_bench(workdir, agent) as bench:
        yield bench


def ends(run: list[Event]) -> list[str]:
    """Return how a run ended: one word, or the promise is broken."""
    return [end["status"] for end in of_type(run, "agent_end")]


async def test_a_turn_without_any_event_ends_also_behind_another(bench: RuntimeBench) -> None:
    assert ends(await bench.run({"say": "first"})) == ["completed"]
    assert ends(await bench.run()) == ["completed"]
    assert ends(await bench.run()) == ["completed"]


async def test_a_tool_that_fails_is_told_and_the_turn_goes_on(bench: RuntimeBench) -> None:
    missing = ["workspace.read", {"path": "nothing"}]
    wrong = ["workspace.read", {"no such field": 1}]
    run = await bench.run({"calls": [missing, wrong, READ]}, {"say_results": True})
    assert "what is noted" in said(run)[0]
    ended = of_type(run, "tool_execution_end")
    assert sorted(done["is_error"] for done in ended) == [False, True, True]
    assert ends(run) == ["completed"]


@pytest.mark.parametrize("command", [["false"], ["nousd-has-no-such-program"], ["echo", "words"]])
async def test_a_program_that_cannot_be_started_ends_its_run_with_an_error(
    workdir: Path, tmp_path: Path, command: list[str]
) -> None:
    async with runtime_bench(workdir, OtherCommand(tmp_path / "memory", command)) as bench:
        for _ in range(2):
            run = await bench.run({"say": "never"})
            (failure,) = of_type(run, "error")
            assert failure["code"] == "agent_failed"
            assert ends(run) == ["error"]


@pytest.mark.slow
async def test_an_abort_before_the_program_has_started_ends_the_run_at_once(
    workdir: Path, tmp_path: Path
) -> None:
    agent = OtherCommand(tmp_path / "memory", ["sleep", "1000"])
    async with runtime_bench(workdir, agent) as bench:
        with trio.fail_after(WAIT_SECONDS):
            for _ in range(2):
                started = await bench.start({"say": "never"})
                await bench.events.until("turn_start", run_id=started["run_id"])
                await bench.client.request("abort")
                assert ends(await bench.events.run(started["run_id"])) == ["cancelled"]


@pytest.mark.slow(keep=1)
async def test_calls_that_wait_behind_an_asked_one_are_taken_back_with_it(
    workdir: Path, agent: Agent
) -> None:
    async with runtime_bench(workdir, agent, mode="ask") as bench:
        with trio.fail_after(WAIT_SECONDS):
            await bench.start({"calls": [write(name) for name in ("one", "two", "three")]})
            await bench.events.until("permission_requested")
            await bench.client.request("abort")
            run = await bench.events.run()
    assert ends(run) == ["cancelled"]
    assert of_type(run, "tool_call_started") == []
    asked = {call["tool_call_id"] for call in of_type(run, "permission_requested")}
    denied = [call["tool_call_id"] for call in of_type(run, "tool_call_denied")]
    assert asked <= set(denied)
    assert len(denied) == len(set(denied)) == len(of_type(run, "tool_call_requested"))
    assert files_in(workdir) == ["notes.txt"]


async def test_a_call_repeated_any_number_of_times_runs_once(
    bench: RuntimeBench, workdir: Path
) -> None:
    if bench.runtime in NAMELESS_CALLS:
        pytest.skip("its MCP client gives calls no id, and repeats none")
    run = await bench.run(*[{"again": write("once")}] * 3, {"say_results": True})
    assert len(of_type(run, "tool_call_started")) == 1
    assert said(run)[0].count("Wrote") == 6
    assert ends(run) == ["completed"]


@pytest.mark.slow
async def test_events_of_sessions_that_run_at_once_have_ids_of_their_own(
    bench: RuntimeBench,
) -> None:
    """Two writers that count for themselves would give an id twice."""
    sessions = [await bench.new_session() for _ in range(3)]
    with trio.fail_after(WAIT_SECONDS):
        started = [
            await bench.start({"flood": 50}, {"call": READ}, session_id=session_id)
            for session_id in sessions
        ]
        waiting = {accepted["run_id"] for accepted in started}
        seen: list[int] = []
        while waiting:
            event = await bench.events.receive()
            seen.append(int(event["id"].removeprefix("evt-")))
            if event["type"] == "agent_end":
                waiting.discard(event["payload"]["run_id"])
    assert seen == sorted(set(seen))
