"""Models and thinking levels of agent programs."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from nousd.runtimes.agents.acp.agent import Acp
from nousd.runtimes.agents.claude.agent import Claude
from nousd.runtimes.agents.interface import Agent, Resume, Start
from tests.harness.daemon import of_type
from tests.runtimes.bench import RuntimeBench, runtime_bench, said
from tests.runtimes.contracted import fake_claude, fake_codex, fake_opencode
from tests.runtimes.scripted_adapter import ENVIRONMENT, scripted_program

pytestmark = pytest.mark.slow(keep=2)  # the default suite tries 2 of the agents with each


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "memory"


def acp(memory: Path, **manner: object) -> Acp:
    command = [*scripted_program("fake_acp"), str(memory), json.dumps(manner)]
    return Acp("acp", command, ENVIRONMENT)


async def models_of(bench: RuntimeBench) -> list[str]:
    listed = await bench.client.request("list_models", runtime=bench.runtime)
    return [each["model"] for each in listed["models"]]


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("claude", ["default", "large"]),
        ("codex", ["small", "large"]),
        ("acp", ["m1", "m2"]),
        ("opencode", ["stub/m", "stub/large/x"]),
    ],
)
async def test_the_models_of_a_program_are_listed_and_judged_once_it_has_run(
    workdir: Path, memory: Path, name: str, models: list[str]
) -> None:
    agents: dict[str, Agent] = {
        "claude": fake_claude(memory),
        "codex": fake_codex(memory),
        "acp": acp(memory, models=["m1", "m2"]),
        "opencode": fake_opencode(memory),
    }
    async with runtime_bench(workdir, agents[name]) as bench:
        assert await models_of(bench) == []
        await bench.run({"say": "one"})
        assert await models_of(bench) == models
        refused = await bench.client.refusal("set_model", model="larje")
        assert "model_unknown" in refused["message"]
        assert refused["details"]["nearest"] in models
        changed = await bench.client.request("set_model", model=models[1])
        assert (changed["provider"], changed["model"]) == (name, models[1])
        state = await bench.client.request("get_state")
        assert state["runtime_model"] == models[1]
        run = await bench.run({"say": "two"})
        assert said(run) == ["two"]
        (told,) = of_type(run, "model_input")
        assert told["model"] == models[1]


async def test_a_model_of_an_agent_changes_neither_new_sessions_nor_native_ones(
    workdir: Path, memory: Path
) -> None:
    async with runtime_bench(workdir, fake_claude(memory)) as bench:
        before = await bench.client.request("get_state")
        await bench.client.request("set_model", model="large")
        created = await bench.client.request("new_session")
        state = await bench.client.request("get_state", session_id=created["session_id"])
        assert (state["provider"], state["model"]) == (before["provider"], before["model"])
        assert "runtime_model" not in state


async def test_a_new_session_names_a_model_of_its_runtime(workdir: Path, memory: Path) -> None:
    async with runtime_bench(workdir, fake_codex(memory)) as bench:
        await bench.run({"say": "one"})
        refused = await bench.client.refusal("new_session", runtime="codex", model="none")
        assert "model_unknown" in refused["message"]
        await bench.client.request("new_session", runtime="codex", model="small")
        await bench.run({"say": "two"})
    begun = [
        message["params"]
        for message in map(json.loads, (memory / "sent.ndjson").read_text().splitlines())
        if message.get("method") == "thread/start"
    ]
    assert [params["model"] for params in begun] == [None, "small"]


async def test_another_runtime_forgets_the_model(workdir: Path, memory: Path) -> None:
    async with runtime_bench(workdir, fake_codex(memory)) as bench:
        await bench.client.request("set_model", model="large")
        await bench.client.request("set_runtime", runtime=None)
        await bench.client.request("set_runtime", runtime="codex")
        assert "runtime_model" not in await bench.client.request("get_state")


@pytest.mark.slow
async def test_a_thinking_level_is_judged_and_passed_on(workdir: Path, memory: Path) -> None:
    async with runtime_bench(workdir, fake_codex(memory)) as bench:
        refused = await bench.client.refusal("set_thinking", level="off")
        assert "thinking_level_unknown" in refused["message"]
        assert refused["details"]["levels"] == ["low", "medium", "high"]
        await bench.client.request("set_thinking", level="high")
        await bench.run({"say": "one"})
        await bench.client.request("set_thinking", level=None)
        await bench.run({"say": "two"})
    turns = [
        message["params"]
        for message in map(json.loads, (memory / "sent.ndjson").read_text().splitlines())
        if message.get("method") == "turn/start"
    ]
    assert [params.get("effort") for params in turns] == ["high", None]


def test_claude_is_started_with_the_model_and_the_level(workdir: Path) -> None:
    start = Start(workdir=workdir, model="large", instructions="", tools=(), thinking="low")
    command = Claude("claude", ["claude"], {}).command(start, Resume("new"))
    pairs = list(itertools.pairwise(command))
    assert ("--model", "large") in pairs
    assert ("--effort", "low") in pairs


async def test_the_models_of_the_settings_come_before_the_programs(
    workdir: Path, memory: Path
) -> None:
    agent = fake_claude(memory)
    async with runtime_bench(workdir, agent, models=("mine",)) as bench:
        await bench.run({"say": "one"})
        assert await models_of(bench) == ["mine"]
        assert (
            "model_unknown" in (await bench.client.refusal("set_model", model="large"))["message"]
        )
        (summary,) = [
            each
            for each in (await bench.client.request("get_runtimes"))["runtimes"]
            if each["name"] == agent.name
        ]
        assert summary["models"] == ["mine"]
        assert summary["capabilities"]["thinking_levels"] == ["low", "medium", "high"]
