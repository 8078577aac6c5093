"""What users are told when an agent program, or its model, fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nousd.cli.render.refusals import refusal_text
from nousd.errors import Refused
from nousd.runtimes.agents.interface import Agent, Resume, Start
from nousd.runtimes.agents.model_failure import model_failure
from tests.harness.daemon import of_type
from tests.runtimes.bench import RuntimeBench, runtime_bench
from tests.runtimes.contracted import AGENTS
from tests.runtimes.scripted_adapter import ScriptedAgent

pytestmark = pytest.mark.slow(keep=2)  # the default suite tries 2 of the agents with each


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return ScriptedAgent(tmp_path / "memory")


async def waited_for(bench: RuntimeBench, *acts: object) -> Refused:
    """Return the error of a run that was waited for."""
    error = await bench.client.refusal("prompt", text=json.dumps(acts), wait=True)
    return Refused(error["code"], error["message"], error["cause"], error["details"])


@pytest.mark.parametrize("name", AGENTS)
async def test_an_error_names_the_program_its_exit_its_last_words_and_the_next_step(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "work").mkdir()
    agent = AGENTS[name](tmp_path / "memory")
    async with runtime_bench(tmp_path / "work", agent) as bench:
        refused = await waited_for(bench, {"say": "first"}, {"die": 3})
        (failure,) = of_type(await bench.events.run(), "error")
    assert refused.code == "provider_error"
    assert refused.message == f"the agent program {name} failed"
    assert refused.cause == ("agent_failed: it ended with exit code 3; scripted agent: dying")
    assert refused.details["category"] == failure["category"] == "agent_failed"
    assert refusal_text(refused) == (
        f"the agent program {name} failed (it ended with exit code 3; scripted agent: dying);"
        " send the message again, or resume the session: the program is started anew"
    )


class NoProgram(ScriptedAgent):
    """An agent whose program is not installed."""

    def command(self, start: Start, resume: Resume) -> list[str]:
        return ["no-such-agent"]


async def test_an_error_says_that_a_program_is_missing(tmp_path: Path) -> None:
    async with runtime_bench(tmp_path, NoProgram(tmp_path / "memory")) as bench:
        refused = await waited_for(bench, {"say": "first"})
    assert "there is no program no-such-agent" in refusal_text(refused)


async def test_a_failed_model_call_of_an_agent_is_told_as_such(
    tmp_path: Path, agent: ScriptedAgent
) -> None:
    async with runtime_bench(tmp_path, agent) as bench:
        refused = await waited_for(bench, {"fail": "no such model"})
    assert refused.message == "the model failed"
    assert refused.cause == "no such model"


@pytest.mark.parametrize(
    ("cause", "status", "category"),
    [
        ("API Error: busy", 529, "overloaded"),
        ("invalid x-api-key", 401, "authentication"),
        ("Invalid API key", None, "authentication"),
        ("something else", None, None),
        ("something else", 500, "server_error"),
    ],
)
def test_a_failed_model_call_has_the_category_that_its_words_say(
    cause: str, status: int | None, category: str | None
) -> None:
    assert model_failure(cause, status=status).category == category
