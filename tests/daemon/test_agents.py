"""Agent files: the folders they come from, the parts that apply, and their use by tasks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from nousd.daemon.workspace.agents import AgentPlaces, read_agents, reader
from nousd.daemon.workspace.project import Project
from nousd.wire.limits import AGENTS_MAX
from tests.daemon.asking_bench import calls
from tests.daemon.scripted import says
from tests.daemon.task_bench import children_of, result_of, task_daemon, tasks
from tests.harness.daemon import Payload, of_type

DENIES = "---\ndescription: Reads.\npermissions:\n  deny: [write]\n---\nYou read."
WIDENS = "---\nmodel: other\npermissions:\n  allow: [write]\n  mode: ask\n---\nYou write."


def put(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path


def agent_places(folder: Path) -> AgentPlaces:
    return AgentPlaces(folder / "user", folder / "project")


def project_agents(folder: Path) -> Path:
    return folder / "project" / ".nousd" / "agents"


@pytest.mark.behaviour("agents_are_listed_with_what_is_wrong")
async def test_agents_are_listed_with_their_problems(tmp_path: Path) -> None:
    put(tmp_path / "user", "mine.md", "Do it.")
    bad = put(tmp_path / "user", "bad.md", "---\ntols: [read]\n---\n")
    put(tmp_path / "user", "notes.txt", "not looked at")
    theirs = put(project_agents(tmp_path), "theirs.md", WIDENS)
    async with task_daemon(tmp_path, read_agents=reader(agent_places(tmp_path))) as bench:
        answer = await bench.client.request("list_agents")
        agents = {agent["name"]: agent for agent in answer["agents"]}
        assert list(agents) == ["bad", "mine", "theirs"]
        assert agents["bad"]["problems"] == ["unknown key tols: nearest is tools"]
        assert (agents["bad"]["usable"], agents["bad"]["path"]) == (False, str(bad))
        assert agents["mine"]["worker"] == {"name": "mine", "prompt": "Do it."}
        assert (agents["mine"]["usable"], agents["mine"]["trusted"]) == (True, True)
        assert (agents["theirs"]["source"], agents["theirs"]["path"]) == ("project", str(theirs))
        assert agents["theirs"]["hash"].startswith("sha256:")
        assert answer["session_id"] == ""


@pytest.mark.behaviour("agents_of_a_project_only_narrow")
async def test_an_untrusted_project_agent_only_narrows_and_a_trusted_one_applies_in_full(
    tmp_path: Path,
) -> None:
    path = put(project_agents(tmp_path), "theirs.md", WIDENS)
    options: dict[str, Any] = {
        "read_agents": reader(agent_places(tmp_path)),
        "project": Project(tmp_path / "project"),
    }
    async with task_daemon(tmp_path, **options) as bench:

        async def agent() -> Payload:
            [listed] = (await bench.client.request("list_agents"))["agents"]
            found: Payload = listed
            return found

        await bench.client.request("new_session")
        narrow = await agent()
        assert (narrow["trusted"], narrow["usable"]) == (False, True)
        assert narrow["worker"] == {"name": "theirs", "prompt": "You write.", "permissions": {}}
        assert len(narrow["problems"]) == 3
        named = {"path": ".nousd/agents/theirs.md"}
        await bench.client.request("trust", **named, hash=narrow["hash"])
        whole = await agent()
        assert (whole["trusted"], "problems" in whole) == (True, False)
        assert whole["worker"]["model"] == "other"
        assert whole["worker"]["permissions"] == {"allow": ["write"], "mode": "ask"}
        bench.on("go", tasks({"prompt": "look", "agent": "theirs"}), says("done"))
        bench.on("look", says("seen"))
        [child] = children_of(await bench.run())
        assert (child["model"], child["permission_mode"]) == ("other", "ask")
        # Trust belongs to the content of the file, not to its path.
        path.write_text(WIDENS + " Much.")
        await bench.client.request("new_session")
        assert not (await agent())["trusted"]
        await bench.client.request("untrust", **named)


async def test_a_task_uses_the_named_agent_and_the_system_prompt_lists_the_agents(
    tmp_path: Path,
) -> None:
    put(project_agents(tmp_path), "reader.md", DENIES)
    async with task_daemon(tmp_path, read_agents=reader(agent_places(tmp_path))) as bench:
        bench.on("go", tasks({"prompt": "look", "agent": "reader"}), says("done"))
        bench.on("look", calls(("write", '{"path": "a", "content": "b"}')), says("seen"))
        run = await bench.run()
        [child] = children_of(run)
        assert child["worker"] == {
            "name": "reader",
            "description": "Reads.",
            "prompt": "You read.",
            "permissions": {"deny": ["write"]},
        }
        assert not (tmp_path / "a").exists()
        system = bench.model.requests["go"][0].system
        assert "# Agents that the tool task can name\n\n- reader: Reads." in system
        assert bench.model.requests["look"][0].system.startswith("You read.")
        sources = of_type(run, "model_input")[0]["sources"]
        assert [source["kind"] for source in sources if "hash" in source] == ["agents"]
        # The agents are not listed for a session that cannot call the tool.
        await bench.client.request("set_active_tools", tools=["read"])
        bench.on("more", says("done"))
        sources = of_type(await bench.run("more"), "model_input")[0]["sources"]
        assert "agents" not in [source["kind"] for source in sources]


async def test_the_error_for_an_unknown_agent_suggests_the_nearest_name(tmp_path: Path) -> None:
    put(tmp_path / "user", "reviewer.md", "Review.")
    async with task_daemon(tmp_path, read_agents=reader(agent_places(tmp_path))) as bench:
        bench.on("go", tasks({"prompt": "look", "agent": "reviwer"}), says("done"))
        result = result_of(await bench.run())["result"]
        assert "agent_not_found: reviwer; nearest: reviewer; there are: reviewer" in result


@pytest.mark.behaviour("agents_are_read_once_for_a_session")
async def test_agent_files_written_during_a_session_apply_only_to_later_sessions(
    tmp_path: Path,
) -> None:
    path = put(project_agents(tmp_path), "reader.md", DENIES)
    async with task_daemon(tmp_path, read_agents=reader(agent_places(tmp_path))) as bench:
        bench.on("go", says("done"))
        await bench.run()
        path.write_text("Anything goes.")
        put(project_agents(tmp_path), "late.md", "Late.")
        bench.on("go", tasks({"prompt": "look", "agent": "reader"}), says("done"))
        run = await bench.run("again")
        [child] = children_of(run)
        assert child["worker"]["permissions"] == {"deny": ["write"]}
        own = await bench.client.request("list_agents")
        assert [agent["name"] for agent in own["agents"]] == ["reader"]
        await bench.client.request("new_session")
        fresh = await bench.client.request("list_agents")
        assert [agent["name"] for agent in fresh["agents"]] == ["late", "reader"]


def test_the_first_user_agent_wins_over_others_of_the_same_name(tmp_path: Path) -> None:
    put(tmp_path / "user", "a.md", "Mine.")
    put(tmp_path / "user", "b.md", "---\nname: a\n---\nAlso mine.")
    put(project_agents(tmp_path), "a.md", "Theirs.")
    catalogue = read_agents(agent_places(tmp_path))
    found = catalogue.find("a")
    assert found is not None
    assert found.prompt == "Mine."
    assert catalogue.names == ("a",)
    taken = f"the name a is that of {tmp_path / 'user' / 'a.md'}"
    assert [agent.problems for agent in catalogue.agents] == [(), (taken,), (taken,)]


@pytest.mark.parametrize(
    "kind", ["link out", "fifo", "folder", "bytes", "rule", "hidden", "tag", "too large a number"]
)
def test_an_unusable_agent_file_is_reported_and_the_others_still_load(
    tmp_path: Path, kind: str
) -> None:
    folder = project_agents(tmp_path)
    good, bad = put(folder, "good.md", "Good."), folder / "bad.md"
    if kind == "link out":
        bad.symlink_to(put(tmp_path / "elsewhere", "secret.md", "A secret."))
    elif kind == "fifo":
        os.mkfifo(bad)
    elif kind == "folder":
        bad.mkdir()
    elif kind == "bytes":
        bad.write_bytes(b"\xff\xfe")
    elif kind == "rule":
        bad.write_text("---\npermissions:\n  deny: ['bash(rm']\n---\n")
    elif kind == "tag":
        bad.write_text("---\nx: !!bool foo\n---\n")
    elif kind == "too large a number":
        bad.write_text(f"---\nx: 1{':1' * 1000}.0\n---\n")
    else:
        bad.write_text("Ours.")
    hidden = (bad,) if kind == "hidden" else ()
    catalogue = read_agents(AgentPlaces(None, tmp_path / "project", hidden))
    assert catalogue.names == ("good",)
    [unusable] = [agent for agent in catalogue.agents if agent.path != str(good)]
    assert (unusable.name, unusable.worker) == ("bad", None)
    assert len(unusable.problems) == 1
    assert "secret" not in unusable.problems[0]


def test_agent_files_past_the_limit_are_reported_as_one_problem(tmp_path: Path) -> None:
    for number in range(AGENTS_MAX + 100):
        put(project_agents(tmp_path), f"{number:03}.md", "Do it.")
    agents = read_agents(agent_places(tmp_path)).agents
    assert len(agents) == AGENTS_MAX + 1
    assert agents[-1].problems == ("the folder has 164 files, of which the first 64 count",)


def test_a_problem_is_a_single_short_line(tmp_path: Path) -> None:
    put(project_agents(tmp_path), "a.md", f'---\n"{"k" * 1000}\\n\\u001b[0m": 1\n---\n')
    [agent] = read_agents(agent_places(tmp_path)).agents
    [problem] = agent.problems
    assert len(problem) < 250
    assert "\n" not in problem


async def test_missing_or_unset_folders_have_no_agents(tmp_path: Path) -> None:
    assert (await reader(agent_places(tmp_path))()).agents == ()
    assert (await reader(AgentPlaces(None, None))()).agents == ()
